// SPDX-License-Identifier: Apache-2.0

//! Answers and policies in, identities of addresses and entries of policy maps out.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType, rdata::A},
};

use hive::{Cell, Hive, Running, Settings};
use jiff::Timestamp;
use serde_json::{Value, json};
use skep_base_settings::NodeName;
use skep_identity::NumericIdentity;
use skep_identity_cache::{IdentitySource, SecurityIdentity, Writer as IdentityWriter};
use skep_ipcache::{Writer as IpcacheWriter, lookup};
use skep_policy_maps::PolicyMaps;
use skep_policy_repository::Repository;
use skep_policy_sources::{Origin, PolicyRow};
use statedb::{Db, RwTable, Table};
use tokio::{
    net::UdpSocket,
    sync::Semaphore,
    time::{Instant, sleep},
};

use crate::{
    Answer, DnsProxy, DnsState, Names, ProxyEndpoint, ProxyEndpoints, Request, Server,
    metrics::{NameMetrics, ProxyMetrics, QueryMetrics},
    proxy::Upstream,
};

const WEB: u32 = 1000;
const DNS: u32 = 1001;
const ENDPOINT: u16 = 7;

struct Bench {
    hive: Running,
    names: Names,
    start: Timestamp,
}

fn new_table(db: Db) -> Result<RwTable<PolicyRow>, statedb::Error> {
    RwTable::builder("network-policies")
        .primary(PolicyRow::BY_KEY)
        .build(&db)
}

impl Bench {
    async fn start(settings: Settings, state: Option<&DnsState>) -> Self {
        let hive = Hive::new([
            statedb::cell(),
            skep_base_settings::cell(),
            skep_base_settings::cluster::cell(),
            skep_datapath_maps::in_memory_cell(),
            skep_node_local::cells::local_node(),
            skep_identity_cache::cell(),
            skep_ipcache::cell(),
            skep_policy_maps::cell(),
            skep_policy_repository::cell(),
            crate::cell(),
            Cell::module("fakes", "What stands for the rest of the agent")
                .provide(|| NodeName::new("n1"))
                .provide(new_table)
                .provide(statedb::read_only::<PolicyRow>),
        ]);
        let hive = hive
            .root::<Db>()
            .root::<PolicyMaps>()
            .root::<Repository>()
            .root::<IdentityWriter>()
            .root::<IpcacheWriter>()
            .root::<RwTable<PolicyRow>>()
            .root::<Table<SecurityIdentity>>()
            .root::<Arc<NameMetrics>>()
            .root::<Arc<ProxyMetrics>>()
            .root::<Arc<QueryMetrics>>()
            .root::<Names>();
        let hive = hive::testing::start_with(hive, settings).await;
        let names: Names = hive.get().unwrap();
        if let Some(state) = state {
            names.restore(ENDPOINT, state);
        }
        names.restored();
        let bench = Self {
            names,
            hive,
            start: Timestamp::now(),
        };
        bench.identity(WEB, "web");
        bench.identity(DNS, "dns");
        let maps: PolicyMaps = bench.hive.get().unwrap();
        maps.request([(ENDPOINT, NumericIdentity::new(WEB))]).unwrap();
        bench
    }

