// SPDX-License-Identifier: Apache-2.0

//! Nodes on one network, each a network namespace: `one` is this node.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    time::{Duration, Instant},
};

use hive::{Level, MemoryHealth};
use skep_bpf_sys::testing::{Node as TestNode, Pod};
use skep_ipcache::Source;
use skep_k8s_types::slim::NodeAddressType;
use statedb::RwTable;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn ip(arguments: &str) -> String {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a test on node `one`, which is 192.0.2.1 and 2001:db8::1 of `lan`, beside nodes `two` and `three`.
fn on_lan(test: impl AsyncFnOnce(Pod, Pod) + Send) {
    let done: io::Result<()> = TestNode::run("direct", |node| {
        ip("link add lan type bridge");
        ip("link set lan up");
        ip("addr add 192.0.2.1/24 dev lan");
        ip("addr add 2001:db8::1/64 dev lan nodad");
        let others = [("two", 2), ("three", 3)].map(|(name, number)| {
            let other = node.pod(name).unwrap();
            ip(&format!("link add {name} type veth peer name p-{name}"));
            ip(&format!("link set {name} master lan up"));
            ip(&format!("link set p-{name} netns {}", other.path().display()));
            other.run(|| {
                ip(&format!("link set p-{name} name eth0 up"));
                ip(&format!("addr add 192.0.2.{number}/24 dev eth0"));
                ip(&format!("addr add 2001:db8::{number}/64 dev eth0 nodad"));
            });
            other
        });
        let [two, three] = others;
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(test(two, three));
        Ok(())
    });
    done.unwrap();
}

fn node(cluster: &str, name: &str, addresses: &[&str], cidrs: &[&str]) -> Node {
    let mut node = Node::new(NodeKey::new(cluster, name), Source::Kubernetes);
    node.addresses = addresses
        .iter()
        .map(|address| (NodeAddressType::InternalIp, address.parse().unwrap()))
        .collect();
    node.pod_cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    node
}

fn one() -> Node {
    let mut one = node(
        "",
        "one",
        &["192.0.2.1", "2001:db8::1"],
        &["10.1.0.0/24", "fd00:1::/64"],
    );
    one.source = Source::Local;
    one
}

/// A node with an additional network.
fn two() -> Node {
    let cidrs = ["10.2.0.0/24", "10.22.0.0/16", "fd00:2::/64"];
    node("", "two", &["192.0.2.2", "2001:db8::2"], &cidrs)
}

fn three() -> Node {
    node(
        "west",
        "three",
        &["192.0.2.3", "2001:db8::3"],
        &["10.3.0.0/24", "fd00:3::/64"],
    )
}

fn families(ipv4: bool, ipv6: bool) -> AddressFamilies {
    AddressFamilies { ipv4, ipv6 }
}

fn plan(nodes: &[Node]) -> Plan {
    Plan::new(nodes.iter(), &families(true, true))
}

fn texts(faults: &[RouteFault]) -> Vec<String> {
    faults.iter().map(|fault| hive::error_chain(fault)).collect()
}

/// Routes with the mark of those made here: `10.2.0.0/24 via 192.0.2.2 dev lan`.
fn routed() -> Vec<String> {
    let lists = ["-4 route show proto 207", "-6 route show proto 207"].map(ip);
    let lines = lists.iter().flat_map(|list| list.lines());
    let mut found: Vec<String> = lines
        .map(|line| line.split_whitespace().take(5).collect::<Vec<_>>().join(" "))
        .collect();
    found.sort();
    found
}

/// A server on an address that a node has besides its own.
fn serve(node: &Pod, address: &str) -> TcpListener {
    let bits = if address.contains(':') { "128 nodad" } else { "32" };
    node.run(|| {
        let (bits, flags) = bits.split_once(' ').unwrap_or((bits, ""));
        ip(&format!("addr add {address}/{bits} dev lo {flags}"));
        TcpListener::bind((address.parse::<IpAddr>().unwrap(), 80)).unwrap()
    })
}

fn connects(address: &str) -> bool {
    let address = SocketAddr::new(address.parse().unwrap(), 80);
    TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok()
}

const OF_TWO: [&str; 3] = [
    "10.2.0.0/24 via 192.0.2.2 dev lan",
    "10.22.0.0/16 via 192.0.2.2 dev lan",
    "fd00:2::/64 via 2001:db8::2 dev lan",
];
const OF_THREE: [&str; 2] = [
    "10.3.0.0/24 via 192.0.2.3 dev lan",
    "fd00:3::/64 via 2001:db8::3 dev lan",
];

fn of_both() -> Vec<&'static str> {
    let mut all = [&OF_TWO[..], &OF_THREE[..]].concat();
    all.sort_unstable();
    all
}

