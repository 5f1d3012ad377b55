// SPDX-License-Identifier: Apache-2.0

//! Services.

use std::collections::HashSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{one_of, port_range};
use crate::error::Fault;
use crate::names;
use crate::object;

/// Ways of spreading traffic that there are.
const DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameNode", "PreferSameZone"];

pub(super) fn check(old: Option<&Value>, new: &Value, faults: &mut Vec<Fault>) {
    let kind = object::text(new, &["spec", "type"]);
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    one_of(new, &["spec", "type"], &kinds, faults);
    one_of(new, &["spec", "sessionAffinity"], &["ClientIP", "None"], faults);
    for policy in ["externalTrafficPolicy", "internalTrafficPolicy"] {
        one_of(new, &["spec", policy], &["Cluster", "Local"], faults);
    }
    one_of(new, &["spec", "trafficDistribution"], &DISTRIBUTIONS, faults);
    what_the_type_allows(new, kind, faults);
    what_balancers_keep(old, new, faults);
    selector(new, faults);
    ports(new, kind, faults);
    addresses(new, faults);
    let timeout = ["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"];
    if let Some(seconds) = object::at(new, &timeout).and_then(Value::as_i64)
        && !(1..=86400).contains(&seconds)
    {
        let detail = "must be greater than 0 and less than 86400";
        faults.push(Fault::invalid(timeout.join("."), &seconds.into(), detail));
    }
}

fn what_the_type_allows(new: &Value, kind: &str, faults: &mut Vec<Fault>) {
    let headless = object::text(new, &["spec", "clusterIP"]) == "None";
    if kind != "LoadBalancer" && !object::items(new, &["status", "loadBalancer", "ingress"]).is_empty() {
        let detail = "may only be used when `spec.type` is \"LoadBalancer\"";
        faults.push(Fault::forbidden("status.loadBalancer.ingress", detail));
    }
    if object::items(new, &["spec", "ports"]).is_empty() && !headless && kind != "ExternalName" {
        faults.push(Fault::required("spec.ports", ""));
    }
    if headless && matches!(kind, "NodePort" | "LoadBalancer") {
        let detail = format!("may not be set to 'None' for {kind} services");
        faults.push(Fault::invalid("spec.clusterIPs[0]", &json!("None"), &detail));
    }
    if kind == "ExternalName" {
        let name = object::text(new, &["spec", "externalName"]).trim_end_matches('.');
        if name.is_empty() {
            faults.push(Fault::required("spec.externalName", ""));
        } else if let Some(problem) = names::subdomain(name) {
            faults.push(Fault::invalid("spec.externalName", &name.into(), &problem));
        }
    }
    let for_balancers = [
        "allocateLoadBalancerNodePorts",
        "loadBalancerClass",
        "loadBalancerSourceRanges",
    ];
    for key in for_balancers {
        let used = object::at(new, &["spec", key]).is_some_and(|value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::String(text) => !text.is_empty(),
            _ => true,
        });
        if used && kind != "LoadBalancer" {
            let detail = "may only be used when `type` is 'LoadBalancer'";
            faults.push(Fault::forbidden(format!("spec.{key}"), detail));
        }
    }
    let class = object::text(new, &["spec", "loadBalancerClass"]);
    if !class.is_empty()
        && kind == "LoadBalancer"
        && let Some(problem) = names::qualified_name(class)
    {
        let value = class.into();
        faults.push(Fault::invalid("spec.loadBalancerClass", &value, &problem));
    }
    let policy = object::text(new, &["spec", "externalTrafficPolicy"]);
    if !policy.is_empty() && !is_reached_from_outside(new) {
        let detail = "may only be set for externally-accessible services";
        faults.push(Fault::invalid(
            "spec.externalTrafficPolicy",
            &policy.into(),
            detail,
        ));
    }
}

/// Whether clients outside of the cluster can get at the service.
pub(in crate::server) fn is_reached_from_outside(service: &Value) -> bool {
    match object::text(service, &["spec", "type"]) {
        "NodePort" | "LoadBalancer" => true,
        "ExternalName" => false,
        _ => !object::items(service, &["spec", "externalIPs"]).is_empty(),
    }
}

