// SPDX-License-Identifier: Apache-2.0

//! Objects of an API server, identities and requests in, entries of policy maps out.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{future::Future, sync::Arc, time::Duration};

use hive::{Cell, Hive, Running, Settings};
use serde_json::{Value, json};
use skep_base_metrics::{MetricSet as _, Registry, exposition};
use skep_base_settings::NodeName;
use skep_bpf_maps::policy::{PolicyEntry, PolicyKey};
use skep_identity::NumericIdentity;
use skep_identity_cache::{IdentitySource, SecurityIdentity, Writer as IdentityWriter};
use skep_k8s_client::Client;
use skep_k8s_crds::definitions;
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Kind;
use skep_loadbalancer_model::{
    Writer as ServiceWriter,
    types::{Service, ServiceName},
};
use skep_policy_maps::PolicyMaps;
use statedb::Db;
use tokio::time::{Instant, sleep};

use crate::{Repository, features::FeatureMetrics, metrics::PolicyMetrics};

const POLICIES: Kind = Kind::new(
    "cilium.io",
    "v2",
    "CiliumNetworkPolicy",
    "ciliumnetworkpolicies",
    true,
);
const WEB: u32 = 1000;
const API: u32 = 1001;
const ENDPOINT: u16 = 7;

struct Bench {
    cluster: TestCluster,
    hive: Running,
}

impl Bench {
    async fn start() -> Self {
        let cluster = TestCluster::new();
        let kinds = [
            definitions::cilium_network_policy(),
            definitions::cilium_cidr_group(),
        ];
        skep_k8s_crds::register_all(&**cluster.client(), &kinds)
            .await
            .unwrap();
        cluster.namespace("shop").await;
        let client = cluster.client().clone();
        let cells = [
            statedb::cell(),
            skep_base_settings::cell(),
            skep_base_settings::cluster::cell(),
            skep_datapath_maps::in_memory_cell(),
            skep_node_local::cells::local_node(),
            skep_identity_cache::cell(),
            skep_ipcache::cell(),
            skep_loadbalancer_model::cell(),
            skep_policy_maps::cell(),
            skep_policy_sources::cell(),
            crate::cell(),
            Cell::module("fakes", "What stands for the rest of the agent")
                .provide(|| NodeName::new("n1"))
                .provide(move || -> Arc<dyn Client> { client.clone() }),
        ];
        let hive = Hive::new(cells)
            .root::<Db>()
            .root::<PolicyMaps>()
            .root::<Repository>()
            .root::<ServiceWriter>()
            .root::<IdentityWriter>()
            .root::<Arc<PolicyMetrics>>()
            .root::<Arc<FeatureMetrics>>();
        let hive = hive::testing::start_with(hive, Settings::new()).await;
        let bench = Self { cluster, hive };
        bench.identity(WEB, "web");
        bench.identity(API, "api");
        bench
            .maps()
            .request([(ENDPOINT, NumericIdentity::new(WEB))])
            .unwrap();
        bench
    }

    fn maps(&self) -> PolicyMaps {
        self.hive.get().unwrap()
    }

    fn identity(&self, id: u32, app: &str) {
        let writer: IdentityWriter = self.hive.get().unwrap();
        let mut txn = writer.write();
        let labels = [
            format!("k8s:app={app}"),
            "k8s:io.cilium.k8s.policy.cluster=default".to_owned(),
            "k8s:io.kubernetes.pod.namespace=shop".to_owned(),
        ];
        let row = SecurityIdentity {
            id: NumericIdentity::new(id),
            source: IdentitySource::Kubernetes,
            cluster: "default".into(),
            labels: Arc::new(labels.iter().map(|label| label.parse().unwrap()).collect()),
            object: Default::default(),
        };
        writer.upsert(&mut txn, row).unwrap();
        txn.commit();
    }

    /// What is realized, as `I 1001 8080/TCP allow`.
    fn realized(&self) -> Vec<String> {
        let db: Db = self.hive.get().unwrap();
        let row = self.maps().get(&db.read(), ENDPOINT);
        let Some(row) = row.filter(|row| row.current().is_some()) else {
            return Vec::new();
        };
        let desired = row.desired.as_ref().unwrap();
        let entries = desired.state.entries().iter();
        let mut texts: Vec<_> = entries.map(|(key, entry)| text(key, entry)).collect();
        texts.sort_unstable();
        texts
    }

    async fn expect(&self, wanted: &[&str]) {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        until(
            || async { self.realized() == wanted },
            || {
                let faults = self.repository().0.state.lock().faults();
                format!("{:?}, wanted {wanted:?}; faults {faults:?}", self.realized())
            },
        )
        .await;
    }

