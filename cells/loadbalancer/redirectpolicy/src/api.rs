// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/lrp`: local redirect policies in the form of Cilium's agent API.

use std::collections::HashMap;
use std::net::IpAddr;

use axum::{extract::State, response::Response};
use hive::{Cell, Member};
use skep_base_api::{Routes, json_list};
use skep_base_api_types::{BackendAddress, FrontendMapping, LrpBackend, LrpSpec};
use skep_k8s_reflectors::tables::LocalPod;
use skep_loadbalancer_model::api::frontend_address;
use skep_loadbalancer_model::{FRONTENDS_BY_SERVICE, Frontend, FrontendKind, L3n4Addr};
use statedb::{Db, Snapshot, Table};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{Policy, Target};

hive::catalogue!(cell);

/// The policies, for the agent's API. Not a part of their own cell: the path is there also where they are switched off.
#[must_use]
pub fn cell() -> Cell {
    Cell::module(
        "local-redirect-policies-api",
        "Local redirect policies in the API of the agent",
    )
    .provide(api)
}

#[derive(Clone)]
struct Tables {
    db: Db,
    policies: Table<Policy>,
    frontends: Table<Frontend>,
    pods: Table<LocalPod>,
}

/// There are no policies where they are switched off.
fn api(
    db: Option<Db>,
    policies: Option<Table<Policy>>,
    frontends: Option<Table<Frontend>>,
    pods: Option<Table<LocalPod>>,
) -> Member<Routes> {
    let tables = (|| {
        Some(Tables {
            db: db?,
            policies: policies?,
            frontends: frontends?,
            pods: pods?,
        })
    })();
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(all)).with_state(tables),
    ))
}

/// Lists local redirect policies with their frontends and backends.
#[utoipa::path(get, path = "/lrp", responses((status = 200, description = "The policies", body = [LrpSpec])))]
async fn all(State(tables): State<Option<Tables>>) -> Response {
    let models = tables.map(|tables| models(&tables)).unwrap_or_default();
    json_list(models, |model, out| serde_json::to_writer(out, model))
}

fn models(tables: &Tables) -> Vec<LrpSpec> {
    let Tables {
        db,
        policies,
        frontends,
        pods,
    } = tables;
    let snapshot = db.read();
    let pods = pods_by_address(pods, &snapshot);
    let models = policies.all(&snapshot).map(|policy| {
        let pseudo = policy.redirect_service();
        let redirected = frontends.list(&snapshot, FRONTENDS_BY_SERVICE.key(&pseudo));
        let of_service = policy.service().into_iter().flat_map(|service| {
            let theirs = frontends.list(&snapshot, FRONTENDS_BY_SERVICE.key(service));
            theirs.filter(|frontend| {
                frontend.params.kind == FrontendKind::ClusterIp
                    && policy.redirects(frontend.address(), &frontend.params.port_name)
            })
        });
        let frontends: Vec<&Frontend> = redirected.chain(of_service).map(|frontend| &**frontend).collect();
        model(policy, &frontends, &pods)
    });
    models.collect()
}

/// Names of the pods of this node by their addresses.
fn pods_by_address(pods: &Table<LocalPod>, snapshot: &Snapshot) -> HashMap<IpAddr, String> {
    let mut names = HashMap::new();
    for pod in pods.all(snapshot) {
        for address in pod.addresses().filter_map(|text| text.parse::<IpAddr>().ok()) {
            names.insert(address.to_canonical(), pod.full_name());
        }
    }
    names
}

/// One element of the answer. `frontends` are those that the policy redirects and those that it could.
fn model(policy: &Policy, frontends: &[&Frontend], pods: &HashMap<IpAddr, String>) -> LrpSpec {
    let pseudo = policy.redirect_service();
    let mut addresses: Vec<L3n4Addr> = policy.addresses().map(|(address, _)| address).collect();
    addresses.extend(frontends.iter().map(|frontend| *frontend.address()));
    addresses.sort();
    addresses.dedup();
    let frontend_mappings = addresses
        .iter()
        .map(|address| {
            let redirected = frontends.iter().find(|frontend| {
                frontend.address() == address
                    && (frontend.service_name() == &pseudo || frontend.redirect_to.as_ref() == Some(&pseudo))
            });
            let backends = redirected
                .into_iter()
                .flat_map(|frontend| frontend.backends.iter())
                .map(|backend| backend_model(&backend.params.address, pods))
                .collect();
            FrontendMapping {
                frontend_address: frontend_address(address),
                backends,
            }
        })
        .collect();
    let lrp_type = match policy.target {
        Target::Address(_) => "addr",
        Target::Service(_) => "svc",
    };
    LrpSpec {
        uid: policy.uid.to_string(),
        name: policy.name.name().to_owned(),
        namespace: policy.name.namespace().to_owned(),
        lrp_type: lrp_type.to_owned(),
        frontend_type: policy.frontend_type.description().to_owned(),
        service_id: policy.service().map(ToString::to_string).unwrap_or_default(),
        frontend_mappings,
    }
}

