// SPDX-License-Identifier: Apache-2.0

//! Answers, and what Cilium's agent answers to the same requests: `tests/pods/testdata/config-*.json`,
//! `testdata/rest-config.json`.

use std::path::Path;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
};
use hive::{Hive, Running, Settings};
use skep_k8s_types::slim::NodeAddressType;
use skep_node_local::LocalNodeStore;
use statedb::RwTable;
use tower::ServiceExt as _;

use super::*;

fn devices(db: Db) -> Result<(RwTable<Device>, Table<Device>), statedb::Error> {
    let table = RwTable::builder("devices").primary(Device::BY_INDEX).build(&db)?;
    let reader = table.reader();
    Ok((table, reader))
}

fn addresses(
    db: Db,
) -> Result<(RwTable<InfrastructureAddress>, Table<InfrastructureAddress>), statedb::Error> {
    let table = RwTable::builder("infrastructure-addresses")
        .primary(InfrastructureAddress::BY_NAME)
        .build(&db)?;
    let reader = table.reader();
    Ok((table, reader))
}

/// An agent's API, on a node with devices of these MTUs and with these addresses.
struct Bench {
    running: Running,
    router: Router,
}

impl Bench {
    async fn start(flags: &[&str], devices_of: &[u32], node: &[&str]) -> Self {
        let configuration = Arc::new(Configuration::default());
        let settings = || Settings::new().args(flags.iter().copied());
        let all = Hive::new(crate::cells(configuration.clone()));
        configuration.fill(&all.plan(settings()).unwrap_or_else(|report| panic!("{report}")));
        let given = configuration.clone();
        let hive = || {
            let given = given.clone();
            Hive::new([
                statedb::cell(),
                skep_base_settings::cell(),
                skep_node_local::cells::local_node(),
                Cell::module("test-node", "This node")
                    .config::<PodConfig>()
                    .config::<skep_endpoint_ipam::Config>()
                    .provide(|| skep_base_settings::NodeName::new("n1"))
                    .provide(move || given.clone())
                    .provide(|| Arc::new(EventSwitch::default()))
                    .provide(options::runtime_options)
                    .provide(devices)
                    .provide(addresses)
                    .provide(|params: ConfigurationParams| Arc::new(params)),
            ])
            .root::<Arc<ConfigurationParams>>()
            .root::<LocalNodeStore>()
            .root::<RwTable<Device>>()
            .root::<RwTable<InfrastructureAddress>>()
        };
        let known: Vec<String> = hive()
            .plan(Settings::new())
            .unwrap_or_else(|report| panic!("{report}"))
            .settings()
            .into_iter()
            .map(|setting| setting.name)
            .collect();
        let is_known = |flag: &&&str| {
            let name = flag
                .trim_start_matches("--")
                .split('=')
                .next()
                .unwrap_or_default();
            known.iter().any(|known| known == name)
        };
        let of_bench = Settings::new().args(flags.iter().filter(is_known).copied());
        let running = hive::testing::start_with(hive(), of_bench).await;
        let params: Arc<ConfigurationParams> = running.get().unwrap();
        let table: RwTable<Device> = running.get().unwrap();
        let mut txn = params.db.write(&[&table]);
        for (index, mtu) in std::iter::once(&1280).chain(devices_of).enumerate() {
            let device = Device {
                index: index as u32 + 1,
                name: if index == 0 {
                    "lo".to_owned()
                } else {
                    format!("eth{}", index - 1)
                },
                mtu: *mtu,
                selected: index > 0,
                ..Device::default()
            };
            table.insert(&mut txn, device).unwrap();
        }
        txn.commit();
        let internal = |text: &&str| (NodeAddressType::InternalIp, text.parse().unwrap());
        let local: LocalNodeStore = running.get().unwrap();
        local
            .update(|local| local.addresses = node.iter().map(internal).collect())
            .unwrap();
        let changes = Router::new()
            .route("/v1/config", axum::routing::patch(options::change))
            .with_state(params.options.clone());
        let reads = Router::new().route("/v1/config", axum::routing::get(config));
        let router = changes.merge(reads.with_state((*params).clone()));
        Self { running, router }
    }