    fn repository(&self) -> Repository {
        self.hive.get().unwrap()
    }

    /// A Service that selects these pods.
    fn service(&self, app: &str) {
        let writer: ServiceWriter = self.hive.get().unwrap();
        let mut txn = writer.write();
        let service = Service {
            name: ServiceName::new("shop", "db"),
            selector: [("app", app)].into_iter().collect(),
            ..Service::default()
        };
        writer.upsert_service(&mut txn, service).unwrap();
        txn.commit();
    }

    /// Metrics, as `/metrics` shows them.
    fn metrics(&self) -> String {
        let metrics: Arc<PolicyMetrics> = self.hive.get().unwrap();
        exposition(&Registry::new(metrics.metrics(), &[]).unwrap())
    }

    async fn policy(&self, name: &str, spec: Value) {
        let object = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec});
        self.cluster.create(&POLICIES, object).await;
    }
}

fn text(key: &PolicyKey, entry: &PolicyEntry) -> String {
    let direction = if key.direction == 0 { 'I' } else { 'E' };
    let verdict = if entry.is_deny() { "deny" } else { "allow" };
    format!("{direction} {} {} {verdict}", key.identity, key.port_text())
}

async fn until<F: Future<Output = bool>>(mut is_true: impl FnMut() -> F, what: impl Fn() -> String) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_true().await {
        assert!(Instant::now() < deadline, "{}", what());
        sleep(Duration::from_millis(10)).await;
    }
}

fn spec(rule: Value) -> Value {
    json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [rule]})
}

fn ports(port: &str) -> Value {
    json!([{"ports": [{"port": port, "protocol": "TCP"}]}])
}

const OPEN: [&str; 2] = ["I 0 ANY allow", "E 0 ANY allow"];

