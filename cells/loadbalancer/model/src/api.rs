// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/service`: the frontends table in the form of Cilium's agent API.

use axum::{extract::State, response::Response};
use hive::{Cell, Member};
use skep_base_api::{Routes, json_list};
use skep_base_api_types::{BackendAddress, FrontendAddress, Service, ServiceSpec, ServiceSpecFlags};
use statedb::{Db, Obj, Table};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{Backend, BackendState, Frontend, L3n4Addr, Scope, types::TrafficPolicy};

hive::catalogue!(cell);

/// The frontends of the load balancer, for the agent's API.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("loadbalancer-api", "Services in the API of the agent").provide(api)
}

/// Without the load balancer there are no services.
fn api(db: Option<Db>, frontends: Option<Table<Frontend>>) -> Member<Routes> {
    let Some(source) = db.zip(frontends) else {
        return Member(Routes::default());
    };
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(services)).with_state(source),
    ))
}

/// Lists services: each frontend with its backends.
#[utoipa::path(get, path = "/service", responses((status = 200, description = "The services", body = [Service])))]
async fn services(State((db, frontends)): State<(Db, Table<Frontend>)>) -> Response {
    let rows: Vec<Obj<Frontend>> = frontends.all(&db.read()).cloned().collect();
    json_list(rows, |frontend, out| write(frontend, out))
}

/// Appends a [`Service`]. `status.realized` repeats the specification, as in the original;
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
        .map(|backend| backend_address(backend, frontend.is_quarantined(backend)))
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
            // As of Cilium: that of traffic from outside, for all frontends.
            traffic_policy: policy(service.ext_traffic_policy),
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
#[must_use]
pub fn frontend_address(address: &L3n4Addr) -> FrontendAddress {
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

fn backend_address(backend: &Backend, is_quarantined: bool) -> BackendAddress {
    let params = &backend.params;
    let state = if is_quarantined {
        BackendState::Quarantined.as_str()
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
mod tests {
    use std::net::Ipv4Addr;

    use crate::{
        BackendParams, BackendSet, FrontendKind, FrontendParams, L4Proto, Service as ServiceObject,
        ServiceName, Source, Tables, Writer, WriterSettings,
    };
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use statedb::{Index, RwTable};

    use super::*;

    /// As a row of a table: what frontends hold of services and backends.
    fn row<T: Send + Sync + 'static>(object: T) -> Obj<T> {
        let db = Db::new();
        let only: Index<T, str> = Index::new("only", |_, keys| keys.add("one"));
        let table = RwTable::builder("rows").primary(only).build_plain(&db).unwrap();
        table.insert_get(&mut db.write(&[&table]), object).unwrap()
    }

    #[test]
    fn a_frontend_is_shown_as_cilium_shows_it() {
        let mut service = ServiceObject::new(ServiceName::new("kube-system", "dns"), Source::Kubernetes);
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

        let typed: Service = serde_json::from_slice(&text).unwrap();
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
            json!({"type": "ClusterIP", "trafficPolicy": "Cluster", "extTrafficPolicy": "Cluster",
                "intTrafficPolicy": "Local", "name": "dns", "namespace": "kube-system"})
        );
    }

    /// What the datapath takes for quarantined is not shown as active.
    #[test]
    fn a_backend_that_an_earlier_run_quarantined_is_shown_so() {
        let service = ServiceObject::new(ServiceName::new("shop", "web"), Source::Kubernetes);
        let params = FrontendParams {
            address: "10.96.0.1:80/TCP".parse().unwrap(),
            kind: FrontendKind::ClusterIp,
            port_name: "".into(),
            service_port: 80,
        };
        let backend = |address: &str| {
            let params = BackendParams::new(address.parse().unwrap(), Source::Kubernetes);
            row(Backend::new(ServiceName::new("shop", "web"), params))
        };
        let mut frontend = Frontend::new(params, row(service));
        frontend.backends =
            BackendSet::from_sorted(vec![backend("10.0.0.1:80/TCP"), backend("10.0.0.2:80/TCP")]);
        frontend.quarantined = Some(["10.0.0.1:80/TCP".parse().unwrap()].into());

        let spec = spec(&frontend);
        let states: Vec<&str> = spec
            .backend_addresses
            .iter()
            .map(|backend| backend.state.as_str())
            .collect();
        assert_eq!(states, ["quarantined", "active"]);
        assert_eq!(frontend.selectable_backends().count(), 1);
    }

    const SERVICES: u32 = 10_000;
    const BACKENDS: u32 = 10;

    fn many() -> (Db, Writer) {
        let db = Db::new();
        let writer = Writer::new(db.clone(), Tables::new(&db).unwrap(), WriterSettings::default());
        let mut txn = writer.write();
        for number in 0..SERVICES {
            let name = ServiceName::new("shop", &format!("svc-{number}"));
            let params = FrontendParams {
                address: L3n4Addr::new(Ipv4Addr::from_bits(0x0a60_0000 + number).into(), 80, L4Proto::Tcp),
                kind: FrontendKind::ClusterIp,
                port_name: "http".into(),
                service_port: 80,
            };
            let service = ServiceObject::new(name.clone(), Source::Kubernetes);
            writer
                .upsert_service_and_frontends(&mut txn, service, vec![params])
                .unwrap();
            let backends = (0..BACKENDS).map(|backend| {
                let ip = Ipv4Addr::from_bits(0x0a80_0000 + number * BACKENDS + backend);
                BackendParams::new(L3n4Addr::new(ip.into(), 8080, L4Proto::Tcp), Source::Kubernetes)
            });
            writer
                .upsert_backends(&mut txn, &name, backends.collect())
                .unwrap();
        }
        txn.commit();
        (db, writer)
    }

    /// What is held at once is a piece, and no byte is sent that the services do not need.
    #[tokio::test]
    async fn ten_thousand_services_are_sent_in_small_pieces() {
        let (db, writer) = many();

        let mut body = services(State((db, writer.frontends()))).await.into_body();
        let (mut whole, mut pieces, mut longest) = (Vec::new(), 0, 0);
        while let Some(frame) = body.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            pieces += 1;
            longest = longest.max(piece.len());
            whole.extend_from_slice(&piece);
        }

        assert!(longest < 80 << 10, "{longest} bytes in a piece");
        assert!(pieces <= whole.len() / (64 << 10) + 1, "{pieces} pieces");
        let backends = (SERVICES * BACKENDS) as usize;
        assert!(
            whole.len() < 300 * backends,
            "{} bytes for {backends} backends",
            whole.len()
        );
        let models: Vec<Service> = serde_json::from_slice(&whole).unwrap();
        assert_eq!(models.len(), SERVICES as usize);
        assert!(
            models
                .iter()
                .all(|model| model.spec.backend_addresses.len() == BACKENDS as usize)
        );
        assert!(models.iter().all(|model| model.spec == model.status.realized));
    }
}
