// SPDX-License-Identifier: Apache-2.0

//! Migration on living nodes: agents are swapped under open connections, with the state directory in Cilium's form before
//! and after; `skep migrate` goes node by node, from another plugin and from kube-proxy's rules.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use skep_e2e::{AT_PACKETS, TestLab, ask, lab_options, program};
use skep_k8s_client::{ListOptions, WriteOptions};
use skep_k8s_types::Kind;
use skep_lab::{
    command,
    install::{RELEASE, TOOLS_IMAGE},
    lab_options::LabOptions,
    session::{CallMode, at, client_pod, cluster_ips, echo_pod},
};

/// Connections of each kind: 10,000 in all.
const CONNECTIONS: usize = 2_500;
/// Fields of `ep_config.json` as Cilium 1.20 writes it, in its order.
const FIELDS: [&str; 28] = [
    "ID",
    "dockerID",
    "ContainerNetnsPath",
    "IfName",
    "IfIndex",
    "ParentIfIndex",
    "ContainerIfName",
    "DisableLegacyIdentifiers",
    "OpLabels",
    "LXCMAC",
    "IPv6",
    "IPv6IPAMPool",
    "IPv4",
    "IPv4IPAMPool",
    "NodeMAC",
    "SecLabel",
    "Options",
    "DNSHistory",
    "DNSZombies",
    "K8sPodName",
    "K8sNamespace",
    "K8sUID",
    "DatapathConfiguration",
    "CiliumEndpointUID",
    "Properties",
    "NetnsCookie",
    "RTInfo",
    "CEPOwner",
];
/// Maps with type, key size and value size, as Cilium 1.16 to 1.20 has them.
const MAPS: [(&str, &str, u64, u64); 8] = [
    ("cilium_ct4_global", "lru_hash", 14, 56),
    ("cilium_ct_any4_global", "lru_hash", 14, 56),
    ("cilium_ct6_global", "lru_hash", 38, 56),
    ("cilium_ipcache_v2", "lpm_trie", 24, 24),
    ("cilium_lb4_services_v2", "hash", 12, 12),
    ("cilium_lb4_reverse_nat", "hash", 2, 6),
    ("cilium_lxc", "hash", 20, 48),
    ("cilium_metrics", "percpu_hash", 8, 16),
];

fn raise_limit(process: u32) {
    let done = Command::new("prlimit")
        .args(["--pid", &process.to_string(), "--nofile=20000:20000"])
        .status();
    assert!(done.is_ok_and(|status| status.success()), "prlimit of {process}");
}

/// The state directory of the agent of a node.
fn state_directory(lab: &TestLab, node: &str) -> PathBuf {
    let holder = lab.session.state().unwrap().nodes[node];
    PathBuf::from(format!("/proc/{holder}/root")).join("run/cilium/state")
}

/// Endpoints of the state directory, by their number.
fn saved(directory: &Path) -> BTreeMap<u16, Value> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let text = fs::read(entry.path().join("ep_config.json")).ok()?;
            Some((id, serde_json::from_slice(&text).unwrap()))
        })
        .collect()
}

/// Rewrites the state directory as Cilium leaves it: its order of fields, and the files that only it has.
fn as_cilium_leaves_it(directory: &Path) {
    for (id, config) in saved(directory) {
        let folder = directory.join(id.to_string());
        let known = FIELDS
            .iter()
            .filter_map(|field| Some(((*field).to_owned(), config.get(*field)?.clone())));
        let mut form: Map<String, Value> = known.collect();
        form.entry("DNSZombies").or_insert(json!({}));
        form.entry("Properties").or_insert(json!({}));
        form.insert("FieldOfAnotherVersion".to_owned(), json!({"a": [1]}));
        fs::write(folder.join("ep_config.json"), serde_json::to_vec(&form).unwrap()).unwrap();
        fs::write(folder.join(".ep_config.json2794542108838859637"), "{").unwrap();
        fs::write(folder.join("ep_config.h"), "/* */\n").unwrap();
        fs::write(folder.join("bpf_lxc.json"), "{}").unwrap();
        fs::write(folder.join("template.txt"), "e612581734d537c6").unwrap();
        // An interrupted build of this endpoint.
        fs::create_dir_all(directory.join(format!("{id}_next"))).unwrap();
    }
    for (file, text) in [
        ("globals/node_config.h", "/* */\n"),
        ("templates/9b8f9bc5/bpf_host.o", ""),
        ("bpf/eth0/bpf_host.json", "{}"),
        ("device-reconciler.wal", ""),
        ("route-reconciler.wal", ""),
        ("proxy_ports_state.json", "[]"),
        ("viper-agent-config.yaml", "{}\n"),
        ("agent-runtime-config-1.json", "{}"),
    ] {
        let path = directory.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if !path.exists() {
            fs::write(path, text).unwrap();
        }
    }
}

