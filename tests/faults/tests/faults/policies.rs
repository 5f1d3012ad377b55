// SPDX-License-Identifier: Apache-2.0

//! Local redirect policies that make no sense.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{sync::Arc, time::Duration};

use hive::{Cell, Hive, Level, MemoryHealth, Running, Settings};
use serde_json::{Value, json};
use skep_base_settings::NodeName;
use skep_faults::put_malformed;
use skep_k8s_memory::FakeClient;
use skep_loadbalancer_model::Writer;

struct Fixture {
    api: Arc<FakeClient>,
    writer: Writer,
    health: Arc<MemoryHealth>,
    _running: Running,
}

impl Fixture {
    async fn new() -> Self {
        let health = Arc::new(MemoryHealth::new());
        let sink: Arc<dyn hive::HealthSink> = health.clone();
        let cells = [
            statedb::cell(),
            skep_loadbalancer_maglev::cell(),
            skep_base_settings::cell(),
            skep_loadbalancer_model::cell(),
            skep_loadbalancer_sources::cell(),
            skep_datapath_maps::in_memory_cell(),
            skep_loadbalancer_reconciler::cell(),
            skep_k8s_memory::fake_client_cell(),
            skep_k8s_reflectors::tables::cell(),
            skep_loadbalancer_redirectpolicy::cell(),
            Cell::module("node-name", "Name of the node").provide(|| NodeName::new("here")),
            Cell::module("health", "Health").provide(move || sink.clone()),
        ];
        let built = Hive::new(cells)
            .root::<Arc<FakeClient>>()
            .root::<Writer>()
            .plan(
                Settings::new()
                    .flag("enable-local-redirect-policy", "true")
                    .flag("lrp-address-matcher-cidrs", "169.254.0.0/16"),
            )
            .unwrap()
            .build()
            .unwrap();
        Self {
            api: built.get().unwrap(),
            writer: built.get().unwrap(),
            health,
            _running: built.start().await.unwrap(),
        }
    }

    fn put(&self, object: &Value) {
        self.api.add(&object.to_string()).unwrap();
    }

    /// Errors of all modules that are not well.
    fn errors(&self) -> String {
        let all = self.health.entries();
        let bad = all.iter().filter(|entry| entry.level == Level::Degraded);
        bad.map(|entry| format!("{entry:?}\n")).collect()
    }

    /// Frontends as `kind address [backends]`.
    fn frontends(&self) -> Vec<String> {
        let txn = self.writer.db().read();
        let rows = self.writer.frontends();
        rows.all(&txn)
            .map(|row| {
                let backends: Vec<String> = row
                    .backends
                    .iter()
                    .map(|backend| backend.params.address.to_string())
                    .collect();
                format!("{} {} [{}]", row.params.kind, row.address(), backends.join(" "))
            })
            .collect()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let wait = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(30), wait).await.is_err() {
            panic!("not in time: {what}\n{}\n{:#?}", self.errors(), self.frontends());
        }
    }
}

