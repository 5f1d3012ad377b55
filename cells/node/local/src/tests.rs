// SPDX-License-Identifier: Apache-2.0

//! The cells together: over a scripted source, over the kernel in a network namespace, and with a cluster.

#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

mod addresses;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use hive::{Cell, Hive, Running, Settings};
use nix::sched::{CloneFlags, unshare};
use parking_lot::Mutex;
use rtnetlink::{LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};
use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Change, Client, ListOptions, RawEvent, RawPage, RawWatch, WatchOptions};
use skep_k8s_types::slim::{Node, NodeAddressType};
use skep_k8s_types::{Kind, RawObject, Resource};
use statedb::{Db, Table};
use tokio::sync::{Semaphore, mpsc};

use crate::source::SourceError;
use crate::{
    DeviceAddress, DeviceEvent, DeviceEvents, DeviceSource, Link, LinkAddress, LocalNode, LocalNodeStore,
    Route, cells,
};
use skep_base_settings::NodeName;

// Long: a busy machine may take its time, and what holds at once waits no moment.
const SOON: Duration = Duration::from_secs(30);

/// A source with the events of the test.
struct Scripted(Mutex<Option<mpsc::UnboundedReceiver<DeviceEvent>>>);

impl DeviceSource for Scripted {
    fn events(&self) -> DeviceEvents {
        match self.0.lock().take() {
            None => futures::stream::pending().boxed(),
            Some(receiver) => {
                let events = futures::stream::unfold(receiver, |mut receiver| async move {
                    let event = receiver.recv().await?;
                    Some((Ok::<_, SourceError>(event), receiver))
                });
                events.boxed()
            }
        }
    }
}

/// What the cells need of others.
fn surroundings(db: &Db) -> Cell {
    let db = db.clone();
    Cell::module("name", "Name")
        .provide(move || db.clone())
        .provide(|| NodeName::new("n1"))
}

struct Bench {
    db: Db,
    hive: Running,
}

impl Bench {
    async fn start(extra: Vec<Cell>, settings: Settings) -> Self {
        let db = Db::new();
        let cells = [
            surroundings(&db),
            cells::addresses(),
            cells::local_node(),
            cells::local_node_sync(),
        ];
        let hive = Hive::new(cells.into_iter().chain(extra)).root::<LocalNodeStore>();
        let hive = hive::testing::start_with(hive, settings).await;
        Self { db, hive }
    }

    /// Waits until the rows of a table, as lines of some columns, are as expected.
    #[track_caller]
    fn rows<'a>(
        &'a self,
        table: &'a str,
        columns: &'a [usize],
        expected: &'a [&'a str],
    ) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        let any = self.db.table(table).unwrap();
        async move {
            let read = |snapshot: &statedb::Snapshot| -> Vec<String> {
                let rows = any.rows(snapshot).into_iter().map(|row| row.cells());
                rows.map(|cells| {
                    columns
                        .iter()
                        .map(|column| cells[*column].as_str())
                        .collect::<Vec<_>>()
                        .join(" ")
                })
                .collect()
            };
            let wait = async {
                loop {
                    let snapshot = self.db.read();
                    let changed = any.watch(&snapshot);
                    if read(&snapshot) == expected {
                        return;
                    }
                    changed.closed().await;
                }
            };
            if tokio::time::timeout(SOON, wait).await.is_err() {
                panic!(
                    "{place}: {table} has {:#?}, expected {expected:#?}",
                    read(&self.db.read())
                );
            }
        }
    }

    fn pending(&self, table: &str) -> Vec<String> {
        self.db
            .table(table)
            .unwrap()
            .pending_initializers(&self.db.read())
    }
}

fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        kind: "device".to_owned(),
        raw_flags: 0x1003,
        mtu: 1500,
        oper_status: "up",
        ..Link::default()
    }
}

fn address(text: &str) -> LinkAddress {
    let addr: IpAddr = text.parse().unwrap();
    LinkAddress {
        own: DeviceAddress::new(addr),
        network: addr.into(),
    }
}

fn route(text: &str) -> Route {
    Route::to(text.parse().unwrap(), 2)
}

async fn start_scripted() -> (mpsc::UnboundedSender<DeviceEvent>, Bench) {
    start_scripted_with(Settings::new()).await
}