/// Whether Cilium finds what it left: files in its form, maps in its layout.
async fn check_for_cilium(lab: &TestLab, node: &str, before: &BTreeMap<u16, Value>) {
    let now = saved(&state_directory(lab, node));
    for (id, old) in before {
        let new = &now[id];
        for field in FIELDS.iter().filter(|field| !old[**field].is_null()) {
            assert!(!new[*field].is_null(), "endpoint {id} has no {field}: {new}");
        }
        for field in [
            "dockerID",
            "IfName",
            "LXCMAC",
            "NodeMAC",
            "IPv4",
            "IPv6",
            "K8sPodName",
        ] {
            assert_eq!(new[field], old[field], "endpoint {id}: {field}");
        }
        assert_eq!(new["SecLabel"]["id"], old["SecLabel"]["id"], "endpoint {id}");
    }
    for (name, kind, key, value) in MAPS {
        let path = format!("/sys/fs/bpf/tc/globals/{name}");
        let text = lab
            .run(node, &["bpftool", "-j", "map", "show", "pinned", &path])
            .await;
        let map: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&map["type"], &map["bytes_key"], &map["bytes_value"]),
            (&json!(kind), &json!(key), &json!(value)),
            "{name}: {map}"
        );
    }
    let pins = lab.run(node, &["find", "/sys/fs/bpf", "-type", "f"]).await;
    let of_pods = before.iter().filter(|(_, config)| config["K8sPodName"] != "");
    for (id, _) in of_pods {
        let policy = format!("cilium_policy_v2_{id:05}");
        assert!(pins.contains(&policy), "no {policy}: {pins}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_outlive_a_swap_of_agents_and_back() {
    raise_limit(std::process::id());
    let lab = TestLab::up_with("swap", lab_options(2, &[AT_PACKETS], None)).await;
    lab.create_all([
        client_pod("client", "c1-n1"),
        echo_pod("near", "near", "c1-n1"),
        echo_pod("far-0", "shop", "c1-n2"),
    ])
    .await;
    let shop = lab.create_shop(json!({})).await;
    lab.endpoints("c1-n1", 2).await;
    let far = lab.endpoints("c1-n2", 1).await;
    for server in ["default/near", "default/far-0"] {
        raise_limit(lab.place(server).process());
    }
    let pod = &far[0]["status"]["networking"]["addressing"][0];
    let address = |text: &Value| -> IpAddr { text.as_str().unwrap().parse().unwrap() };
    let mut targets = vec![
        SocketAddr::new(address(&pod["ipv4"]), 8080),
        SocketAddr::new(address(&pod["ipv6"]), 8080),
    ];
    targets.extend(
        cluster_ips(&shop)
            .iter()
            .map(|ip| SocketAddr::new(ip.parse().unwrap(), 80)),
    );
    let client = lab.place("default/client");
    lab.wait("service and pods answer", || async {
        targets.iter().all(|to| client.call(*to).is_ok())
    })
    .await;
    let mut streams: Vec<TcpStream> = Vec::new();
    for to in &targets {
        streams.extend(client.connect_all(*to, CONNECTIONS).unwrap());
    }
    let all_answer = |when: &str| {
        let failed: Vec<_> = streams
            .iter()
            .filter_map(|stream| ask(stream, "hello").err())
            .collect();
        assert!(
            failed.is_empty(),
            "{when}: {} connections: {:?}",
            failed.len(),
            failed[0]
        );
    };
    all_answer("before");
    // Some go on all the time: the longest pause is printed.
    let moving: Vec<TcpStream> = targets.iter().map(|to| client.connect(*to).unwrap()).collect();
    let ends = AtomicBool::new(false);
    let pauses = std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !ends.load(Ordering::Relaxed) {
                for stream in &moving {
                    let begun = Instant::now();
                    ask(stream, "on").unwrap();
                    longest = longest.max(begun.elapsed());
                }
            }
            longest
        });
        let runtime = tokio::runtime::Handle::current();
        let swapped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            tokio::task::block_in_place(|| {
                runtime.block_on(async {
                    for node in ["c1-n1", "c1-n2"] {
                        swap(&lab, node).await;
                    }
                });
                all_answer("after the swap");
            });
        }));
        ends.store(true, Ordering::Relaxed);
        let longest = calls.join().unwrap();
        if let Err(panic) = swapped {
            std::panic::resume_unwind(panic);
        }
        longest
    });
    eprintln!(
        "{} connections, none reset; the longest pause of one was {pauses:?}",
        streams.len()
    );
}

