// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/service`: the frontends table in the form of Cilium's agent API.

use axum::{Router, extract::State, response::Response, routing::get};
use hive::Member;
use skep_api_types::{BackendAddress, FrontendAddress, ServiceSpec, ServiceSpecFlags};
use skep_loadbalancer::{Backend, Frontend, L3n4Addr, Scope, types::TrafficPolicy};
use statedb::{Db, Obj, Table};

use crate::{list::json_list, server::Routes};

/// `GET /v1/service`. Without the load balancer there are no services.
pub(crate) fn routes(db: Option<Db>, frontends: Option<Table<Frontend>>) -> Member<Routes> {
    let Some(source) = db.zip(frontends) else {
        return Member(Routes(Router::new()));
    };
    Member(Routes(
        Router::new().route("/service", get(services)).with_state(source),
    ))
}

async fn services(State((db, frontends)): State<(Db, Table<Frontend>)>) -> Response {
    let rows: Vec<Obj<Frontend>> = frontends.all(&db.read()).cloned().collect();
    json_list(rows, |frontend, out| write(frontend, out))
}

/// Appends a [`Service`](skep_api_types::Service). `status.realized` repeats the specification, as in the original;
/// of a service with many backends it is half of the document, so its text is made once.
fn write(frontend: &Frontend, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    out.extend_from_slice(b"{\"spec\":");
    let from = out.len();
    serde_json::to_writer(&mut *out, &spec(frontend))?;
    let to = out.len();
    out.extend_from_slice(b",\"status\":{\"realized\":");
    out.extend_from_within(from..to);
    out.extend_from_slice(b"}}");
    Ok(())
}

fn spec(frontend: &Frontend) -> ServiceSpec {
    let service = &frontend.service;
    let address = frontend.address();
    let mut backend_addresses: Vec<BackendAddress> = frontend
        .backends
        .iter()
        .map(|backend| backend_address(backend))
        .collect();
    if let Some(redirect) = service.proxy_redirect(frontend.params.service_port) {
        let local = if address.is_ipv4() { "127.0.0.1" } else { "::1" };
        backend_addresses.push(BackendAddress {
            ip: local.to_owned(),
            port: redirect.proxy_port,
            protocol: address.proto().as_str().to_owned(),
            state: "active".to_owned(),
            preferred: true,
            ..BackendAddress::default()
        });
    }
    ServiceSpec {
        id: frontend.id.into(),
        frontend_address: frontend_address(address),
        backend_addresses,
        flags: ServiceSpecFlags {
            kind: frontend.effective_kind().as_str().to_owned(),
            traffic_policy: policy(frontend.traffic_policy().unwrap_or_default()),
            ext_traffic_policy: policy(service.ext_traffic_policy),
            int_traffic_policy: policy(service.int_traffic_policy),
            name: service.name.name().to_owned(),
            namespace: service.name.namespace().to_owned(),
            health_check_node_port: service.health_check_node_port,
            cluster: service.name.cluster().to_owned(),
        },
    }
}

/// The address of a frontend as the API shows it.
pub(crate) fn frontend_address(address: &L3n4Addr) -> FrontendAddress {
    let scope = match address.scope() {
        Scope::External => "external",
        Scope::Internal => "internal",
    };
    FrontendAddress {
        ip: address.ip().to_string(),
        port: address.port(),
        protocol: address.proto().as_str().to_owned(),
        scope: scope.to_owned(),
    }
}

fn backend_address(backend: &Backend) -> BackendAddress {
    let params = &backend.params;
    let state = if backend.unhealthy {
        "quarantined"
    } else {
        params.state.as_str()
    };
    BackendAddress {
        ip: params.address.ip().to_string(),
        port: params.address.port(),
        protocol: params.address.proto().as_str().to_owned(),
        state: state.to_owned(),
        preferred: true,
        weight: Some(params.weight),
        node_name: params.node_name.as_deref().unwrap_or_default().to_owned(),
        zone: params
            .zone
            .as_ref()
            .map(|zone| zone.zone.to_string())
            .unwrap_or_default(),
    }
}

fn policy(policy: TrafficPolicy) -> String {
    let word = match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    };
    word.to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};
    use skep_api_types::Service as Model;
    use skep_loadbalancer::{
        BackendParams, BackendSet, BackendState, FrontendKind, FrontendParams, Service, ServiceName, Source,
    };
    use statedb::{Index, RwTable};

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

        let mut text = Vec::new();
        write(&frontend, &mut text).unwrap();

        let typed: Model = serde_json::from_slice(&text).unwrap();
        assert_eq!(typed.spec, spec(&frontend));
        assert_eq!(typed.status.realized, typed.spec);
        let model: Value = serde_json::from_slice(&text).unwrap();
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