    async fn request(&self, request: Request<Body>) -> (u16, Value) {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn config(&self) -> Value {
        let request = Request::get("/v1/config").body(Body::empty()).unwrap();
        self.request(request).await.1
    }
}

#[tokio::test]
async fn routes_of_pods_leave_room_for_the_tunnel_and_interfaces_do_not() {
    let both = ["192.0.2.1", "2001:db8::1"];
    let tunnel = "--routing-mode=tunnel";
    for (flags, addresses, expected) in [
        (&["--routing-mode=native"][..], &both[..], (1400, 1400)),
        (&[tunnel][..], &both[..], (1400, 1350)),
        (&[tunnel, "--underlay-protocol=ipv6"][..], &both[..], (1400, 1330)),
        (&[tunnel][..], &both[1..], (1400, 1330)),
        (&[tunnel, "--mtu=8000"][..], &both[..], (8000, 7950)),
    ] {
        let bench = Bench::start(flags, &[9000, 1400], addresses).await;
        let status = &bench.config().await["status"];
        let found = (&status["deviceMTU"], &status["routeMTU"]);
        assert_eq!(found, (&expected.0.into(), &expected.1.into()), "{flags:?}");
        hive::testing::stop(bench.running).await;
    }
}

#[tokio::test]
async fn the_cni_plugin_learns_what_to_set_in_pods() {
    let bench = Bench::start(&[], &[1500], &[]).await;
    let defaults = &bench.config().await["status"];
    assert_eq!(defaults["packetizationLayerPMTUDMode"], "1");
    assert_eq!(defaults.get("enableRouteMTUForCNIChaining"), None);
    assert_eq!(defaults.get("ipLocalReservedPorts"), None);

    let flags = [
        "--enable-route-mtu-for-cni-chaining",
        "--packetization-layer-pmtud-mode=unset",
    ];
    let bench = Bench::start(&flags, &[1500], &[]).await;
    let set = &bench.config().await["status"];
    assert_eq!(set["enableRouteMTUForCNIChaining"], true);
    assert_eq!(set.get("packetizationLayerPMTUDMode"), None);
}

/// Settings of all recorded profiles, but for the socket and the kubeconfig.
const COMMON: &[&str] = &[
    "--enable-bpf-masquerade",
    "--identity-allocation-mode=crd",
    "--bpf-ct-global-any-max=8192",
    "--bpf-ct-global-tcp-max=16384",
    "--bpf-nat-global-max=24576",
    "--bpf-neigh-global-max=24576",
    "--bpf-map-dynamic-size-ratio=0",
    "--preallocate-bpf-maps",
    "--socket-path=/var/run/cilium/real.sock",
    "--k8s-kubeconfig-path=/etc/kubeconfig",
    "--kube-proxy-replacement",
    "--enable-source-ip-verification=false",
    "--enable-l7-proxy=false",
];
const KUBERNETES: &[&str] = &[
    "--ipam=kubernetes",
    "--k8s-require-ipv4-pod-cidr",
    "--k8s-require-ipv6-pod-cidr",
];
const NATIVE: &[&str] = &[
    "--routing-mode=native",
    "--ipv4-native-routing-cidr=10.0.0.0/8",
    "--ipv6-native-routing-cidr=fd00:10::/32",
];

type Texts = &'static [&'static str];

/// Profile, its settings, and paths whose values are others.
const PROFILES: &[(&str, &[Texts], Texts)] = &[
    ("A", &[KUBERNETES, NATIVE], &[]),
    ("A2", &[KUBERNETES, NATIVE], &[]),
    (
        "CH",
        &[
            KUBERNETES,
            NATIVE,
            &["--enable-endpoint-routes", "--bpf-lb-sock-hostns-only"],
        ],
        &[],
    ),
    (
        "CP",
        &[&[
            "--ipam=cluster-pool",
            "--k8s-require-ipv4-pod-cidr",
            "--k8s-require-ipv6-pod-cidr",
            "--routing-mode=tunnel",
            "--enable-cilium-endpoint-slice",
        ]],
        &[],
    ),
    (
        "D",
        &[
            NATIVE,
            &[
                "--ipam=delegated-plugin",
                "--local-router-ipv4=169.254.23.1",
                "--local-router-ipv6=fe80::1234",
                "--enable-health-checking=false",
                "--enable-endpoint-health-checking=false",
            ],
        ],
        &[],
    ),
    (
        "MP",
        &[&[
            "--ipam=multi-pool",
            "--routing-mode=native",
            "--ipv4-native-routing-cidr=10.0.0.0/8",
            "--ipv6-native-routing-cidr=fd00::/8",
        ]],
        &[],
    ),
    (
        "T",
        &[
            KUBERNETES,
            &[
                "--routing-mode=tunnel",
                "--enable-endpoint-routes",
                "--annotate-k8s-node",
            ],
        ],
        &[],
    ),
    (
        "V4",
        &[&[
            "--ipam=kubernetes",
            "--k8s-require-ipv4-pod-cidr",
            "--routing-mode=native",
            "--ipv4-native-routing-cidr=10.0.0.0/8",
            "--enable-ipv6=false",
        ]],
        &[],
    ),
    (
        "V6",
        &[&[
            "--ipam=kubernetes",
            "--k8s-require-ipv6-pod-cidr",
            "--routing-mode=native",
            "--ipv6-native-routing-cidr=fd00:10::/32",
            "--enable-ipv4=false",
        ]],
        &[],
    ),
    (
        "X",
        &[
            KUBERNETES,
            NATIVE,
            &[
                "--mtu=1400",
                "--container-ip-local-reserved-ports=8472,9000-9010",
                "--packetization-layer-pmtud-mode=always",
            ],
        ],
        // No BIG TCP.
        &["/GROIPv4MaxSize", "/GROMaxSize", "/GSOIPv4MaxSize", "/GSOMaxSize"],
    ),
];