/// Stops an agent, leaves the node as Cilium would, starts another agent, and checks what that would leave for Cilium.
async fn swap(lab: &TestLab, node: &str) {
    let agent = lab.agent(node);
    lab.run(node, &["kill", "-STOP", &agent.to_string()]).await;
    let directory = state_directory(lab, node);
    as_cilium_leaves_it(&directory);
    let before = saved(&directory);
    assert!(before.len() > 2, "{before:?}");
    for id in before.keys() {
        // Tail calls of Cilium's programs, which ours have no use for.
        let pin = format!("/sys/fs/bpf/tc/globals/cilium_calls_{id:05}");
        let create =
            format!("bpftool map create {pin} type prog_array key 4 value 4 entries 50 name cilium_calls");
        lab.run(node, &["sh", "-c", &create]).await;
    }
    lab.run(node, &["kill", "-KILL", &agent.to_string()]).await;
    lab.wait_agent(node, agent).await;
    lab.wait("the endpoints are ready", || async {
        let text = lab
            .session
            .run(node, &["skep", "endpoint", "list", "-o", "json"])
            .await;
        let found: Vec<Value> = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
        let ready = found.iter().filter(|one| one["status"]["state"] == "ready");
        let ids: Vec<u64> = ready.filter_map(|one| one["id"].as_u64()).collect();
        before.keys().all(|id| ids.contains(&u64::from(*id)))
    })
    .await;
    check_for_cilium(lab, node, &before).await;
}

/// A lab with the chart, which the plugin of another CNI connects.
struct Cluster {
    lab: TestLab,
    kubeconfig: PathBuf,
}

impl Cluster {
    async fn up(name: &str, values: &[&str]) -> Self {
        let options = LabOptions {
            install: true,
            chart: concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/helm/skep").into(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            ..lab_options(2, &[], None)
        };
        let lab = TestLab::up_with(name, options.clone()).await;
        let state = lab.session.state().unwrap();
        command::install(&state, &options).await.unwrap();
        let kubeconfig = state.kubeconfig("c1").unwrap();
        Self { lab, kubeconfig }
    }

    /// Runs `skep migrate`; what it prints.
    async fn migrate(&self, words: &[&str]) -> String {
        let output = tokio::process::Command::new(program("skep-cluster"))
            .arg("migrate")
            .args(words)
            .env("KUBECONFIG", &self.kubeconfig)
            .output()
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "migrate {words:?}: {text}{errors}");
        text
    }

    /// Which nodes are switched.
    async fn switched(&self, field: &str) -> Vec<bool> {
        let text = self.migrate(&["status", "-o", "json"]).await;
        let status: Value = serde_json::from_str(&text).unwrap();
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node[field] == true).collect()
    }

    /// Creates a workload, which goes with the lab.
    async fn create(&self, object: Value) {
        let kind = match object["kind"].as_str() {
            Some("DaemonSet") => Kind::new("apps", "v1", "DaemonSet", "daemonsets", true),
            _ => Kind::new("apps", "v1", "Deployment", "deployments", true),
        };
        let namespace = object["metadata"]["namespace"].as_str().unwrap().to_owned();
        let client = self.lab.session.client();
        client
            .create(&kind, &namespace, object, &WriteOptions::default())
            .await
            .unwrap();
    }

    async fn list(&self, kind: &Kind, namespace: &str) -> Vec<Value> {
        let listed = self.lab.session.client();
        let listed = listed
            .list(kind, namespace, &ListOptions::default())
            .await
            .unwrap();
        let items = listed.items.iter();
        items.map(|item| (*item.to_value().unwrap()).clone()).collect()
    }

    /// Pods of the default namespace that are ready, by their node, with their address.
    async fn ready(&self, app: &str) -> BTreeMap<String, String> {
        let pods = self.list(&Kind::POD, "default").await;
        let is_ready = |pod: &&Value| {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let mut ready = conditions.filter(|one| one["type"] == "Ready" && one["status"] == "True");
            pod["metadata"]["labels"]["app"] == app
                && pod["metadata"]["deletionTimestamp"].is_null()
                && ready.next().is_some()
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        pods.iter()
            .filter(is_ready)
            .map(|pod| (text(&pod["spec"]["nodeName"]), text(&pod["status"]["podIP"])))
            .collect()
    }
}