async fn start_scripted_with(settings: Settings) -> (mpsc::UnboundedSender<DeviceEvent>, Bench) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let source: Arc<dyn DeviceSource> = Arc::new(Scripted(Mutex::new(Some(receiver))));
    let db = Db::new();
    let cells = [
        surroundings(&db),
        cells::devices(),
        cells::addresses(),
        cells::local_node(),
        cells::local_node_sync(),
    ];
    let hive = Hive::new(cells).replace(move || source.clone());
    let hive = hive::testing::start_with(hive, settings).await;
    (sender, Bench { db, hive })
}

#[tokio::test]
async fn devices_become_addresses_and_these_the_nodes() {
    let (events, bench) = start_scripted().await;
    assert_eq!(bench.pending("devices"), ["netlink"]);

    for event in [
        DeviceEvent::Link(link(2, "eth0")),
        DeviceEvent::Address(2, address("192.0.2.7")),
        DeviceEvent::Route(route("0.0.0.0/0")),
        DeviceEvent::Synced,
    ] {
        events.send(event).unwrap();
    }

    bench
        .rows("devices", &[0, 1, 2, 7], &["eth0 2 true 192.0.2.7"])
        .await;
    bench
        .rows(
            "node-addresses",
            &[0, 1, 2, 3],
            &["192.0.2.7 false true *", "192.0.2.7 true true eth0"],
        )
        .await;
    bench
        .rows("local-node", &[0, 1, 2], &["n1 local InternalIP:192.0.2.7"])
        .await;
    statedb::readiness::wait_initialized(&bench.db, None, SOON)
        .await
        .unwrap();
    bench.hive.stop().await.unwrap();
}

#[tokio::test]
async fn changes_are_applied_and_a_restart_finds_what_was_deleted() {
    let (events, bench) = start_scripted().await;
    for event in [
        DeviceEvent::Link(link(2, "eth0")),
        DeviceEvent::Address(2, address("192.0.2.7")),
        DeviceEvent::Route(route("192.0.2.0/24")),
        DeviceEvent::Link(link(3, "eth1")),
        DeviceEvent::Synced,
    ] {
        events.send(event).unwrap();
    }
    bench
        .rows("devices", &[0, 2, 7], &["eth0 true 192.0.2.7", "eth1 false "])
        .await;

    events
        .send(DeviceEvent::AddressGone(2, address("192.0.2.7")))
        .unwrap();
    bench
        .rows("devices", &[0, 2, 7], &["eth0 false ", "eth1 false "])
        .await;
    bench.rows("node-addresses", &[0], &[]).await;

    events.send(DeviceEvent::Restart).unwrap();
    events.send(DeviceEvent::Link(link(3, "eth1"))).unwrap();
    events.send(DeviceEvent::Synced).unwrap();
    bench.rows("devices", &[0], &["eth1"]).await;
}

// A node that became known while the first devices were read never had them: the change fell between two watches.
#[tokio::test]
async fn a_node_that_changes_while_devices_are_read_decides_about_them() {
    struct Meanwhile {
        store: Arc<Mutex<Option<LocalNodeStore>>>,
    }

    impl DeviceSource for Meanwhile {
        fn events(&self) -> DeviceEvents {
            let store = self.store.clone();
            let cable = Link {
                kind: "veth".to_owned(),
                ..link(2, "eth0")
            };
            let read = [
                DeviceEvent::Link(cable),
                DeviceEvent::Address(2, address("192.0.2.7")),
                DeviceEvent::Synced,
            ];
            let events = futures::stream::iter(read).map(move |event| {
                if let (DeviceEvent::Synced, Some(store)) = (&event, &*store.lock()) {
                    let known = (NodeAddressType::InternalIp, "192.0.2.7".parse().unwrap());
                    let change = |node: &mut LocalNode| {
                        node.registered = true;
                        node.addresses = vec![known];
                    };
                    store.update(change).unwrap();
                }
                Ok(event)
            });
            events.chain(futures::stream::pending()).boxed()
        }
    }

    let taken = Arc::new(Mutex::new(None));
    let (source, keep) = (taken.clone(), taken.clone());
    let db = Db::new();
    let cells = [
        surroundings(&db),
        Cell::module("keep", "Keeps the store").run(move |store: LocalNodeStore| {
            *keep.lock() = Some(store);
        }),
        cells::local_node(),
        cells::devices(),
    ];
    let hive = Hive::new(cells).replace(move || -> Arc<dyn DeviceSource> {
        Arc::new(Meanwhile {
            store: source.clone(),
        })
    });
    let hive = hive::testing::start(hive).await;
    let bench = Bench { db, hive };

    bench.rows("devices", &[0, 2, 7], &["eth0 true 192.0.2.7"]).await;
    bench.hive.stop().await.unwrap();
}