#[test]
fn all_networks_of_other_nodes_are_planned_once() {
    let mut late = node(
        "west",
        "two",
        &["192.0.2.9"],
        &["10.22.0.0/16", "10.1.0.0/24", "fd00:9::/64"],
    );
    late.addresses
        .push((NodeAddressType::CiliumInternalIp, "fd00:9::1".parse().unwrap()));

    let made = plan(&[two(), late.clone(), one()]);

    let networks: Vec<String> = made
        .targets
        .iter()
        .map(|(network, target)| format!("{network} {} {}", target.node, target.address))
        .collect();
    let expected = [
        "10.2.0.0/24 default/two 192.0.2.2",
        "10.22.0.0/16 default/two 192.0.2.2",
        "fd00:2::/64 default/two 2001:db8::2",
    ];
    assert_eq!(networks, expected);
    let expected = [
        "network 10.22.0.0/16 of node west/two belongs to node default/two",
        "network 10.1.0.0/24 of node west/two belongs to node default/one",
        "node west/two has no address of the family of its network fd00:9::/64",
    ];
    assert_eq!(texts(&made.faults), expected);

    let ipv4 = Plan::new([late].iter(), &families(true, false));
    assert_eq!(ipv4.targets.len(), 2);
    assert!(ipv4.faults.is_empty(), "{:?}", ipv4.faults);
}

#[test]
fn pods_of_nodes_are_reached_while_the_nodes_are_there() {
    on_lan(async |two_ns, three_ns| {
        let _servers = [
            serve(&two_ns, "10.2.0.1"),
            serve(&two_ns, "10.22.7.7"),
            serve(&two_ns, "fd00:2::1"),
            serve(&three_ns, "10.3.0.1"),
        ];
        let all = [one(), two(), three()];

        let outcome = apply(plan(&all), false, true).unwrap();

        assert_eq!((outcome.routed, texts(&outcome.faults)), (5, Vec::new()));
        assert_eq!(routed(), of_both());
        for address in ["10.2.0.1", "10.22.7.7", "fd00:2::1", "10.3.0.1"] {
            assert!(connects(address), "{address}");
        }

        // Routes that are as they should be are not made again.
        ip("route change 10.2.0.0/24 via 192.0.2.2 dev lan proto 207 mtu 1300");
        apply(plan(&all), false, true).unwrap();
        assert!(ip("route show 10.2.0.0/24").contains("mtu 1300"));

        // The node's address changes.
        let mut moved = two();
        moved.addresses[0].1 = "192.0.2.3".parse().unwrap();
        moved.addresses[1].1 = "2001:db8::3".parse().unwrap();
        apply(plan(&[one(), moved]), false, false).unwrap();
        let mut expected =
            OF_TWO.map(|route| route.replace(".2 dev", ".3 dev").replace("::2 dev", "::3 dev"));
        expected.sort();
        let found = routed();
        assert!(expected.iter().all(|route| found.contains(route)), "{found:?}");
        assert_eq!(found.len(), 5, "{found:?}");

        // The other node is gone, as known when all nodes are known.
        assert!(routed().iter().any(|route| route.starts_with("10.3.")));
        apply(plan(&[one(), two()]), false, true).unwrap();
        assert_eq!(routed(), OF_TWO);
        apply(Plan::default(), false, true).unwrap();
        assert_eq!(routed(), [""; 0]);
    });
}

