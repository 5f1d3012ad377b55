// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/service`: the frontends table in the form of Cilium's agent API.

use serde_json::{Map, Value, json};
use skep_loadbalancer::{Backend, Frontend, L3n4Addr, Scope, types::TrafficPolicy};

/// One element of the answer. `status.realized` repeats the specification, as in the original.
pub(crate) fn model(frontend: &Frontend) -> Value {
    let spec = spec(frontend);
    json!({"spec": spec, "status": {"realized": spec}})
}

fn spec(frontend: &Frontend) -> Value {
    let service = &frontend.service;
    let address = frontend.address();
    let mut backends: Vec<Value> = frontend.backends.iter().map(|backend| backend_model(backend)).collect();
    if let Some(redirect) = service.proxy_redirect(frontend.params.service_port) {
        let local = if address.is_ipv4() { "127.0.0.1" } else { "::1" };
        backends.push(json!({"ip": local, "port": redirect.proxy_port, "protocol": address.proto().as_str(),
            "state": "active", "preferred": true}));
    }
    let mut flags = Map::new();
    let mut flag = |name: &str, value: Value| {
        flags.insert(name.to_owned(), value);
    };
    flag("type", frontend.effective_kind().as_str().into());
    flag("trafficPolicy", policy(frontend.traffic_policy().unwrap_or_default()).into());
    flag("extTrafficPolicy", policy(service.ext_traffic_policy).into());
    flag("intTrafficPolicy", policy(service.int_traffic_policy).into());
    flag("name", service.name.name().into());
    flag("namespace", service.name.namespace().into());
    if service.health_check_node_port != 0 {
        flag("healthCheckNodePort", service.health_check_node_port.into());
    }
    if !service.name.cluster().is_empty() {
        flag("cluster", service.name.cluster().into());
    }
    json!({"id": frontend.id, "frontend-address": frontend_address(address), "backend-addresses": backends, "flags": flags})
}

fn frontend_address(address: &L3n4Addr) -> Value {
    let scope = match address.scope() {
        Scope::External => "external",
        Scope::Internal => "internal",
    };
    json!({"ip": address.ip().to_string(), "port": address.port(), "protocol": address.proto().as_str(), "scope": scope})
}

fn backend_model(backend: &Backend) -> Value {
    let params = &backend.params;
    let state = if backend.unhealthy { "quarantined" } else { params.state.as_str() };
    let mut model = json!({
        "ip": params.address.ip().to_string(),
        "port": params.address.port(),
        "protocol": params.address.proto().as_str(),
        "state": state,
        "preferred": true,
        "weight": params.weight,
    });
    if let Some(node) = &params.node_name {
        model["nodeName"] = node.as_ref().into();
    }
    if let Some(zone) = &params.zone {
        model["zone"] = zone.zone.as_str().into();
    }
    model
}

fn policy(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}