/// Runs a test in a network namespace of its own, which goes away with the thread.
fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("tests run as root");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A connection for the test's own changes.
fn netlink() -> rtnetlink::Handle {
    let (connection, handle, _) = rtnetlink::new_connection().unwrap();
    tokio::spawn(connection);
    handle
}

async fn index_of(handle: &rtnetlink::Handle, name: &str) -> u32 {
    let mut links = Box::pin(handle.link().get().match_name(name.to_owned()).execute());
    links.try_next().await.unwrap().unwrap().header.index
}

async fn add_address(handle: &rtnetlink::Handle, index: u32, addr: &str, prefix: u8) {
    let addr: IpAddr = addr.parse().unwrap();
    handle.address().add(index, addr, prefix).execute().await.unwrap();
}

async fn set_up(handle: &rtnetlink::Handle, index: u32, up: bool) {
    let link = LinkUnspec::new_with_index(index);
    let link = if up { link.up() } else { link.down() };
    handle.link().set(link.build()).execute().await.unwrap();
}

/// A cable from the node to somewhere else: selected once it has an address and the default route.
async fn add_cable(handle: &rtnetlink::Handle, name: &str, other_end: &str, addr: &str) -> u32 {
    handle
        .link()
        .add(LinkVeth::new(name, other_end).build())
        .execute()
        .await
        .unwrap();
    let index = index_of(handle, name).await;
    set_up(handle, index_of(handle, other_end).await, true).await;
    set_up(handle, index, true).await;
    add_address(handle, index, addr, 24).await;
    index
}

async fn add_default_route(handle: &rtnetlink::Handle, index: u32) {
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .output_interface(index)
        .build();
    handle.route().add(route).execute().await.unwrap();
}

#[test]
fn devices_of_the_kernel_are_listed_and_watched() {
    in_namespace(|| async {
        let handle = netlink();
        let eth7 = add_cable(&handle, "eth7", "lxc7", "192.0.2.7").await;
        let bench = Bench::start(vec![cells::devices()], Settings::new()).await;
        let unselected = ["lo false device", "lxc7 false veth", "eth7 false veth"];
        bench.rows("devices", &[0, 2, 3], &unselected).await;

        add_default_route(&handle, eth7).await;
        bench
            .rows(
                "devices",
                &[0, 2, 3],
                &["lo false device", "lxc7 false veth", "eth7 true veth"],
            )
            .await;
        bench
            .rows(
                "node-addresses",
                &[0, 1, 3],
                &["192.0.2.7 false *", "192.0.2.7 true eth7"],
            )
            .await;
        bench.rows("local-node", &[2], &["InternalIP:192.0.2.7"]).await;

        handle
            .link()
            .add(LinkVeth::new("lxc1", "pod1").build())
            .execute()
            .await
            .unwrap();
        let five = [
            "lo false device",
            "lxc7 false veth",
            "eth7 true veth",
            "pod1 false veth",
            "lxc1 false veth",
        ];
        bench.rows("devices", &[0, 2, 3], &five).await;

        add_address(&handle, eth7, "10.9.9.9", 24).await;
        let both = [
            "10.9.9.9 true false eth7",
            "192.0.2.7 false true *",
            "192.0.2.7 false true eth7",
        ];
        bench.rows("node-addresses", &[0, 1, 2, 3], &both).await;

        set_up(&handle, eth7, false).await;
        bench.rows("node-addresses", &[0], &[]).await;

        handle.link().del(eth7).execute().await.unwrap();
        bench.rows("devices", &[0], &["lo", "pod1", "lxc1"]).await;
        bench.hive.stop().await.unwrap();
    });
}