#[test]
fn nodes_behind_routers_are_faults_or_skipped() {
    on_lan(async |_, _| {
        ip("route add 198.51.100.0/24 via 192.0.2.3");
        ip("-6 route add 2001:db8:1::/64 via 2001:db8::3");
        let far = node(
            "",
            "far",
            &["198.51.100.4", "2001:db8:1::4"],
            &["10.4.0.0/24", "fd00:4::/64"],
        );
        let nodes = [one(), two(), far];

        let outcome = apply(plan(&nodes), false, true).unwrap();

        assert_eq!(outcome.routed, 3);
        let expected = [
            "node default/far is not directly reachable: 198.51.100.4 is behind gateway 192.0.2.3",
            "node default/far is not directly reachable: 2001:db8:1::4 is behind gateway 2001:db8::3",
        ];
        assert_eq!(texts(&outcome.faults), expected);
        assert_eq!(routed(), OF_TWO);

        // It was on this network before.
        ip("route add 10.4.0.0/24 via 192.0.2.2 proto 207");
        let outcome = apply(plan(&nodes), true, true).unwrap();
        assert_eq!((outcome.routed, outcome.skipped), (3, 2));
        assert_eq!(texts(&outcome.faults), [""; 0]);
        assert_eq!(routed(), OF_TWO);
    });
}

#[test]
fn nodes_without_a_path_are_faults_and_keep_their_routes() {
    on_lan(async |_, _| {
        apply(plan(&[two()]), false, true).unwrap();
        ip("route add unreachable 192.0.2.2");
        ip("-6 route add unreachable 2001:db8::2");
        let own = node("", "own", &["192.0.2.1"], &["10.5.0.0/24"]);
        let lost = node("", "lost", &["203.0.113.5"], &["10.6.0.0/24"]);

        let outcome = apply(plan(&[two(), own, lost]), true, true).unwrap();

        let found = texts(&outcome.faults).join("\n");
        for text in [
            "node default/two is not reachable at 192.0.2.2: No route to host (os error 113)",
            "node default/two is not reachable at 2001:db8::2",
            "node default/own is not another node: 192.0.2.1 is an address of this one",
            "node default/lost is not reachable at 203.0.113.5: Network is unreachable (os error 101)",
        ] {
            assert!(found.contains(text), "{text}: {found}");
        }
        assert_eq!(routed(), OF_TWO);
    });
}

#[test]
fn routes_of_other_programs_are_left_alone() {
    on_lan(async |_, _| {
        ip("link add cilium_host type veth peer name cilium_net");
        ip("link set cilium_net up");
        ip("link set cilium_host up");
        ip("addr add 10.1.0.1/32 dev cilium_host");
        let foreign = [
            "10.2.0.0/24 via 192.0.2.3 dev lan",
            "10.22.0.0/16 via 192.0.2.2 dev lan",
            "10.9.0.0/24 via 192.0.2.3 dev lan",
            // In another table, with the same mark.
            "10.8.0.0/24 via 192.0.2.3 dev lan proto 207 table 77",
            // To pods by the tunnel, until its owner removes it.
            "10.1.0.1 dev cilium_host scope link",
            "10.7.0.0/24 via 10.1.0.1 dev cilium_host proto 207",
            // To a pod of this node.
            "10.1.0.7 dev lan proto 207 scope link",
        ];
        for route in foreign {
            ip(&format!("route add {route}"));
        }
        ip("-6 route add fd00:2::/64 via 2001:db8::3 dev lan");
        let others = || ip("route show table all") + &ip("-6 route show");
        let before = others();

        let outcome = apply(plan(&[two()]), false, true).unwrap();

        assert_eq!(outcome.routed, 1, "the route that is there is the right one");
        let expected = [
            "network 10.2.0.0/24 of node default/two at 192.0.2.2 has a route of another program",
            "network fd00:2::/64 of node default/two at 2001:db8::2 has a route of another program",
        ];
        assert_eq!(texts(&outcome.faults), expected);
        apply(Plan::default(), false, true).unwrap();
        assert_eq!(others(), before);

        // With the tunnel off, its routes are replaced at once.
        let seven = node("", "seven", &["192.0.2.2"], &["10.7.0.0/24"]);
        apply(plan(&[seven]), false, true).unwrap();
        assert!(ip("route show 10.7.0.0/24").contains("via 192.0.2.2 dev lan"));
    });
}

/// The job, with a table of nodes of its own.
struct Followed {
    db: Db,
    nodes: NodeManager,
    devices: RwTable<Device>,
    work: DirectRoutes,
    health: Health,
    reports: Arc<MemoryHealth>,
}