/// What must stay as it is as long as a service is a load balancer.
fn what_balancers_keep(old: Option<&Value>, new: &Value, faults: &mut Vec<Fault>) {
    let Some(old) = old else { return };
    let is_balancer = |service| object::text(service, &["spec", "type"]) == "LoadBalancer";
    if !is_balancer(old) || !is_balancer(new) {
        return;
    }
    let class = |service| object::text(service, &["spec", "loadBalancerClass"]).to_owned();
    if class(old) != class(new) {
        let value = class(new).into();
        let detail = "may not change once set";
        faults.push(Fault::invalid("spec.loadBalancerClass", &value, detail));
    }
    let port = |service| object::at(service, &["spec", "healthCheckNodePort"]).cloned();
    if let (Some(before), Some(after)) = (port(old), port(new))
        && before != after
    {
        faults.push(Fault::invalid(
            "spec.healthCheckNodePort",
            &after,
            "field is immutable",
        ));
    }
}

fn selector(new: &Value, faults: &mut Vec<Fault>) {
    let selector = object::at(new, &["spec", "selector"]).and_then(Value::as_object);
    for (key, value) in selector.into_iter().flatten() {
        if let Some(problem) = names::qualified_name(key) {
            faults.push(Fault::invalid("spec.selector", &key.as_str().into(), &problem));
        }
        if let Some(problem) = value.as_str().and_then(names::label_value) {
            faults.push(Fault::invalid("spec.selector", value, &problem));
        }
    }
}

fn ports(new: &Value, kind: &str, faults: &mut Vec<Fault>) {
    let ports = object::items(new, &["spec", "ports"]);
    let mut seen_names = HashSet::new();
    let mut seen_ports = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = |key: &str| format!("spec.ports[{index}].{key}");
        let name = object::text(port, &["name"]);
        if name.is_empty() {
            if ports.len() > 1 {
                faults.push(Fault::required(path("name"), ""));
            }
        } else {
            if let Some(problem) = names::label(name) {
                faults.push(Fault::invalid(path("name"), &name.into(), &problem));
            }
            if !seen_names.insert(name) {
                faults.push(Fault::duplicate(path("name"), &name.into()));
            }
        }
        port_range(path("port"), port.get("port"), faults);
        let protocol = object::text(port, &["protocol"]);
        if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
            let supported = ["SCTP", "TCP", "UDP"];
            faults.push(Fault::not_supported(
                path("protocol"),
                &protocol.into(),
                &supported,
            ));
        }
        match port.get("targetPort") {
            Some(Value::String(name)) => {
                if let Some(problem) = names::port_name(name) {
                    let value = name.as_str().into();
                    faults.push(Fault::invalid(path("targetPort"), &value, &problem));
                }
            }
            other => port_range(path("targetPort"), other, faults),
        }
        if !seen_ports.insert((port.get("port").and_then(Value::as_i64), protocol)) {
            let shown = json!({ "port": port.get("port"), "protocol": protocol });
            faults.push(Fault::duplicate(format!("spec.ports[{index}]"), &shown));
        }
        let protocol = object::text(port, &["appProtocol"]);
        if !protocol.is_empty()
            && let Some(problem) = names::qualified_name(protocol)
        {
            let value = protocol.into();
            faults.push(Fault::invalid(path("appProtocol"), &value, &problem));
        }
        let node_port = port.get("nodePort").and_then(Value::as_i64).unwrap_or(0);
        if node_port != 0 && !matches!(kind, "NodePort" | "LoadBalancer") {
            let detail = "may not be used when `type` is 'ClusterIP'";
            faults.push(Fault::forbidden(path("nodePort"), detail));
        }
    }
}

fn addresses(new: &Value, faults: &mut Vec<Fault>) {
    for (index, address) in object::items(new, &["spec", "externalIPs"]).iter().enumerate() {
        let problem = match address.as_str().map(str::parse::<IpAddr>) {
            Some(Ok(address)) => not_for_services(address),
            _ => Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        };
        if let Some(problem) = problem {
            let field = format!("spec.externalIPs[{index}]");
            faults.push(Fault::invalid(field, address, problem));
        }
    }
    let ranges = object::items(new, &["spec", "loadBalancerSourceRanges"]);
    for (index, range) in ranges.iter().enumerate() {
        let text = range.as_str().unwrap_or_default().trim();
        if text.parse::<ipnet::IpNet>().is_err() {
            let field = format!("spec.loadBalancerSourceRanges[{index}]");
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            faults.push(Fault::invalid(field, range, detail));
        }
    }
}

/// Why an address that others have a use for cannot be one of a service.
fn not_for_services(address: IpAddr) -> Option<&'static str> {
    let (link_local, link_multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (
            v6.is_unicast_link_local(),
            v6.is_multicast() && v6.segments()[0] & 0xf == 2,
        ),
    };
    if address.is_unspecified() {
        Some("may not be unspecified (0.0.0.0 or ::)")
    } else if address.is_loopback() {
        Some("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    } else if link_local {
        Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    } else if link_multicast {
        Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
    } else {
        None
    }
}