fn echo(app: &str, node: &str) -> Value {
    let name = format!("{app}-{node}");
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "default", "name": name},
        "spec": {
            "selector": {"matchLabels": {"name": name}},
            "template": {
                "metadata": {"labels": {"app": app, "name": name}},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": node},
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "main", "image": TOOLS_IMAGE,
                        "command": ["/usr/bin/skep-lab", "echo", "--name", name, "--tcp", "8080"],
                        "readinessProbe": {"exec": {"command": ["/usr/bin/skep-lab", "call", "127.0.0.1:8080"]}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}

const NODES: [&str; 2] = ["c1-n1", "c1-n2"];

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_another_plugin_are_migrated_one_by_one() {
    let values = [
        "cni.customConf=true",
        "cni.uninstall=false",
        "policyEnforcementMode=never",
        "bpf.hostLegacyRouting=true",
        "operator.unmanagedPodWatcher.restart=false",
    ];
    let cluster = Cluster::up("migration", &values).await;
    let lab = &cluster.lab;
    for (index, node) in NODES.iter().enumerate() {
        let root = skep_lab::plan::folder_of(lab.name())
            .join("containerd")
            .join(node)
            .join("rootfs");
        for plugin in ["ptp", "host-local"] {
            let to = root.join("opt/cni/bin").join(plugin);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(Path::new("/usr/lib/cni").join(plugin), to).unwrap();
        }
        let subnet = format!("10.99.{index}.0/24");
        let other = json!({
            "cniVersion": "1.0.0", "name": "other",
            "plugins": [{
                "type": "ptp",
                "ipam": {
                    "type": "host-local", "dataDir": "/run/other-cni",
                    "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        });
        let folder = root.join("etc/cni/net.d");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("10-other.conflist"), other.to_string()).unwrap();
    }
    for node in NODES {
        cluster.create(echo("web", node)).await;
    }
    lab.wait("pods run with the other plugin", || async {
        let ready = cluster.ready("web").await;
        ready.len() == 2 && ready.values().all(|address| address.starts_with("10.99."))
    })
    .await;
    let plan = cluster.migrate(&["plan"]).await;
    assert!(
        plan.contains("the installation has the values for a migration"),
        "{plan}"
    );
    assert_eq!(cluster.switched("cni").await, [false, false]);

    for (done, node) in NODES.iter().enumerate() {
        cluster.migrate(&["node", node]).await;
        let ready = || async {
            let ready = cluster.ready("web").await;
            let ours = ready.values().filter(|address| address.starts_with("10.1."));
            (ready.len(), ours.count())
        };
        lab.wait("the pods of the node have an endpoint", || async {
            ready().await == (2, done + 1)
        })
        .await;
        let switched = cluster.switched("cni").await;
        assert_eq!(switched, [true, done == 1]);
    }
    let endpoints = Kind::new("cilium.io", "v2", "CiliumEndpoint", "ciliumendpoints", true);
    assert_eq!(cluster.list(&endpoints, "default").await.len(), 2);

    cluster.migrate(&["undo", "c1-n1"]).await;
    assert_eq!(cluster.switched("cni").await, [false, true]);
    let undone = cluster.migrate(&["undo", "--all"]).await;
    assert!(
        undone.contains("Removed CiliumNodeConfig cilium-default"),
        "{undone}"
    );
    assert_eq!(cluster.switched("cni").await, [false, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_kube_proxy_go_after_the_agent_answers() {
    let cluster = Cluster::up("kube-proxy", &["kubeProxyReplacement=false"]).await;
    let lab = &cluster.lab;
    let proxy = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"namespace": "kube-system", "name": "kube-proxy"},
        "spec": {
            "selector": {"matchLabels": {"k8s-app": "kube-proxy"}},
            "template": {
                "metadata": {"labels": {"k8s-app": "kube-proxy"}},
                "spec": {
                    "hostNetwork": true, "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "main", "image": TOOLS_IMAGE, "command": ["/bin/busybox", "sleep", "1000000"],
                    }],
                },
            },
        },
    });
    cluster.create(proxy).await;
    cluster.create(echo("shop", "c1-n2")).await;
    let shop = lab.create_shop(json!({})).await;
    lab.wait("the pod is ready", || async {
        cluster.ready("shop").await.len() == 1
    })
    .await;
    let backend = cluster.ready("shop").await["c1-n2"].clone();
    let service = cluster_ips(&shop)
        .into_iter()
        .find(|ip| !ip.contains(':'))
        .unwrap();
    let to = at(&service, 80);
    // A node has a way to the service, as by a default route; the chains of kube-proxy in mode iptables.
    let rules = format!(
        "ip route add {service} via 172.30.1.250; iptables -t nat -N KUBE-SERVICES; iptables -t nat -N KUBE-SVC-SHOP; iptables -t nat -N KUBE-SEP-SHOP; \
         iptables -t nat -A PREROUTING -j KUBE-SERVICES; iptables -t nat -A OUTPUT -j KUBE-SERVICES; \
         iptables -t nat -A KUBE-SERVICES -d {service}/32 -p tcp --dport 80 -j KUBE-SVC-SHOP; \
         iptables -t nat -A KUBE-SVC-SHOP -m statistic --mode random --probability 1 -j KUBE-SEP-SHOP; \
         iptables -t nat -A KUBE-SEP-SHOP -p tcp -j DNAT --to-destination {backend}:8080"
    );
    for node in NODES {
        lab.run(node, &["sh", "-e", "-c", &rules]).await;
    }
    let counted = async |node: &str| -> u64 {
        let list = ["iptables", "-t", "nat", "-L", "KUBE-SEP-SHOP", "-n", "-v", "-x"];
        let text = lab.run(node, &list).await;
        let line = text
            .lines()
            .find(|line| line.contains("DNAT"))
            .unwrap()
            .to_owned();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    for node in NODES {
        lab.call_until(node, &to, CallMode::TCP, 5, |outcome| outcome.failed == 0)
            .await;
        assert!(counted(node).await >= 5, "the rules of {node} translate");
    }
    let proxies = async || {
        let pods = cluster.list(&Kind::POD, RELEASE.1).await;
        let of_proxy = pods
            .iter()
            .filter(|pod| pod["metadata"]["labels"]["k8s-app"] == "kube-proxy");
        let nodes = of_proxy.filter_map(|pod| pod["spec"]["nodeName"].as_str());
        nodes.map(str::to_owned).collect::<Vec<_>>()
    };

    cluster.migrate(&["kube-proxy", "c1-n1"]).await;
    lab.wait("kube-proxy is gone from the node", async || {
        proxies().await == ["c1-n2"]
    })
    .await;
    assert_eq!(cluster.switched("kubeProxy").await, [true, false]);
    lab.wait("the agent translates before the rules", async || {
        let before = counted("c1-n1").await;
        let outcome = lab.session.call("c1-n1", &to, CallMode::TCP, 5).await;
        outcome.is_ok_and(|outcome| outcome.failed == 0) && counted("c1-n1").await == before
    })
    .await;
    let clean = "iptables-save | grep -v KUBE- | iptables-restore";
    lab.run("c1-n1", &["sh", "-c", clean]).await;
    lab.call_until("c1-n1", &to, CallMode::TCP, 20, |outcome| outcome.failed == 0)
        .await;
    // The other node is as before.
    let before = counted("c1-n2").await;
    lab.call_until("c1-n2", &to, CallMode::TCP, 5, |outcome| outcome.failed == 0)
        .await;
    assert!(counted("c1-n2").await >= before + 5);

    cluster.migrate(&["undo", "--all"]).await;
    lab.wait("kube-proxy is back", async || proxies().await.len() == 2)
        .await;
    lab.clear().await;
}