impl Followed {
    fn new(is_on: bool) -> Self {
        let db = Db::new();
        let nodes = NodeManager::with_table(&db).unwrap();
        let devices = RwTable::builder("devices")
            .primary(Device::BY_INDEX)
            .index(Device::BY_SELECTED)
            .build(&db)
            .unwrap();
        let mut config = <TunnelConfig as hive::Config>::defaults().unwrap();
        config.auto_direct_node_routes = is_on;
        let (health, reports) = hive::testing::health("routes");
        Self {
            work: DirectRoutes {
                db: db.clone(),
                config: Cfg::fixed(config),
                families: Cfg::fixed(families(true, true)),
                nodes: Some(nodes.clone()),
                devices: devices.reader(),
            },
            db,
            nodes,
            devices,
            health,
            reports,
        }
    }

    fn set(&self, nodes: &[Node]) {
        let mut txn = self.nodes.write();
        for node in nodes {
            self.nodes.upsert(&mut txn, node.clone()).unwrap();
        }
        txn.commit();
    }

    fn error_of(&self, node: &str) -> Option<String> {
        self.reports.get(&format!("routes.{node}"))?.error
    }

    /// Runs a test beside the job.
    async fn run(&self, test: impl AsyncFnOnce(&Self)) {
        let followed = async {
            self.work.follow(&self.health).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = followed => {}
            () = test(self) => {}
        }
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            let reports = self.reports.entries();
            assert!(
                Instant::now() < deadline,
                "not {what}: {:?} {reports:?}",
                routed()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[test]
fn routes_follow_the_nodes_of_all_clusters() {
    on_lan(async |_, _| {
        // Of a node that is gone, made before a restart.
        ip("route add 10.66.0.0/24 via 192.0.2.2 proto 207");
        let stale = |found: &[String]| found.iter().any(|route| route.starts_with("10.66."));
        let followed = Followed::new(true);
        let guard = followed.nodes.register_source("clustermesh").unwrap();
        let mut mesh = three();
        mesh.source = Source::ClusterMesh;
        let far = node("", "far", &["203.0.113.4"], &["10.4.0.0/24"]);
        followed.set(&[one(), two(), far.clone()]);

        followed
            .run(async |followed| {
                followed.until("routed", |_| routed().len() == 4).await;
                assert!(stale(&routed()), "not all sources are synced");
                let error_of_far = || followed.error_of("default/far");
                followed.until("reported", |_| error_of_far().is_some()).await;
                let error = error_of_far().unwrap();
                assert!(
                    error.contains("default/far is not reachable at 203.0.113.4"),
                    "{error}"
                );

                followed.set(&[mesh]);
                let mut txn = followed.nodes.write();
                guard.done(&mut txn).unwrap();
                txn.commit();
                followed.until("synced", |_| routed() == of_both()).await;
                let is_told = || {
                    let own = followed.reports.get("routes").unwrap();
                    let message = "5 networks of pods are routed to their nodes";
                    own.level == Level::Ok && own.message == message
                };
                followed.until("told", |_| is_told()).await;

                // The kernel forgets routes of an interface that is down.
                ip("route del 10.2.0.0/24");
                let lan = Device {
                    index: 2,
                    selected: true,
                    ..Device::default()
                };
                let mut txn = followed.db.write(&[&followed.devices]);
                followed.devices.insert(&mut txn, lan).unwrap();
                txn.commit();
                followed.until("repaired", |_| routed() == of_both()).await;

                let mut txn = followed.nodes.write();
                for (node, source) in [
                    (two(), Source::Kubernetes),
                    (three(), Source::ClusterMesh),
                    (far, Source::Kubernetes),
                ] {
                    followed.nodes.delete(&mut txn, &node.key, source).unwrap();
                }
                txn.commit();
                followed
                    .until("removed", |_| routed().is_empty() && error_of_far().is_none())
                    .await;
                assert_eq!(followed.nodes.nodes(&followed.db.read()).len(), 1);
            })
            .await;
    });
}

#[test]
fn routes_are_removed_when_the_setting_is_off() {
    on_lan(async |_, _| {
        apply(plan(&[two()]), false, true).unwrap();
        let followed = Followed::new(false);
        followed.set(&[two()]);

        followed
            .run(async |followed| followed.until("removed", |_| routed().is_empty()).await)
            .await;
    });
}