    fn at(&self, seconds: i64) -> Timestamp {
        self.start + jiff::SignedDuration::from_secs(seconds)
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

    /// A policy with these peers by name; and DNS rules.
    async fn policy(&self, name: &str, names: Value, dns: Value) {
        let servers = json!({
            "toEndpoints": [{"matchLabels": {"app": "dns"}}],
            "toPorts": [{"ports": [{"port": "53", "protocol": "ANY"}], "rules": {"dns": dns}}],
        });
        self.policy_of(name, json!([{"toFQDNs": names}, servers])).await;
    }

    async fn policy_of(&self, name: &str, egress: Value) {
        let db: Db = self.hive.get().unwrap();
        let table: RwTable<PolicyRow> = self.hive.get().unwrap();
        let object = json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"endpointSelector": {"matchLabels": {"app": "web"}}, "egress": egress},
        });
        let before = self.repository().generation();
        let mut txn = db.write(&[&table]);
        let row = PolicyRow {
            origin: Origin::CustomResource,
            kind: "CiliumNetworkPolicy",
            namespace: "shop".into(),
            name: name.into(),
            object: Arc::new(object),
        };
        table.insert(&mut txn, row).unwrap();
        txn.commit();
        let maps: PolicyMaps = self.hive.get().unwrap();
        self.until(|| {
            let revision = self.repository().with(|policies| policies.revision());
            let row = maps.get(&db.read(), ENDPOINT);
            let realized = row.and_then(|row| row.current());
            self.repository().generation() > before
                && !self.names.selectors().is_empty()
                && realized.is_some_and(|realized| realized.revision >= revision)
        })
        .await;
    }

    fn repository(&self) -> Repository {
        self.hive.get().unwrap()
    }

    async fn until(&self, is_true: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_true() {
            assert!(Instant::now() < deadline);
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn learn(&self, name: &str, addresses: &[&str], ttl: u32, at: i64) {
        let answer = Answer {
            name: name.to_owned(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ttl,
        };
        assert!(self.names.learn(ENDPOINT, &answer, self.at(at)).await);
    }

    /// Labels of the identity of an address.
    fn labels(&self, address: &str) -> Option<String> {
        let ipcache: IpcacheWriter = self.hive.get().unwrap();
        let identities: Table<SecurityIdentity> = self.hive.get().unwrap();
        let snapshot = ipcache.db().read();
        let table = ipcache.table();
        let row = lookup(&table, &snapshot, address.parse().unwrap(), 0)?;
        let identity = row.resolve()?.identity.get();
        let row = identities.get(&snapshot, SecurityIdentity::BY_ID.key(&identity))?;
        Some(row.labels.to_string())
    }

    /// Whether the policy map of the endpoint allows egress to an address.
    fn allows(&self, address: &str) -> bool {
        let ipcache: IpcacheWriter = self.hive.get().unwrap();
        let maps: PolicyMaps = self.hive.get().unwrap();
        let snapshot = ipcache.db().read();
        let table = ipcache.table();
        let Some(row) = lookup(&table, &snapshot, address.parse().unwrap(), 0) else {
            return false;
        };
        let identity = row.resolve().unwrap().identity.get();
        let policy = maps.get(&snapshot, ENDPOINT).unwrap();
        let desired = policy.desired.as_ref().unwrap();
        policy.current().is_some()
            && desired
                .state
                .entries()
                .iter()
                .any(|(key, entry)| key.direction == 1 && key.identity == identity && !entry.is_deny())
    }

    /// A pass of conntrack's garbage collection, which sees these addresses in use.
    fn pass(&self, at: i64, alive: &[&str]) {
        let alive: Vec<(u16, IpAddr)> = alive
            .iter()
            .map(|address| (ENDPOINT, address.parse().unwrap()))
            .collect();
        self.names.passed(self.at(at), self.at(at + 60), alive);
    }
}

fn settings() -> Settings {
    // No time is short on a busy machine.
    Settings::new().flag("tofqdns-proxy-response-max-delay", "30s")
}

fn any() -> Value {
    json!([{"matchPattern": "*"}])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_taken_when_policies_allow_its_addresses() {
    let bench = Bench::start(settings(), None).await;
    let names = json!([{"matchName": "www.example.com"}, {"matchPattern": "*.example.com"}]);
    bench.policy("p", names, any()).await;

    bench
        .learn("WWW.example.com", &["192.0.2.1", "2001:db8::1"], 5, 0)
        .await;
    assert!(bench.allows("192.0.2.1") && bench.allows("2001:db8::1"));
    let labels = bench.labels("192.0.2.1").unwrap();
    assert!(
        labels.contains("fqdn:www.example.com") && labels.contains("fqdn:*.example.com"),
        "{labels}"
    );

    bench.learn("api.example.com", &["192.0.2.2"], 5, 0).await;
    let labels = bench.labels("192.0.2.2").unwrap();
    assert!(
        labels.contains("fqdn:*.example.com") && !labels.contains("www"),
        "{labels}"
    );
    bench.learn("www.example.org", &["192.0.2.3"], 5, 0).await;
    assert!(!bench.allows("192.0.2.3"), "no rule has the name");
    // A rule has a name that was looked up before.
    bench
        .policy("q", json!([{"matchName": "www.example.org"}]), any())
        .await;
    bench.until(|| bench.allows("192.0.2.3")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_stay_while_connections_use_them() {
    let bench = Bench::start(settings(), None).await;
    bench.policy("p", json!([{"matchPattern": "*"}]), any()).await;
    bench.learn("a.example.", &["192.0.2.1", "192.0.2.2"], 5, 0).await;
    bench.learn("b.example.", &["192.0.2.3"], 5, 0).await;

    assert!(
        bench.names.collect(bench.at(10)).names.is_empty(),
        "due, and perhaps in use"
    );
    bench.pass(20, &["192.0.2.1"]);
    bench.pass(30, &["192.0.2.1"]);
    assert_eq!(bench.names.collect(bench.at(31)).names, ["b.example.".into()]);
    assert!(bench.allows("192.0.2.2"), "another address of the name is in use");
    bench.until(|| !bench.allows("192.0.2.3")).await;

    bench.pass(40, &[]);
    assert_eq!(bench.names.collect(bench.at(41)).names, ["a.example.".into()]);
    bench.until(|| !bench.allows("192.0.2.1")).await;
    assert_eq!(bench.names.lookups(Some(ENDPOINT)), Some(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_cleared_are_not_allowed_any_more() {
    let bench = Bench::start(settings(), None).await;
    bench.policy("p", json!([{"matchPattern": "*"}]), any()).await;
    bench.learn("a.example.", &["192.0.2.1"], 500, 0).await;
    bench
        .learn("b.example.", &["192.0.2.1", "192.0.2.2"], 500, 0)
        .await;

    bench.names.clear(bench.at(1), |name| name == "b.example.");

    bench.until(|| !bench.allows("192.0.2.2")).await;
    assert!(bench.allows("192.0.2.1"), "another name has it");
    bench.names.remove(ENDPOINT);
    bench.until(|| !bench.allows("192.0.2.1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_are_allowed_by_server_port_and_name() {
    let bench = Bench::start(settings(), None).await;
    let dns = json!([{"matchName": "www.example.com"}, {"matchPattern": "*.cluster.local"}]);
    bench.policy("p", any(), dns).await;
    let server = Server {
        protocol: 17,
        address: "10.0.0.10".parse().unwrap(),
        port: 53,
        identity: NumericIdentity::new(DNS),
    };
    let rules = bench.names.rules();

    assert!(rules.allow(ENDPOINT, &server, "www.example.com."));
    assert!(rules.allow(
        ENDPOINT,
        &Server {
            protocol: 6,
            ..server
        },
        "a.cluster.local."
    ));
    for (server, name) in [
        (server, "example.com."),
        (server, "a.b.cluster.local."),
        (Server { port: 54, ..server }, "www.example.com."),
        (
            Server {
                identity: NumericIdentity::new(WEB),
                ..server
            },
            "www.example.com.",
        ),
        (
            Server {
                protocol: 132,
                ..server
            },
            "a.example.org.",
        ),
    ] {
        assert!(!rules.allow(ENDPOINT, &server, name), "{server:?} {name}");
    }
    assert!(!rules.allow(8, &server, "www.example.com."), "another endpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_rules_survive_a_restart() {
    let bench = Bench::start(settings(), None).await;
    let dns = json!([{"matchName": "www.example.com"}]);
    bench.policy("p", any(), dns).await;
    bench.learn("a.example.", &["192.0.2.1"], 500, 0).await;
    bench.learn("b.example.", &["192.0.2.2"], 1, 0).await;
    bench.names.collect(bench.at(10));
    assert_eq!(bench.names.dirty(), [ENDPOINT]);
    bench.names.rules().used("10.0.0.10".parse().unwrap());
    let saved = bench.names.saved(ENDPOINT);
    assert_eq!(bench.names.dirty(), [0_u16; 0]);
    let text = serde_json::to_string(&saved).unwrap();
    assert!(
        text.contains(
            r#""DNSRulesV2":{"17170485":[{"Re":"^(?:www[.]example[.]com[.])$","IPs":{}}],"17891381":"#
        ),
        "{text}"
    );
    drop(bench);

    let state: DnsState = serde_json::from_str(&text).unwrap();
    assert_eq!(state, saved);
    let bench = Bench::start(settings(), Some(&state)).await;
    bench.policy("p", any(), any()).await;

    bench
        .until(|| bench.allows("192.0.2.1") && bench.allows("192.0.2.2"))
        .await;
    let shown = bench.names.lookups(Some(ENDPOINT)).unwrap();
    assert_eq!(shown.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_rules_answer_until_policies_are_known() {
    let bench = Bench::start(settings(), None).await;
    let text = r#"{"DNSHistory":null,"DNSZombies":{},"DNSRulesV2":{"17891381":[
        {"Re":"^(?:www[.]example[.]com[.])$","IPs":{"10.0.0.10":{}}},{"Re":"^(?:any[.])$","IPs":null},{"Re":"(","IPs":null}]}}"#;
    // An endpoint whose policy was not requested.
    bench.names.restore(9, &serde_json::from_str(text).unwrap());
    let rules = bench.names.rules();
    let server = |address: &str, port| Server {
        protocol: 17,
        address: address.parse().unwrap(),
        port,
        identity: NumericIdentity::new(DNS),
    };

    assert!(rules.allow(9, &server("10.0.0.10", 53), "www.example.com."));
    assert!(rules.allow(9, &server("10.0.0.11", 53), "any."));
    assert!(!rules.allow(9, &server("10.0.0.11", 53), "www.example.com."));
    assert!(!rules.allow(9, &server("10.0.0.10", 54), "any."));
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_names_with_a_ttl_of_a_second_come_and_go() {
    let bench = Bench::start(settings(), None).await;
    bench
        .policy("p", json!([{"matchPattern": "*.example"}]), any())
        .await;
    for number in 0..3000_u16 {
        let [high, low] = number.to_be_bytes();
        let answer = Answer {
            name: format!("n{number}.example."),
            addresses: vec![[198, 18, high, low].into()],
            ttl: 1,
        };
        bench.names.learn(ENDPOINT, &answer, bench.at(0)).await;
    }
    assert!(bench.allows("198.18.11.183"));

    bench.names.collect(bench.at(5));
    bench.pass(10, &[]);
    bench.pass(20, &["198.18.0.7"]);
    assert_eq!(bench.names.collect(bench.at(21)).names.len(), 2999);

    bench.until(|| !bench.allows("198.18.11.183")).await;
    assert!(bench.allows("198.18.0.7"));
}

#[derive(Debug)]
struct OneEndpoint;

impl ProxyEndpoints for OneEndpoint {
    fn by_address(&self, address: IpAddr) -> Option<ProxyEndpoint> {
        (address == IpAddr::from([10, 0, 0, 7])).then_some(ProxyEndpoint {
            id: ENDPOINT,
            identity: NumericIdentity::new(WEB),
        })
    }

    fn host(&self) -> Option<ProxyEndpoint> {
        None
    }
}

fn query(name: &str) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message
}

/// A server that sends what is forged before what is right.
async fn forging_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    #[expect(clippy::disallowed_methods, reason = "ends with the runtime of the test")]
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
            let query = Message::from_vec(&buffer[..length]).unwrap();
            let answer = |name: &str, id: u16, last: u8| {
                let mut answer = Message::response(id, OpCode::Query);
                let name = Name::from_ascii(name).unwrap();
                answer.add_query(Query::query(name.clone(), RecordType::A));
                let data = RData::A(A([192, 0, 2, last].into()));
                answer.add_answer(Record::from_rdata(name, 60, data));
                answer.to_vec().unwrap()
            };
            let (id, name) = (query.metadata.id, query.queries[0].name().to_ascii());
            for bytes in [
                answer(&name, id.wrapping_add(1), 66),
                answer("other.example.", id, 66),
                buffer[..length].to_vec(),
                vec![0xff; 60_000],
                answer(&name, id, 1)[..20].to_vec(),
                answer(&name, id, 1),
            ] {
                socket.send_to(&bytes, client).await.unwrap();
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_and_malformed_answers_are_passed_over() {
    let bench = Bench::start(settings(), None).await;
    let server = forging_server().await;
    let peers = json!({"toEntities": ["world"], "toPorts": [{
        "ports": [{"port": server.port().to_string(), "protocol": "UDP"}],
        "rules": {"dns": [{"matchPattern": "*.example"}]},
    }]});
    bench
        .policy_of(
            "world",
            json!([{"toFQDNs": [{"matchPattern": "*.example"}]}, peers]),
        )
        .await;
    let proxy = DnsProxy {
        names: bench.names.clone(),
        endpoints: Arc::new(OneEndpoint),
        ipcache: bench.hive.get().unwrap(),
        is_dual_stack: true,
        upstream: Upstream::new(false, None),
        log: None,
        reject_code: ResponseCode::Refused,
        permits: Some(Semaphore::new(1)),
        name_metrics: bench.hive.get().unwrap(),
        proxy_metrics: bench.hive.get().unwrap(),
        query_metrics: bench.hive.get().unwrap(),
    };
    let request = |client: &str| Request {
        client: client.parse().unwrap(),
        server,
        is_tcp: false,
    };
    let ask = async |client: &str, bytes: &[u8]| {
        let reply = proxy.answer(&request(client), bytes, &mut None).await?;
        Message::from_vec(&reply).ok()
    };
    let pod = "10.0.0.7:4000";

    let answered = ask(pod, &query("www.example.").to_vec().unwrap()).await.unwrap();
    assert_eq!((answered.metadata.id, answered.answers.len()), (7, 1));
    assert!(bench.allows("192.0.2.1") && !bench.allows("192.0.2.66"));

    let code = |message: Option<Message>| message.map(|message| message.metadata.response_code);
    let denied = ask(pod, &query("www.example.org.").to_vec().unwrap()).await;
    assert_eq!(code(denied), Some(ResponseCode::Refused));
    let unknown = ask("10.0.0.8:4000", &query("www.example.").to_vec().unwrap()).await;
    assert_eq!(code(unknown), Some(ResponseCode::ServFail));
    let mut two = query("www.example.");
    two.add_query(two.queries[0].clone());
    assert_eq!(
        code(ask(pod, &two.to_vec().unwrap()).await),
        Some(ResponseCode::ServFail)
    );
    let _taken = proxy.permits.as_ref().unwrap().acquire().await.unwrap();
    let over = ask(pod, &query("www.example.").to_vec().unwrap()).await;
    assert_eq!(code(over), Some(ResponseCode::ServFail), "one at a time");
}