fn backend_model(address: &L3n4Addr, pods: &HashMap<IpAddr, String>) -> LrpBackend {
    LrpBackend {
        pod_id: pods.get(&address.ip()).cloned().unwrap_or_default(),
        backend_address: BackendAddress {
            ip: address.ip().to_string(),
            port: address.port(),
            protocol: address.proto().as_str().to_owned(),
            ..BackendAddress::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use skep_k8s_types::slim::CiliumLocalRedirectPolicy;
    use skep_loadbalancer_model::{
        Backend, BackendParams, BackendSet, FrontendParams, Service, ServiceName, Source,
    };

    use axum::body::to_bytes;
    use serde_json::{Value, json, to_value};
    use statedb::{Index, Obj, RwTable};

    use super::*;

    /// As a row of a table: what frontends hold of services and backends.
    fn row<T: Send + Sync + 'static>(object: T) -> Obj<T> {
        let db = Db::new();
        let only: Index<T, str> = Index::new("only", |_, keys| keys.add("one"));
        let table = RwTable::builder("rows").primary(only).build_plain(&db).unwrap();
        table.insert_get(&mut db.write(&[&table]), object).unwrap()
    }

    fn policy(frontend: Value) -> Policy {
        let resource: CiliumLocalRedirectPolicy = serde_json::from_value(json!({
            "metadata": {"namespace": "kube-system", "name": "dns", "uid": "u-1"},
            "spec": {
                "redirectFrontend": frontend,
                "redirectBackend": {
                    "localEndpointSelector": {"matchLabels": {"app": "cache"}},
                    "toPorts": [{"port": "53", "protocol": "UDP"}],
                },
            },
        }))
        .unwrap();
        Policy::new(&resource, &[]).unwrap()
    }

    fn frontend(service: &ServiceName, address: &str, backend: &str) -> Frontend {
        let params = FrontendParams {
            address: address.parse().unwrap(),
            kind: FrontendKind::ClusterIp,
            port_name: "dns".into(),
            service_port: 53,
        };
        let mut frontend = Frontend::new(params, row(Service::new(service.clone(), Source::Kubernetes)));
        let params = BackendParams::new(backend.parse().unwrap(), Source::Kubernetes);
        frontend.backends = BackendSet::from_sorted(vec![row(Backend::new(service.clone(), params))]);
        frontend
    }

    fn pods() -> HashMap<IpAddr, String> {
        HashMap::from([("10.244.0.5".parse().unwrap(), "kube-system/cache-x".to_owned())])
    }

    #[test]
    fn a_redirected_service_is_shown_with_the_pods_that_take_its_traffic() {
        let policy =
            policy(json!({"serviceMatcher": {"serviceName": "kube-dns", "namespace": "kube-system"}}));
        let service = ServiceName::new("kube-system", "kube-dns");
        let mut redirected = frontend(&service, "10.96.0.10:53/UDP", "10.244.0.5:53/UDP");
        redirected.redirect_to = Some(policy.redirect_service());
        // Not (yet) redirected: its backends are its own.
        let other = frontend(&service, "[fd00::10]:53/UDP", "[fd01::1]:53/UDP");

        let model = model(&policy, &[&redirected, &redirected, &other], &pods());

        assert_eq!(
            to_value(model).unwrap(),
            json!({
                "uid": "u-1", "name": "dns", "namespace": "kube-system", "lrp-type": "svc",
                "frontend-type": "clusterIP + all svc ports", "service-id": "kube-system/kube-dns",
                "frontend-mappings": [
                    {
                        "frontend-address": {"ip": "10.96.0.10", "port": 53, "protocol": "UDP", "scope": "external"},
                        "backends": [{"pod-id": "kube-system/cache-x",
                            "backend-address": {"ip": "10.244.0.5", "port": 53, "protocol": "UDP"}}],
                    },
                    {
                        "frontend-address": {"ip": "fd00::10", "port": 53, "protocol": "UDP", "scope": "external"},
                        "backends": [],
                    },
                ],
            })
        );
    }

    #[test]
    fn an_address_is_shown_also_while_no_pod_takes_its_traffic() {
        let matcher = json!({"ip": "169.254.169.254", "toPorts": [{"port": "53", "protocol": "UDP"}]});
        let policy = policy(json!({"addressMatcher": matcher}));

        let idle = to_value(model(&policy, &[], &pods())).unwrap();
        assert_eq!(idle["lrp-type"], "addr");
        assert_eq!(idle["frontend-type"], "IP + port");
        assert_eq!(idle["service-id"], "");
        assert_eq!(
            idle["frontend-mappings"][0]["frontend-address"]["ip"],
            "169.254.169.254"
        );
        assert_eq!(idle["frontend-mappings"][0]["backends"], json!([]));

        let served = frontend(
            &policy.redirect_service(),
            "169.254.169.254:53/UDP",
            "10.244.0.5:53/UDP",
        );
        let busy = to_value(model(&policy, &[&served], &pods())).unwrap();
        assert_eq!(busy["frontend-mappings"].as_array().unwrap().len(), 1);
        assert_eq!(
            busy["frontend-mappings"][0]["backends"][0]["pod-id"],
            "kube-system/cache-x"
        );
    }

    #[tokio::test]
    async fn there_are_none_where_they_are_switched_off() {
        let answer = all(State(None)).await;

        assert_eq!(to_bytes(answer.into_body(), 100).await.unwrap(), "[]\n");
    }
}
