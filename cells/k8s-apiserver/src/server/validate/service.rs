// SPDX-License-Identifier: Apache-2.0

//! Services.

use std::collections::HashSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{one_of, port_range};
use crate::error::Fault;
use crate::names;
use crate::object;

pub(super) fn check(new: &Value, faults: &mut Vec<Fault>) {
    let kind = object::text(new, &["spec", "type"]);
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    one_of(new, &["spec", "type"], &kinds, faults);
    one_of(new, &["spec", "sessionAffinity"], &["ClientIP", "None"], faults);
    for policy in ["externalTrafficPolicy", "internalTrafficPolicy"] {
        one_of(new, &["spec", policy], &["Cluster", "Local"], faults);
    }
    what_the_type_allows(new, kind, faults);
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
    if !object::text(new, &["spec", "loadBalancerClass"]).is_empty() && kind != "LoadBalancer" {
        let detail = "may only be used when `type` is 'LoadBalancer'";
        faults.push(Fault::forbidden("spec.loadBalancerClass", detail));
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
        let node_port = port.get("nodePort").and_then(Value::as_i64).unwrap_or(0);
        if node_port != 0 && !matches!(kind, "NodePort" | "LoadBalancer") {
            let detail = "may not be used when `type` is 'ClusterIP'";
            faults.push(Fault::forbidden(path("nodePort"), detail));
        }
    }
}

fn addresses(new: &Value, faults: &mut Vec<Fault>) {
    for (index, address) in object::items(new, &["spec", "externalIPs"]).iter().enumerate() {
        if address.as_str().is_none_or(|a| a.parse::<IpAddr>().is_err()) {
            let field = format!("spec.externalIPs[{index}]");
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            faults.push(Fault::invalid(field, address, detail));
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