fn policy() -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumLocalRedirectPolicy",
        "metadata": {"namespace": "shop", "name": "lrp", "uid": "p"},
        "spec": {
            "redirectFrontend": {
                "addressMatcher": {"ip": "169.254.169.254", "toPorts": [{"port": "80", "protocol": "TCP"}]},
            },
            "redirectBackend": {
                "localEndpointSelector": {"matchLabels": {"app": "proxy"}},
                "toPorts": [{"port": "8080", "protocol": "TCP"}],
            },
        },
    })
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "proxy-0", "uid": "u", "labels": {"app": "proxy"}},
        "spec": {"nodeName": "here", "containers": [{"name": "c", "ports": [{"containerPort": 8080, "protocol": "TCP"}]}]},
        "status": {
            "phase": "Running", "podIPs": [{"ip": "10.1.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

const SERVED: &str = "LocalRedirect 169.254.169.254:80/TCP [10.1.0.1:8080/TCP]";

#[tokio::test]
async fn a_bad_policy_is_named_with_its_fault_and_another_goes_on() {
    let fixture = Fixture::new().await;
    fixture.put(&pod());
    fixture.put(&policy());
    fixture
        .until("the good policy is in force", |fixture| {
            fixture.frontends() == [SERVED]
        })
        .await;

    let faults: [(&str, Value, &str); 7] = [
        ("/spec/redirectFrontend", json!({}), "must have either"),
        (
            "/spec/redirectFrontend/addressMatcher/ip",
            json!("nowhere"),
            "`nowhere` is not an IP address",
        ),
        (
            "/spec/redirectFrontend/addressMatcher/ip",
            json!("8.8.8.8"),
            "outside of lrp-address-matcher-cidrs",
        ),
        (
            "/spec/redirectFrontend/addressMatcher/toPorts",
            json!([]),
            "is empty",
        ),
        (
            "/spec/redirectBackend/toPorts/0/port",
            json!("70000"),
            "is not a port number",
        ),
        (
            "/spec/redirectBackend/toPorts/0/protocol",
            json!("QUIC"),
            "unknown protocol",
        ),
        (
            "/spec/redirectFrontend",
            json!({"serviceMatcher": {"serviceName": "x", "namespace": "other"}}),
            "is not the namespace",
        ),
    ];
    for (field, value, fault) in faults {
        let mut bad = policy();
        bad["metadata"]["name"] = json!("bad");
        bad["metadata"]["uid"] = json!("b");
        *bad.pointer_mut(field).unwrap() = value;
        fixture.put(&bad);
        fixture
            .until(fault, |fixture| {
                let errors = fixture.errors();
                errors.contains("shop/bad") && errors.contains(fault)
            })
            .await;
        assert_eq!(fixture.frontends(), [SERVED], "{fault}");
        fixture.api.delete(&bad.to_string()).unwrap();
        fixture
            .until("it is forgotten", |fixture| {
                !fixture.errors().contains("shop/bad")
            })
            .await;
    }
}

#[tokio::test]
async fn a_policy_with_any_field_broken_harms_nobody() {
    let fixture = Fixture::new().await;
    fixture.put(&pod());
    fixture.put(&policy());
    let mut victim = policy();
    victim["metadata"]["name"] = json!("victim");
    victim["spec"]["redirectFrontend"]["addressMatcher"]["ip"] = json!("169.254.1.1");
    let garbage = [
        Value::Null,
        json!(true),
        json!(-1),
        json!("\u{0}\u{202e}"),
        json!(["x"]),
        json!({"": [null]}),
    ];
    let fields = [
        "/spec",
        "/spec/redirectFrontend",
        "/spec/redirectFrontend/addressMatcher",
        "/spec/redirectFrontend/addressMatcher/ip",
        "/spec/redirectFrontend/addressMatcher/toPorts",
        "/spec/redirectFrontend/addressMatcher/toPorts/0",
        "/spec/redirectFrontend/addressMatcher/toPorts/0/port",
        "/spec/redirectFrontend/addressMatcher/toPorts/0/protocol",
        "/spec/redirectBackend",
        "/spec/redirectBackend/localEndpointSelector",
        "/spec/redirectBackend/localEndpointSelector/matchLabels",
        "/spec/redirectBackend/localEndpointSelector/matchLabels/app",
        "/spec/redirectBackend/toPorts",
        "/spec/redirectBackend/toPorts/0",
        "/spec/redirectBackend/toPorts/0/port",
        "/metadata/uid",
    ];
    for field in fields {
        for value in &garbage {
            let mut broken = victim.clone();
            *broken.pointer_mut(field).unwrap() = value.clone();
            put_malformed(&fixture.api, &broken).unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fixture.put(&victim);
    fixture
        .until("both are served", |fixture| {
            let all = fixture.frontends();
            all.contains(&SERVED.to_owned())
                && all
                    .iter()
                    .any(|line| line.contains("169.254.1.1:80/TCP [10.1.0.1"))
        })
        .await;
    fixture
        .until("nothing is wrong", |fixture| fixture.errors().is_empty())
        .await;
}
