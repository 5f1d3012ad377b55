// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/service`: the frontends table in the form of Cilium's agent API.

use axum::{Json, Router, extract::State, routing::get};
use hive::Member;
use serde_json::{Map, Value, json};
use skep_loadbalancer_model::{Backend, Frontend, L3n4Addr, Scope, types::TrafficPolicy};
use statedb::{Db, Table};

use crate::server::Routes;

/// `GET /v1/service`. Without the load balancer there are no services.
pub(crate) fn routes(db: Option<Db>, frontends: Option<Table<Frontend>>) -> Member<Routes> {
    let Some(source) = db.zip(frontends) else {
        return Member(Routes(Router::new()));
    };
    Member(Routes(
        Router::new().route("/service", get(services)).with_state(source),
    ))
}

async fn services(State((db, frontends)): State<(Db, Table<Frontend>)>) -> Json<Vec<Value>> {
    Json(
        frontends
            .all(&db.read())
            .map(|frontend| model(frontend))
            .collect(),
    )
}

/// One element of the answer. `status.realized` repeats the specification, as in the original.
fn model(frontend: &Frontend) -> Value {
    let spec = spec(frontend);
    json!({"spec": spec, "status": {"realized": spec}})
}

fn spec(frontend: &Frontend) -> Value {
    let service = &frontend.service;
    let address = frontend.address();
    let mut backends: Vec<Value> = frontend
        .backends
        .iter()
        .map(|backend| backend_model(backend))
        .collect();
    if let Some(redirect) = service.proxy_redirect(frontend.params.service_port) {
        let local = if address.is_ipv4() { "127.0.0.1" } else { "::1" };
        backends.push(
            json!({"ip": local, "port": redirect.proxy_port, "protocol": address.proto().as_str(),
            "state": "active", "preferred": true}),
        );
    }
    let mut flags = Map::new();
    let mut flag = |name: &str, value: Value| {
        flags.insert(name.to_owned(), value);
    };
    flag("type", frontend.effective_kind().as_str().into());
    flag(
        "trafficPolicy",
        policy(frontend.traffic_policy().unwrap_or_default()).into(),
    );
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

pub(crate) fn frontend_address(address: &L3n4Addr) -> Value {
    let scope = match address.scope() {
        Scope::External => "external",
        Scope::Internal => "internal",
    };
    json!({"ip": address.ip().to_string(), "port": address.port(), "protocol": address.proto().as_str(), "scope": scope})
}

fn backend_model(backend: &Backend) -> Value {
    let params = &backend.params;
    let state = if backend.unhealthy {
        "quarantined"
    } else {
        params.state.as_str()
    };
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

#[cfg(test)]
pub(crate) mod tests {
    use skep_loadbalancer_model::{
        BackendParams, BackendSet, BackendState, FrontendKind, FrontendParams, Service, ServiceName, Source,
    };
    use statedb::{Index, Obj, RwTable};

    use super::*;

    /// As a row of a table: what frontends hold of services and backends.
    pub(crate) fn row<T: Send + Sync + 'static>(object: T) -> Obj<T> {
        let db = Db::new();
        let only: Index<T, str> = Index::new("only", |_, keys| keys.add("one"));
        let table = RwTable::builder("rows").primary(only).build_plain(&db).unwrap();
        table.insert_get(&mut db.write(&[&table]), object).unwrap()
    }

    #[test]
    fn a_frontend_is_shown_as_cilium_shows_it() {
        let mut service = Service::new(ServiceName::new("kube-system", "dns"), Source::Kubernetes);
        service.int_traffic_policy = TrafficPolicy::Local;
        let params = FrontendParams {
            address: "10.96.0.10:53/UDP".parse().unwrap(),
            kind: FrontendKind::ClusterIp,
            port_name: "dns".into(),
            service_port: 53,
        };
        let mut frontend = Frontend::new(params, row(service));
        frontend.id = 4;
        let mut backend = Backend::new(
            ServiceName::new("kube-system", "dns"),
            BackendParams::new("10.244.1.7:53/UDP".parse().unwrap(), Source::Kubernetes),
        );
        backend.params.node_name = Some("n1".into());
        backend.params.state = BackendState::Terminating;
        frontend.backends = BackendSet::from_sorted(vec![row(backend)]);

        let model = model(&frontend);

        assert_eq!(model["spec"], model["status"]["realized"]);
        let spec = &model["spec"];
        assert_eq!(spec["id"], 4);
        assert_eq!(
            spec["frontend-address"],
            json!({"ip": "10.96.0.10", "port": 53, "protocol": "UDP", "scope": "external"})
        );
        assert_eq!(
            spec["backend-addresses"][0],
            json!({"ip": "10.244.1.7", "port": 53, "protocol": "UDP", "state": "terminating", "preferred": true,
                "weight": 100, "nodeName": "n1"})
        );
        assert_eq!(
            spec["flags"],
            json!({"type": "ClusterIP", "trafficPolicy": "Local", "extTrafficPolicy": "Cluster",
                "intTrafficPolicy": "Local", "name": "dns", "namespace": "kube-system"})
        );
    }
}
