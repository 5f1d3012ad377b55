// SPDX-License-Identifier: Apache-2.0

//! Ports, protocols and ICMP types of Cilium's rules.

use std::sync::Arc;

use super::{
    cilium::{EgressRule, IcmpRule, PortRule, PortSpec},
    error::{Fault, Faulty, at},
    layer7,
    rules::Scope,
};
use crate::{
    ports::{Ports, Protocol, parse_port},
    rule::{Direction, Traffic, Verdict},
};

/// Ports of a list, and types of an ICMP item.
const MAX: usize = 40;

pub(super) fn traffic(
    scope: &Scope<'_>,
    field: &str,
    direction: Direction,
    verdict: Verdict,
    rule: &EgressRule,
) -> Faulty<Vec<Traffic>> {
    let ports = rule.to_ports.as_deref().unwrap_or_default();
    let icmps = rule.icmps.as_deref().unwrap_or_default();
    if !icmps.is_empty() {
        if !scope.source.settings().icmp_rules {
            return Err((format!("{field}.icmps"), Fault::IcmpOff));
        }
        if !ports.is_empty() {
            return Err((format!("{field}.icmps"), Fault::IcmpAndPorts));
        }
        return icmp_traffic(scope, field, icmps);
    }
    if ports.is_empty() {
        return Ok(vec![Traffic::ALL]);
    }
    let mut traffic = Vec::new();
    for (index, rule) in ports.iter().enumerate() {
        port_traffic(
            scope,
            &at(&format!("{field}.toPorts"), index),
            direction,
            verdict,
            rule,
            &mut traffic,
        )?;
    }
    Ok(traffic)
}

fn icmp_traffic(scope: &Scope<'_>, field: &str, icmps: &[IcmpRule]) -> Faulty<Vec<Traffic>> {
    let is_loose = scope.source.settings().fail_open;
    let mut traffic = Vec::new();
    for (index, icmp) in icmps.iter().enumerate() {
        let field = at(&format!("{field}.icmps"), index);
        let fields = icmp.fields.as_deref().unwrap_or_default();
        if fields.len() > MAX {
            return Err((format!("{field}.fields"), Fault::TooManyTypes));
        }
        for (index, icmp) in fields.iter().enumerate() {
            let field = at(&format!("{field}.fields"), index);
            let protocol = match icmp.family.as_str() {
                "IPv4" => Protocol::ICMP,
                "IPv6" => Protocol::ICMPV6,
                other => return Err((format!("{field}.family"), Fault::Family(other.to_owned()))),
            };
            let Some(kind) = icmp.kind else {
                return Err((format!("{field}.type"), Fault::NoIcmpType));
            };
            let ports = match (u16::try_from(kind), is_loose) {
                (Ok(port), true) => Ports::Number { port, end: 0 },
                (Err(_), true) => Ports::ALL,
                (Ok(port @ 0..=255), false) => Ports::Exact { port, end: 0 },
                (_, false) => return Err((format!("{field}.type"), Fault::IcmpType(kind))),
            };
            traffic.push(Traffic {
                ports,
                protocol,
                demands: None,
            });
        }
    }
    Ok(traffic)
}

fn port_traffic(
    scope: &Scope<'_>,
    field: &str,
    direction: Direction,
    verdict: Verdict,
    rule: &PortRule,
    traffic: &mut Vec<Traffic>,
) -> Faulty<()> {
    let ports = rule.ports.as_deref().unwrap_or_default();
    let demands = match verdict {
        Verdict::Allow => layer7::demands(scope, field, direction, rule)?,
        _ => None,
    };
    if ports.len() > MAX {
        return Err((format!("{field}.ports"), Fault::TooManyPorts));
    }
    let demands = demands.map(Arc::new);
    for (index, port) in ports.iter().enumerate() {
        let field = at(&format!("{field}.ports"), index);
        let (ports, protocol) = port_protocol(scope, &field, port)?;
        if let Some(demands) = &demands {
            layer7::check_port(&field, &ports, port, protocol, demands)?;
        }
        let protocols = match protocol {
            Some(protocol) => vec![protocol],
            None => Protocol::WITH_PORTS.to_vec(),
        };
        traffic.extend(protocols.into_iter().map(|protocol| Traffic {
            ports: ports.clone(),
            protocol,
            demands: demands.clone(),
        }));
    }
    Ok(())
}

/// Ports and protocol; no protocol for all that have ports.
fn port_protocol(scope: &Scope<'_>, field: &str, spec: &PortSpec) -> Faulty<(Ports, Option<Protocol>)> {
    let settings = scope.source.settings();
    let name = match spec.protocol.is_empty() {
        true => "ANY".to_owned(),
        false => spec.protocol.to_ascii_uppercase(),
    };
    let protocol = match name.as_str() {
        "ANY" => None,
        "ICMP" | "ICMPV6" => {
            return Err((
                format!("{field}.protocol"),
                Fault::Protocol(spec.protocol.clone()),
            ));
        }
        name => match Protocol::from_name(name) {
            None => {
                return Err((
                    format!("{field}.protocol"),
                    Fault::Protocol(spec.protocol.clone()),
                ));
            }
            known => known,
        },
    };
    let port_fault = |fault| (format!("{field}.port"), fault);
    if spec.port.is_empty() {
        return match settings.extended_protocols {
            true => Ok((Ports::ALL, protocol)),
            false => Err(port_fault(Fault::NoPort)),
        };
    }
    let ports = parse_port(&spec.port).map_err(|error| port_fault(Fault::Port(error)))?;
    if protocol.is_some_and(|protocol| !protocol.has_ports()) {
        return match ports {
            Ports::Number { port: 0, .. } => Ok((Ports::ALL, protocol)),
            // Names are not looked at there: the protocol has no ports.
            Ports::Name { .. } if settings.fail_open => Ok((ports, protocol)),
            _ => Err(port_fault(Fault::PortOfProtocol)),
        };
    }
    let end = end_port(spec.end_port);
    Ok((
        match ports {
            Ports::Name { name, .. } => Ports::Name { name, end },
            Ports::Number { port: 0, .. } if end > 0 && !settings.fail_open => Ports::Exact { port: 0, end },
            Ports::Number { port, .. } | Ports::Exact { port, .. } => Ports::Number { port, end },
        },
        protocol,
    ))
}

/// The API server has checked it: what is out of range wraps.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "wraps")]
pub(super) fn end_port(end: Option<i32>) -> u16 {
    end.unwrap_or_default() as u16
}
