// SPDX-License-Identifier: Apache-2.0

//! Layer 7, TLS and listeners of Cilium's rules.

use regex::Regex;

use super::{
    cilium::{FqdnRule, HttpSpec, PortRule, PortSpec, SecretSpec, Tls},
    error::{Fault, Faulty, at},
    layer4::end_port,
    rules::Scope,
};
use crate::{
    fqdn::FqdnSelector,
    l7::{HeaderMatch, HttpRule, L7Rules, ListenerRule, PortDemands, SecretName, TlsContext},
    ports::{Ports, Protocol},
    rule::{Direction, PolicyKind},
};

pub(super) fn demands(
    scope: &Scope<'_>,
    field: &str,
    direction: Direction,
    rule: &PortRule,
) -> Faulty<Option<PortDemands>> {
    let is_ingress = direction == Direction::Ingress;
    let rules_field = format!("{field}.rules");
    let spec = rule.rules.as_ref();
    let http = spec.and_then(|spec| spec.http.as_deref()).unwrap_or_default();
    let dns = spec.and_then(|spec| spec.dns.as_deref()).unwrap_or_default();
    let has_rules = !http.is_empty() || !dns.is_empty();
    if has_rules {
        let fault = match () {
            () if is_ingress && scope.is_node => Some(Fault::HostIngressL7),
            () if !scope.source.settings().l7_proxy => Some(Fault::NoProxy),
            () if is_ingress && !dns.is_empty() => Some(Fault::IngressDns),
            () if scope.is_node && !http.is_empty() => Some(Fault::HostEgressHttp),
            () if !dns.is_empty() && !http.is_empty() => Some(Fault::SeveralL7),
            () if !dns.is_empty() && rule.ports.as_ref().is_none_or(Vec::is_empty) => Some(Fault::DnsPort),
            () => None,
        };
        if let Some(fault) = fault {
            return Err((rules_field, fault));
        }
    }
    let names = rule.server_names.as_deref().unwrap_or_default();
    if !names.is_empty() && has_rules && rule.terminating_tls.is_none() {
        return Err((format!("{field}.serverNames"), Fault::ServerNames));
    }
    if let Some(index) = names.iter().position(|name| name.is_empty()) {
        return Err((at(&format!("{field}.serverNames"), index), Fault::EmptyServerName));
    }
    let listener = match &rule.listener {
        None => None,
        Some(listener) => {
            let fault = |fault| Err((format!("{field}.listener"), fault));
            if is_ingress {
                return fault(Fault::IngressListener(listener.name.clone()));
            }
            if has_rules {
                return fault(Fault::ListenerAndL7(listener.name.clone()));
            }
            let is_clusterwide = scope.source.kind == PolicyKind::CiliumClusterwideNetworkPolicy;
            Some(ListenerRule {
                is_namespaced: listener.envoy_config.kind != "CiliumClusterwideEnvoyConfig",
                config: listener.envoy_config.name.clone(),
                name: listener.name.clone(),
                priority: listener.priority.unwrap_or_default(),
                is_clusterwide_policy: is_clusterwide,
            })
        }
    };
    let rules = match (http.is_empty(), dns.is_empty()) {
        (false, _) => L7Rules::Http(http_rules(&rules_field, http)?),
        (true, false) => L7Rules::Dns(dns_rules(&rules_field, dns)?),
        (true, true) => L7Rules::None,
    };
    let demands = PortDemands {
        rules,
        terminating_tls: rule.terminating_tls.as_ref().map(tls),
        originating_tls: rule.originating_tls.as_ref().map(tls),
        server_names: names.iter().map(|name| name.0.clone()).collect(),
        listener,
    };
    Ok((!demands.is_empty()).then_some(demands))
}

/// Ports that the rules of layer 7 are for.
pub(super) fn check_port(
    field: &str,
    ports: &Ports,
    spec: &PortSpec,
    protocol: Option<Protocol>,
    demands: &PortDemands,
) -> Faulty<()> {
    let name = || match protocol {
        None => "ANY".to_owned(),
        Some(protocol) => protocol.to_string(),
    };
    match &demands.rules {
        L7Rules::None => return Ok(()),
        L7Rules::Http(_) if protocol != Some(Protocol::TCP) => {
            return Err((format!("{field}.protocol"), Fault::L7Protocol(name())));
        }
        L7Rules::Dns(_) => {
            if let Ports::Number { port, .. } = ports
                && end_port(spec.end_port) > *port
            {
                return Err((format!("{field}.endPort"), Fault::DnsRange));
            }
        }
        L7Rules::Http(_) => {}
    }
    match ports.is_specific() {
        true => Ok(()),
        false => Err((format!("{field}.port"), Fault::L7PortZero)),
    }
}

fn secret(spec: &SecretSpec) -> SecretName {
    SecretName {
        namespace: spec.namespace.clone(),
        name: spec.name.clone(),
    }
}

fn tls(spec: &Tls) -> TlsContext {
    TlsContext {
        secret: secret(&spec.secret),
        trusted_ca: spec.trusted_ca.clone(),
        certificate: spec.certificate.clone(),
        private_key: spec.private_key.clone(),
    }
}

fn http_rules(field: &str, specs: &[HttpSpec]) -> Faulty<Vec<HttpRule>> {
    let mut rules = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let field = at(&format!("{field}.http"), index);
        for (name, text) in [("path", &spec.path), ("method", &spec.method)] {
            Regex::new(text).map_err(|error| (format!("{field}.{name}"), Fault::Regex(error.to_string())))?;
        }
        let mut header_matches = Vec::new();
        for (index, header) in spec.header_matches.iter().flatten().enumerate() {
            let fault = |fault| Err((at(&format!("{field}.headerMatches"), index), fault));
            if header.name.is_empty() {
                return fault(Fault::HeaderName);
            }
            if !["", "LOG", "ADD", "DELETE", "REPLACE"].contains(&header.mismatch.as_str()) {
                return fault(Fault::HeaderAction(header.mismatch.clone()));
            }
            if header
                .secret
                .as_ref()
                .is_some_and(|secret| secret.name.is_empty())
            {
                return fault(Fault::SecretName);
            }
            header_matches.push(HeaderMatch {
                mismatch: header.mismatch.clone(),
                name: header.name.clone(),
                secret: header.secret.as_ref().map(secret),
                value: header.value.clone(),
            });
        }
        rules.push(HttpRule {
            path: spec.path.clone(),
            method: spec.method.clone(),
            host: spec.host.clone(),
            headers: spec
                .headers
                .iter()
                .flatten()
                .map(|header| header.0.clone())
                .collect(),
            header_matches,
        });
    }
    Ok(rules)
}

fn dns_rules(field: &str, specs: &[FqdnRule]) -> Faulty<Vec<FqdnSelector>> {
    let mut rules = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let rule = FqdnSelector {
            match_name: spec.match_name.clone(),
            match_pattern: spec.match_pattern.clone(),
        };
        rule.validate()
            .map_err(|fault| (at(&format!("{field}.dns"), index), Fault::Fqdn(fault)))?;
        rules.push(rule);
    }
    Ok(rules)
}
