// SPDX-License-Identifier: Apache-2.0

//! Agents that restart with the same settings leave the kernel as it is: no entry that they write, no pin, no interface,
//! address or route is deleted or changed, not even for a moment.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use serde_json::json;
use skep_bpf_sys::{KernelMap, MapStore, RawMap as _};
use skep_e2e::{AT_PACKETS, Place, TestLab, lab_options};
use skep_lab::{
    lab_options::{LabOptions, RoutingMode},
    session::{CallMode, at, client_pod, cluster_ips, echo_pod},
};
use skep_node_local::{DeviceEvent, DeviceSource as _, Netlink};
use tokio_util::sync::CancellationToken;

const NODE: &str = "c1-n1";
/// How often the agent restarts by each signal.
const RESTARTS: usize = 2;
/// For so long nothing changes before the first restart: endpoints have their links then.
const SETTLED: Duration = Duration::from_secs(3);
/// Maps whose entries the agent writes, and programs do not.
const MAPS: [&str; 12] = [
    "cilium_ipcache_v2",
    "cilium_lb4_backends_v3",
    "cilium_lb4_reverse_nat",
    "cilium_lb4_services_v2",
    "cilium_lb6_backends_v3",
    "cilium_lb6_reverse_nat",
    "cilium_lb6_services_v2",
    "cilium_lxc",
    "cilium_node_map_v2",
    "skep_devices",
    "skep_endpoints",
    "skep_vlans",
];
/// Beginning of the names of the maps of policies, one for each endpoint.
const POLICIES: &str = "cilium_policy_v2_";

/// Entries by map and key; pins have no value.
type State = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// The BPF file system of a node, and its maps.
struct Kernel {
    root: PathBuf,
    maps: Vec<KernelMap>,
}

impl Kernel {
    fn open(holder: u32) -> Self {
        let root = Path::new("/proc")
            .join(holder.to_string())
            .join("root/sys/fs/bpf");
        let store = MapStore::new(&root);
        let mut names = MAPS.map(str::to_owned).to_vec();
        names.extend(store.pins(POLICIES).unwrap());
        let maps = names.iter().map(|name| store.open_raw(name).unwrap()).collect();
        Self { root, maps }
    }

    fn ids(&self) -> Vec<u32> {
        self.maps.iter().map(|map| map.info().id).collect()
    }

    fn state(&self) -> io::Result<State> {
        let mut state = State::new();
        for map in &self.maps {
            map.walk(&mut |key, value| {
                state.insert((map.name().to_owned(), key.to_vec()), value.to_vec());
            })?;
        }
        self.add_pins(&self.root, &mut state)?;
        Ok(state)
    }

    fn add_pins(&self, directory: &Path, state: &mut State) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                self.add_pins(&path, state)?;
            } else {
                state.insert((path.display().to_string(), Vec::new()), Vec::new());
            }
        }
        Ok(())
    }

    /// Looks until stopped; returns what was not as before, once each.
    fn watch(&self, before: &State, stop: &CancellationToken) -> io::Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        while !stop.is_cancelled() {
            let now = self.state()?;
            for (place, value) in before {
                let present = now.get(place);
                if present != Some(value) {
                    let (map, key) = place;
                    let what = format!("{value:02x?} became {present:02x?}");
                    found.entry(format!("{map} {key:02x?}")).or_insert(what);
                }
            }
        }
        Ok(found)
    }
}

/// Follows interfaces, addresses and routes of a network until stopped; returns what was deleted.
fn lost_in(place: Place, stop: CancellationToken) -> io::Result<Vec<DeviceEvent>> {
    place.inside(async move || {
        let mut events = Netlink.events();
        let mut lost = Vec::new();
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return Ok(lost),
                event = events.next() => event,
            };
            match event {
                Some(Ok(
                    DeviceEvent::Link(_)
                    | DeviceEvent::Address(..)
                    | DeviceEvent::Route(..)
                    | DeviceEvent::RouteReplaced(_)
                    // The kernel learns and forgets neighbors by itself.
                    | DeviceEvent::Neighbor(_)
                    | DeviceEvent::NeighborGone(_)
                    | DeviceEvent::Synced,
                )) => {}
                Some(Ok(event)) => lost.push(event),
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    })
}

async fn is_unchanged_by_restarts(test: &str, routing_mode: RoutingMode) {
    let lab_options = LabOptions {
        routing_mode,
        ..lab_options(2, &[AT_PACKETS], None)
    };
    let lab = TestLab::up_with(test, lab_options).await;
    lab.create_all([
        client_pod("client", NODE),
        echo_pod("near-0", "shop", NODE),
        echo_pod("near-1", "shop", NODE),
        echo_pod("far-0", "shop", "c1-n2"),
        echo_pod("far-1", "shop", "c1-n2"),
        echo_pod("far-2", "shop", "c1-n2"),
    ])
    .await;
    let shop = lab.create_shop(json!({"type": "NodePort"})).await;
    for ip in cluster_ips(&shop) {
        for mode in [CallMode::TCP, CallMode::UDP] {
            let all_answer =
                |outcome: &skep_lab::echo::Outcome| outcome.failed == 0 && outcome.servers.len() == 5;
            lab.call_until("default/client", &at(&ip, 80), mode, 50, all_answer)
                .await;
        }
    }
    let holder = lab.session.state().unwrap().nodes[NODE];
    let kernel = Arc::new(Kernel::open(holder));
    lab.wait("nothing changes", || async {
        let before = kernel.state().unwrap();
        tokio::time::sleep(SETTLED).await;
        kernel.state().unwrap() == before
    })
    .await;

    let (before, stop, ids) = (kernel.state().unwrap(), CancellationToken::new(), kernel.ids());
    let maps = tokio::task::spawn_blocking({
        let (kernel, before, stop) = (kernel.clone(), before.clone(), stop.clone());
        move || kernel.watch(&before, &stop)
    });
    let network = tokio::task::spawn_blocking({
        let (place, stop) = (Place::of(holder), stop.clone());
        move || lost_in(place, stop)
    });
    for signal in ["-KILL", "-TERM"] {
        for _ in 0..RESTARTS {
            let agent = lab.agent(NODE);
            lab.run(NODE, &["kill", signal, &agent.to_string()]).await;
            lab.wait_agent(NODE, agent).await;
        }
    }
    // A service that comes last is in the maps when all is that was before.
    let last = skep_lab::session::dual_stack_service("last", &json!({"selector": {"app": "shop"}}));
    let last = lab.session.create(last).await.unwrap();
    for ip in cluster_ips(&last) {
        lab.call_until("default/client", &at(&ip, 80), CallMode::TCP, 5, |outcome| {
            outcome.failed == 0
        })
        .await;
    }
    stop.cancel();

    let changed = maps.await.unwrap().unwrap();
    assert!(changed.is_empty(), "{changed:#?}");
    let lost = network.await.unwrap().unwrap();
    assert!(lost.is_empty(), "{lost:#?}");
    assert_eq!(Kernel::open(holder).ids(), ids, "maps were replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_with_the_same_settings_change_nothing_with_native_routing() {
    is_unchanged_by_restarts("unchanged", RoutingMode::Native).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_with_the_same_settings_change_nothing_with_routes_of_agents() {
    is_unchanged_by_restarts("unchanged-dir", RoutingMode::Direct).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_with_the_same_settings_change_nothing_with_a_tunnel() {
    is_unchanged_by_restarts("unchanged-tun", RoutingMode::Tunnel).await;
}