fn paths(prefix: &str, value: &Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, value) in members {
                paths(&format!("{prefix}/{name}"), value, all);
            }
        }
        value => _ = all.insert(prefix.to_owned(), value.clone()),
    }
}

#[tokio::test]
async fn configurations_are_those_of_ciliums_agents() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pods/testdata");
    for (profile, groups, others) in PROFILES {
        let file = folder.join(format!("config-{profile}.json"));
        let text = std::fs::read_to_string(&file).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let mut text = document["body"].to_string();
        for (name, value) in document["bindings"].as_object().unwrap() {
            text = text.replace(&format!("${{{name}}}"), value.as_str().unwrap_or_default());
        }
        let expected: Value = serde_json::from_str(&text).unwrap();
        let addressing = &expected["status"]["addressing"];
        let flags: Vec<&str> = groups.iter().copied().flatten().chain(COMMON).copied().collect();

        let bench = Bench::start(&flags, &[1500], &["172.30.40.1", "fd00:30:40::1"]).await;
        let params: Arc<ConfigurationParams> = bench.running.get().unwrap();
        let local: LocalNodeStore = bench.running.get().unwrap();
        let table: RwTable<InfrastructureAddress> = bench.running.get().unwrap();
        let mut txn = params.db.write(&[&table]);
        for family in ["ipv4", "ipv6"] {
            let Some(ip) = addressing[family]["ip"].as_str() else {
                continue;
            };
            let row = InfrastructureAddress {
                owner: NodeOwner::Router,
                ip: ip.parse().unwrap(),
            };
            table.insert(&mut txn, row).unwrap();
        }
        txn.commit();
        for family in ["ipv4", "ipv6"] {
            if let Some(cidr) = addressing[family]["alloc-range"].as_str() {
                let cidr = cidr.parse().unwrap();
                local.update(|local| local.pod_cidrs.push(cidr)).unwrap();
            }
        }
        let found = bench.config().await;

        let flat = |value: &Value| {
            let mut all = BTreeMap::new();
            paths("", value, &mut all);
            all.retain(|path, _| {
                !path.ends_with("/CreationTime") && !others.iter().any(|other| path.ends_with(other))
            });
            all
        };
        let (expected, found) = (flat(&expected), flat(&found));
        let names = expected.keys().chain(found.keys());
        let differ = names.filter(|path| expected.get(*path) != found.get(*path));
        let differ: Vec<String> = differ
            .map(|path| format!("{path}: {:?}, not {:?}", found.get(path), expected.get(path)))
            .collect();
        assert_eq!(differ, [""; 0], "{profile}");
        hive::testing::stop(bench.running).await;
    }
}

#[tokio::test]
async fn options_change_as_those_of_ciliums_agent() {
    let bench = Bench::start(&["--enable-source-ip-verification=false"], &[1500], &[]).await;
    let recorded: Value = serde_json::from_str(include_str!("../testdata/rest-config.json")).unwrap();

    for exchange in recorded["requests"].as_array().unwrap() {
        let (wanted, expected) = (&exchange["request"], &exchange["response"]);
        let method = wanted["method"].as_str().unwrap();
        if method == "PUT" {
            // Refused before any handler.
            continue;
        }
        let (body, has_type) = match (&wanted["body"], wanted["raw_body"].as_str()) {
            (_, Some(raw)) => (raw.to_owned(), true),
            (Value::Null, None) => (String::new(), false),
            (body, None) => (body.to_string(), true),
        };
        let mut request = Request::builder().method(method).uri("/v1/config");
        if has_type {
            request = request.header("content-type", "application/json");
        }
        let (status, mut answer) = bench.request(request.body(body.into()).unwrap()).await;
        if method == "GET" {
            answer = serde_json::json!({ "spec": answer["spec"], "realized": answer["status"]["realized"] });
        }
        assert_eq!(
            (status, &answer),
            (expected["status"].as_u64().unwrap() as u16, &expected["json"]),
            "{wanted}"
        );
    }
}

#[tokio::test]
async fn events_of_programs_follow_the_options() {
    let bench = Bench::start(&["--monitor-aggregation=medium"], &[1500], &[]).await;
    let switch: Arc<EventSwitch> = bench.running.get().unwrap();
    let events = switch.subscribe();
    assert_eq!(events.borrow().options, None);

    let body = r#"{"options": {"Debug": "1", "TraceNotification": "off", "MonitorAggregationLevel": "max"}}"#;
    let request = Request::patch("/v1/config").header("content-type", "application/json");
    let (status, _) = bench.request(request.body(body.into()).unwrap()).await;

    assert_eq!(status, 200);
    let events = events.borrow().options.unwrap();
    assert!(events.debug && !events.traces && events.drops && events.verdicts);
    assert_eq!(events.aggregation, 4);
}