#[test]
fn what_bridges_tell_of_their_ports_is_not_taken_for_the_devices() {
    in_namespace(|| async {
        // Of this thread's namespace; addresses that devices assign themselves would come in between.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        let handle = netlink();
        let eth7 = add_cable(&handle, "eth7", "lxc7", "192.0.2.7").await;
        let bridge = LinkBridge::new("br0").up().build();
        handle.link().add(bridge).execute().await.unwrap();
        let bridge = index_of(&handle, "br0").await;
        let bench = Bench::start(vec![cells::devices()], Settings::new()).await;
        let devices = |addresses: &'static str| ["lo device ", "lxc7 veth ", addresses, "br0 bridge "];
        let eth7_has = async |addresses| bench.rows("devices", &[0, 3, 7], &devices(addresses)).await;
        eth7_has("eth7 veth 192.0.2.7").await;
        let port_of = async |controller: u32| {
            let port = LinkUnspec::new_with_index(eth7).controller(controller);
            handle.link().set(port.build()).execute().await.unwrap();
        };

        // The bridge reports its port without the kind, and as deleted when it has only left the bridge.
        port_of(bridge).await;
        add_address(&handle, eth7, "192.0.2.8", 24).await;
        eth7_has("eth7 veth 192.0.2.7, 192.0.2.8").await;
        port_of(0).await;
        add_address(&handle, eth7, "192.0.2.9", 24).await;
        eth7_has("eth7 veth 192.0.2.7, 192.0.2.8, 192.0.2.9").await;
        bench.hive.stop().await.unwrap();
    });
}