#[tokio::test(flavor = "multi_thread")]
async fn rules_identities_and_objects_change_the_map() {
    let bench = Bench::start().await;
    bench.expect(&OPEN).await;

    let peers = json!([{"matchLabels": {"app": "api"}}]);
    bench
        .policy("p", spec(json!({"fromEndpoints": peers, "toPorts": ports("80")})))
        .await;

    bench
        .expect(&["I 1 ANY allow", "I 1001 80/TCP allow", "E 0 ANY allow"])
        .await;
    bench.identity(1002, "api");
    let both = [
        "I 1 ANY allow",
        "I 1001 80/TCP allow",
        "I 1002 80/TCP allow",
        "E 0 ANY allow",
    ];
    bench.expect(&both).await;
    let bad = json!({"spec": {"ingress": [{"fromEndpoints": [{}], "fromCIDR": ["192.0.2.0/24"]}]}});
    bench.cluster.patch(&POLICIES, "shop", "p", bad).await;
    until(
        || async { bench.repository().invalid().len() == 1 },
        || "it is named".to_owned(),
    )
    .await;
    bench.expect(&both).await;
    bench.cluster.delete(&POLICIES, "shop", "p").await;
    bench.expect(&OPEN).await;
    assert!(bench.repository().invalid().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_have_identities_for_as_long_as_objects_name_them() {
    let bench = Bench::start().await;
    let db: Db = bench.hive.get().unwrap();
    let ipcache: skep_ipcache::Writer = bench.hive.get().unwrap();
    let identity = |net: &str| {
        let key =
            skep_ipcache::IpcacheEntry::BY_PREFIX.key(&skep_ipcache::Prefix::cidr(net.parse().unwrap()));
        let table = ipcache.table();
        Some(table.get(&db.read(), key)?.resolve()?.identity.get())
    };

    bench
        .policy("p", spec(json!({"fromCIDR": ["192.0.2.0/24"]})))
        .await;

    until(
        || async { identity("192.0.2.0/24").is_some() },
        || "it is claimed".to_owned(),
    )
    .await;
    let id = identity("192.0.2.0/24").unwrap();
    assert!(id >= 1 << 24, "{id}");
    bench
        .expect(&["I 1 ANY allow", &format!("I {id} ANY allow"), "E 0 ANY allow"])
        .await;
    bench.cluster.delete(&POLICIES, "shop", "p").await;
    bench.expect(&OPEN).await;
    until(
        || async { identity("192.0.2.0/24").is_none() },
        || "it is given back".to_owned(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_for_a_proxy_is_dropped_and_named() {
    let bench = Bench::start().await;
    let http =
        json!([{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"method": "GET"}]}}]);

    bench.policy("p", spec(json!({"toPorts": http}))).await;

    bench
        .expect(&["I 0 80/TCP deny", "I 1 ANY allow", "E 0 ANY allow"])
        .await;
    let faults = bench.repository().0.state.lock().faults();
    assert_eq!(
        faults,
        ["endpoint 7, identity 1000: 1 redirects are dropped, there is no proxy"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_rules_name_are_followed() {
    let bench = Bench::start().await;
    let service = json!([{"k8sService": {"namespace": "shop", "serviceName": "db"}}]);
    let spec = json!({"endpointSelector": {}, "egress": [{"toServices": service, "toPorts": ports("80")}]});

    bench.policy("p", spec).await;

    bench.expect(&["I 0 ANY allow"]).await;
    bench.service("api");
    bench.expect(&["I 0 ANY allow", "E 1001 80/TCP allow"]).await;
    bench.service("web");
    bench.expect(&["I 0 ANY allow", "E 1000 80/TCP allow"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_its_identity_after_policies_know_it() {
    use skep_ipcache::IdentityUser as _;

    let bench = Bench::start().await;
    let peers = json!([{"matchLabels": {"app": "new"}}]);
    bench.policy("p", spec(json!({"fromEndpoints": peers}))).await;
    bench.expect(&["I 1 ANY allow", "E 0 ANY allow"]).await;
    let maps = crate::barrier::Maps::new(bench.repository(), bench.maps());
    let (db, table) = (
        bench.repository().0.db.clone(),
        bench.repository().0.identities.clone(),
    );
    for id in 2000..2100 {
        bench.identity(id, "new");
        let revision = table.revision(&db.read());

        maps.wait(revision).await;

        let wanted = format!("I {id} ANY allow");
        assert!(bench.realized().contains(&wanted), "{wanted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mode_of_enforcement_changes_while_the_agent_runs() {
    let bench = Bench::start().await;
    bench.expect(&OPEN).await;

    bench
        .repository()
        .set_enforcement(crate::PolicyMode::Always)
        .unwrap();
    // Without a rule that selects it, not even the host may reach it.
    bench.expect(&[]).await;

    bench
        .repository()
        .set_enforcement(crate::PolicyMode::Never)
        .unwrap();
    bench.expect(&OPEN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_networks_in_one_rule_are_entries_of_the_map() {
    let bench = Bench::start().await;
    bench.expect(&OPEN).await;
    let networks: Vec<String> = (0..10_000_u32)
        .map(|number| format!("10.{}.{}.0/24", number / 256, number % 256))
        .collect();

    bench.policy("many", spec(json!({"fromCIDR": networks}))).await;

    // Each network, the host, and what leaves.
    let count = || bench.realized().len();
    until(|| async { count() == 10_002 }, || format!("{} entries", count())).await;
    assert_eq!(bench.repository().0.state.lock().faults(), [""; 0]);
    bench.cluster.delete(&POLICIES, "shop", "many").await;
    bench.expect(&OPEN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_storm_of_labels_the_map_is_that_of_the_last_ones() {
    let bench = Bench::start().await;
    let peers = json!([{"matchLabels": {"app": "api"}}]);
    bench.policy("p", spec(json!({"fromEndpoints": peers}))).await;
    bench
        .expect(&["I 1 ANY allow", "I 1001 ANY allow", "E 0 ANY allow"])
        .await;

    // Identities come, and get other labels, while the rules change.
    for round in 0..300_u32 {
        let app = if round % 2 == 0 { "api" } else { "other" };
        bench.identity(2000 + round % 10, app);
        if round % 50 == 0 {
            let peers = json!([{"matchLabels": {"app": if round % 100 == 0 { "other" } else { "api" }}}]);
            let change = json!({"spec": {"ingress": [{"fromEndpoints": peers}]}});
            bench.cluster.patch(&POLICIES, "shop", "p", change).await;
        }
    }

    // The last change of rules selects `api`, which even rounds have, and the first peer.
    let mut wanted = vec!["I 1 ANY allow", "E 0 ANY allow", "I 1001 ANY allow"];
    wanted.extend([
        "I 2000 ANY allow",
        "I 2002 ANY allow",
        "I 2004 ANY allow",
        "I 2006 ANY allow",
        "I 2008 ANY allow",
    ]);
    bench.expect(&wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn identities_may_come_before_or_after_the_rules_that_select_them() {
    let late = Bench::start().await;
    let peers = json!([{"matchLabels": {"app": "peer"}}, {"matchLabels": {"app": "other"}}]);
    let rule = json!({"fromEndpoints": peers, "toPorts": ports("80")});
    let deny = json!({"fromEndpoints": [{"matchLabels": {"app": "other"}}]});
    let mut spec = spec(rule);
    spec["ingressDeny"] = json!([deny]);
    let wanted = [
        "I 1 ANY allow",
        "I 2000 80/TCP allow",
        "I 2001 ANY deny",
        "E 0 ANY allow",
    ];

    late.policy("p", spec.clone()).await;
    late.expect(&["I 1 ANY allow", "E 0 ANY allow"]).await;
    for (id, app) in [(2000, "peer"), (2001, "other")] {
        late.identity(id, app);
    }
    late.expect(&wanted).await;

    let early = Bench::start().await;
    for (id, app) in [(2000, "peer"), (2001, "other")] {
        early.identity(id, app);
    }
    early.policy("p", spec).await;
    early.expect(&wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_ranges_and_networks_are_as_their_union_says() {
    let bench = Bench::start().await;
    let range = |from: &str, to: u16| json!([{"ports": [{"port": from, "endPort": to, "protocol": "TCP"}]}]);
    let peers = json!([{"matchLabels": {"app": "api"}}]);
    let mut spec = spec(json!({"fromEndpoints": peers, "toPorts": range("80", 95)}));
    spec["ingress"] = json!([
        {"fromEndpoints": peers, "toPorts": range("80", 95)},
        {"fromEndpoints": peers, "toPorts": range("88", 103)},
        {"fromEndpoints": peers, "toPorts": range("64", 127)},
    ]);
    spec["ingressDeny"] = json!([{"toPorts": range("90", 91)}]);

    bench.policy("p", spec).await;

    bench
        .expect(&[
            "I 0 90-91/TCP deny",
            "I 1 ANY allow",
            "I 1001 64-127/TCP allow",
            "I 1001 80-95/TCP allow",
            "I 1001 88-95/TCP allow",
            "I 1001 96-103/TCP allow",
            "E 0 ANY allow",
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_how_many_identities_selectors_select() {
    let bench = Bench::start().await;
    let peers = json!([{"matchLabels": {"app": "api"}}]);
    for id in 2000..2005 {
        bench.identity(id, "api");
    }
    let mut spec = spec(json!({"fromEndpoints": peers}));
    spec["egress"] = json!([{"toEntities": ["world", "cluster"]}]);
    bench.policy("p", spec).await;

    // The peers; all pods of the cluster.
    let wanted = [
        "policy_selector_match_count_max{class=\"other\"} 6",
        "policy_selector_match_count_max{class=\"cluster\"} 7",
        "policy_selector_match_count_max{class=\"fqdn\"} 0",
    ];
    let is_shown = || wanted.iter().all(|line| bench.metrics().contains(line));
    until(|| async { is_shown() }, || bench.metrics()).await;
    let text = bench.metrics();
    for series in [
        "policy_selector_cache_selectors{type=\"peer\"}",
        "operation=\"identity_updates\",scope=\"lock\"",
    ] {
        assert!(text.contains(series), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn features_of_policies_are_counted_when_they_come_and_go() {
    let bench = Bench::start().await;
    let dns = json!({"toPorts": [{"ports": [{"port": "53"}], "rules": {"dns": [{"matchPattern": "*"}]}}]});
    let mut spec = spec(json!({"fromCIDRSet": [{"cidrGroupRef": "office"}]}));
    spec["egress"] = json!([{"toFQDNs": [{"matchName": "example.org"}]}, dns]);
    spec["ingressDeny"] = json!([{"toPorts": ports("25")}]);
    bench.policy("p", spec).await;

    let text = || {
        let metrics: Arc<FeatureMetrics> = bench.hive.get().unwrap();
        exposition(&Registry::new(metrics.metrics(), &[]).unwrap())
    };
    let has = |feature: &str, action: &str, count: u8| {
        let line =
            format!("feature_network_policies_{feature}_policies_total{{action=\"{action}\"}} {count}\n");
        text().contains(&line)
    };
    let used = ["l3", "dns", "fqdn", "deny", "ingress_cidr_group"];
    let unused = [
        "host_network",
        "http",
        "mutual_auth",
        "sni_allow_list",
        "non_defaultdeny",
    ];
    let is_counted = |action: &str| used.iter().all(|feature| has(feature, action, 1));
    until(|| async { is_counted("add") }, text).await;
    assert!(used.iter().all(|feature| has(feature, "delete", 0)), "{}", text());
    bench.cluster.delete(&POLICIES, "shop", "p").await;
    until(|| async { is_counted("delete") }, text).await;

    for action in ["add", "delete"] {
        let objects = format!("network_policies_cilium_network_policies_total{{action=\"{action}\"}} 1\n");
        assert!(text().contains(&objects), "{}", text());
        for feature in unused {
            assert!(has(feature, action, 0), "{feature}: {}", text());
        }
    }
}