#[tokio::test]
async fn names_that_no_device_has_degrade_health_until_one_comes() {
    let settings = Settings::new().flag("devices", "eth0,nope,ens+,!eth9");
    let (events, bench) = start_scripted_with(settings).await;
    let health = bench.hive.health();
    let status = || {
        health
            .get("devices-controller.job-devices")
            .map(|entry| format!("{entry:?}"))
    };
    let wait_for = async |text: &str| {
        while !status().is_some_and(|status| status.contains(text)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    events.send(DeviceEvent::Link(link(2, "eth0"))).unwrap();
    events.send(DeviceEvent::Synced).unwrap();

    wait_for("no device matches `nope`, `ens+` of --devices").await;
    events.send(DeviceEvent::Link(link(3, "nope"))).unwrap();
    wait_for("no device matches `ens+` of --devices").await;
    events.send(DeviceEvent::Link(link(4, "ens5"))).unwrap();
    wait_for("3 devices").await;
}

#[test]
fn named_devices_and_networks_are_obeyed() {
    in_namespace(|| async {
        let handle = netlink();
        add_cable(&handle, "eth1", "lxc1", "10.1.0.1").await;
        add_cable(&handle, "eth2", "lxc2", "10.2.0.1").await;
        let settings = Settings::new()
            .flag("devices", "!eth1,eth+")
            .flag("nodeport-addresses", "10.2.0.0/16");
        let bench = Bench::start(vec![cells::devices()], settings).await;

        let devices = ["lo false", "lxc1 false", "eth1 false", "lxc2 false", "eth2 true"];
        bench.rows("devices", &[0, 2], &devices).await;
        bench
            .rows(
                "node-addresses",
                &[0, 1, 3],
                &["10.2.0.1 false *", "10.2.0.1 true eth2"],
            )
            .await;
    });
}

#[test]
fn addresses_of_excluded_networks_are_not_the_nodes() {
    in_namespace(|| async {
        let handle = netlink();
        let eth1 = add_cable(&handle, "eth1", "lxc1", "10.1.0.1").await;
        add_address(&handle, eth1, "10.9.0.1", 32).await;
        let settings = Settings::new()
            .flag("devices", "eth1")
            .flag("exclude-local-address", "10.9.0.0/16");
        let bench = Bench::start(vec![cells::devices()], settings).await;

        bench
            .rows("devices", &[0, 2], &["lo false", "lxc1 false", "eth1 true"])
            .await;
        bench
            .rows(
                "node-addresses",
                &[0, 1, 3],
                &["10.1.0.1 false *", "10.1.0.1 true eth1"],
            )
            .await;
        // Without a cluster these are what the node has.
        bench.rows("local-node", &[2], &["InternalIP:10.1.0.1"]).await;
    });
}

#[test]
fn namespaces_have_cookies() {
    in_namespace(|| async {
        let bench = Bench::start(vec![cells::devices()], Settings::new()).await;

        let node = bench
            .db
            .table("local-node")
            .unwrap()
            .rows(&bench.db.read())
            .remove(0)
            .json()
            .unwrap();

        assert_eq!(
            node["Local"]["NetnsCookie"].as_u64(),
            skep_base_net::netns::cookie().ok()
        );
        assert!(node["BootID"].as_str().unwrap().len() == 36);
    });
}

#[tokio::test]
async fn store_keeps_name_and_wakes_only_for_changes() {
    let db = Db::new();
    let store = LocalNodeStore::new(&db, &NodeName::new("n1")).unwrap();
    let table: Table<LocalNode> = store.table();
    let before = table.revision(&db.read());

    store.update(|_| {}).unwrap();
    store.update(|node| node.name = "other".into()).unwrap();
    assert_eq!(table.revision(&db.read()), before);

    store
        .update(|node| node.labels = [("topology.kubernetes.io/zone", "z1")].into_iter().collect())
        .unwrap();
    assert_eq!(store.get().unwrap().zone(), Some("z1"));
    assert_eq!(store.get().unwrap().name, "n1");
}

#[tokio::test]
async fn wrong_network_is_a_finding_of_the_plan() {
    let settings = Settings::new()
        .flag("nodeport-addresses", "10.0.0.0/8,nonsense")
        .flag("exclude-local-address", "fd00::/8,10.0.0.1");
    let db = Cell::module("db", "Database").provide(Db::new);

    let report = Hive::new([db, cells::devices(), cells::addresses()])
        .plan(settings)
        .err()
        .unwrap()
        .to_string();

    assert!(report.contains("nonsense"), "{report}");
    assert!(report.contains("exclude-local-address"), "{report}");
    assert!(report.contains("`10.0.0.1` is not a network"), "{report}");
}

/// A cluster that has only this Node, and reports its changes.
struct Cluster {
    node: Value,
    /// Has a permit for each list that is answered.
    lists: Arc<Semaphore>,
    changes: Mutex<Option<mpsc::UnboundedReceiver<Value>>>,
}

#[async_trait]
impl Client for Cluster {
    fn is_enabled(&self) -> bool {
        true
    }

    async fn kinds(&self) -> Result<Vec<Kind>, ApiError> {
        Ok(vec![Node::kind()])
    }

    async fn list(&self, kind: &Kind, _: &str, options: &ListOptions) -> Result<RawPage, ApiError> {
        assert_eq!(
            (kind, options.fields.to_string().as_str()),
            (&Node::kind(), "metadata.name=n1")
        );
        self.lists.acquire().await.unwrap().forget();
        let items = vec![RawObject::from_value(Arc::new(self.node.clone()))];
        Ok(RawPage {
            items,
            resource_version: "1".into(),
            continue_token: String::new(),
        })
    }

    async fn watch(&self, _: &Kind, _: &str, _: &WatchOptions) -> Result<RawWatch, ApiError> {
        let Some(receiver) = self.changes.lock().take() else {
            return Ok(futures::stream::pending().boxed());
        };
        let events = futures::stream::unfold(receiver, |mut receiver| async move {
            let object = RawObject::from_value(Arc::new(receiver.recv().await?));
            Some((Ok(RawEvent::Object(Change::Modified, object)), receiver))
        });
        Ok(events.boxed())
    }
}

#[test]
fn kubernetes_node_names_addresses_labels_and_the_device() {
    in_namespace(|| async {
        let handle = netlink();
        let eth7 = add_cable(&handle, "eth7", "lxc7", "192.0.2.7").await;
        add_address(&handle, eth7, "192.0.2.3", 24).await;
        let node = |labels: Value| {
            json!({
                "metadata": {"name": "n1", "uid": "u-1", "labels": labels,
                    "annotations": {"network.cilium.io/ipv4-pod-cidr": "10.9.0.0/24", "network.cilium.io/ipv6-pod-cidr": "fd00:1::/64"}},
                "spec": {"podCIDRs": ["10.1.0.0/24", "nonsense"]},
                "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"},
                                         {"type": "Hostname", "address": "n1"}]},
            })
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let cluster = Cluster {
            node: node(json!({"zone": "a"})),
            lists: Arc::new(Semaphore::new(1)),
            changes: Mutex::new(Some(receiver)),
        };
        let client: Arc<dyn Client> = Arc::new(cluster);
        let given = Cell::module("client", "Client").provide(move || client.clone());

        let bench = Bench::start(vec![given, cells::devices()], Settings::new()).await;

        bench
            .rows("local-node", &[0, 1, 2], &["n1 local InternalIP:192.0.2.7"])
            .await;
        // The cable has no default route, but the cluster knows the node by its address.
        bench
            .rows("devices", &[0, 2], &["lo false", "lxc7 false", "eth7 true"])
            .await;
        let addresses = ["192.0.2.3 false eth7", "192.0.2.7 false *", "192.0.2.7 true eth7"];
        bench.rows("node-addresses", &[0, 1, 3], &addresses).await;
        let json = bench
            .db
            .table("local-node")
            .unwrap()
            .rows(&bench.db.read())
            .remove(0)
            .json()
            .unwrap();
        assert_eq!(json["Labels"], json!({"zone": "a"}));
        assert_eq!(json["Local"]["PodCIDRs"], json!(["10.1.0.0/24", "fd00:1::/64"]));

        let table = bench.db.table("local-node").unwrap();
        let changed = table.watch(&bench.db.read());
        sender.send(node(json!({"zone": "b"}))).unwrap();
        tokio::time::timeout(SOON, changed.closed()).await.unwrap();
        let json = table.rows(&bench.db.read()).remove(0).json().unwrap();
        assert_eq!(json["Labels"], json!({"zone": "b"}));
        let store: LocalNodeStore = bench.hive.get().unwrap();
        for (field, value, is_leaving) in [
            (
                "/spec/taints",
                json!([{"key": "ToBeDeletedByClusterAutoscaler"}]),
                true,
            ),
            ("/spec/taints", json!([{"key": "other"}]), false),
            ("/metadata/deletionTimestamp", json!("2026-01-02T03:04:05Z"), true),
        ] {
            let mut changed = node(json!({}));
            let (object, name) = field[1..].split_once('/').unwrap();
            changed[object][name] = value;
            sender.send(changed).unwrap();
            let wait = async {
                while store.get().unwrap().is_leaving != is_leaving {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(SOON, wait).await.expect(field);
        }
        assert_eq!(bench.pending("local-node"), Vec::<String>::new());
    });
}

// Who takes devices for complete before the Node is known would detach its programs from a cable without default route, and
// delete the node ports of its addresses.
#[test]
fn devices_and_addresses_are_complete_only_with_the_node_of_the_cluster() {
    in_namespace(|| async {
        add_cable(&netlink(), "eth7", "lxc7", "192.0.2.7").await;
        let lists = Arc::new(Semaphore::new(0));
        let client: Arc<dyn Client> = Arc::new(Cluster {
            node: json!({
                "metadata": {"name": "n1", "uid": "u-1"},
                "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]},
            }),
            lists: lists.clone(),
            changes: Mutex::default(),
        });
        let given = Cell::module("client", "Client").provide(move || client.clone());

        let bench = Bench::start(vec![given, cells::devices()], Settings::new()).await;

        let before = ["lo false", "lxc7 false", "eth7 false"];
        bench.rows("devices", &[0, 2], &before).await;
        bench.rows("node-addresses", &[0, 3], &["192.0.2.7 *"]).await;
        assert_eq!(bench.pending("devices"), ["netlink"]);
        assert_eq!(bench.pending("node-addresses"), ["devices"]);

        lists.add_permits(1);
        let addresses = bench.db.table("node-addresses").unwrap();
        let complete = loop {
            let snapshot = bench.db.read();
            if addresses.pending_initializers(&snapshot).is_empty() {
                break snapshot;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let rows = addresses.rows(&complete).into_iter().map(|row| row.cells());
        let rows: Vec<_> = rows
            .map(|cells| [&cells[0], &cells[3]].map(ToString::to_string))
            .collect();
        assert_eq!(rows, [["192.0.2.7", "*"], ["192.0.2.7", "eth7"]]);
        assert_eq!(bench.pending("devices"), Vec::<String>::new());
        bench.hive.stop().await.unwrap();
    });
}
