// SPDX-License-Identifier: Apache-2.0

//! The cell with maps in memory.

use std::{net::IpAddr, sync::Arc, time::Duration};

use hive::{Cell, Hive, Member, Running, Settings};
use skep_base_metrics::{Registry, exposition};
use skep_bpf_maps::{
    conntrack::OWNER,
    nat::{NAT4, NAT6, NatEntry4, NatEntry6, NatKey4, NatKey6},
};
use skep_bpf_sys::Map;
use skep_datapath_maps::{MapOwner, Maps};
use statedb::{Db, Row as _, Table};
use zerocopy::{FromZeros as _, network_endian::U16};

use crate::NatStat;

const INTERVAL: Duration = Duration::from_secs(30);

struct World {
    running: Running,
    nat4: Map<NatKey4, NatEntry4>,
    nat6: Map<NatKey6, NatEntry6>,
}

impl World {
    async fn start(flags: &[&'static str]) -> Self {
        let owner = || Member(MapOwner::new(OWNER));
        let hive = Hive::new([
            statedb::cell(),
            skep_base_metrics::cell(),
            skep_base_settings::cell(),
            skep_datapath_maps::in_memory_cell(),
            Cell::module("packets", "Programs at interfaces").provide(owner),
            crate::cell(),
        ])
        .root::<Arc<Maps>>()
        .root::<Arc<Registry>>()
        .root::<Db>()
        .root::<Table<NatStat>>();
        let running = hive::testing::start_with(hive, Settings::new().args(flags.iter().copied())).await;
        let maps = running.get::<Arc<Maps>>().unwrap();
        Self {
            nat4: maps.handle(&NAT4),
            nat6: maps.handle(&NAT6),
            running,
        }
    }

    /// Flows of these ports, from one address to this one; both halves of each.
    fn add4(&self, to: [u8; 4], port: u16, proto: u8, ports: impl IntoIterator<Item = u16>) {
        for source in ports {
            let key = NatKey4 {
                daddr: [172, 30, 0, 1],
                saddr: to,
                dport: U16::new(source),
                sport: U16::new(port),
                proto,
                flags: 1,
            };
            self.nat4.update(&key, &NatEntry4::new_zeroed()).unwrap();
            let forward = NatKey4 { flags: 0, ..key };
            self.nat4.update(&forward, &NatEntry4::new_zeroed()).unwrap();
        }
    }

    fn add6(&self, port: u16, ports: impl IntoIterator<Item = u16>) {
        for source in ports {
            let key = NatKey6 {
                daddr: [0x30; 16],
                saddr: [0x20; 16],
                dport: U16::new(source),
                sport: U16::new(port),
                proto: 17,
                flags: 1,
            };
            self.nat6.update(&key, &NatEntry6::new_zeroed()).unwrap();
        }
    }

    /// Rows of the table, as they are shown.
    fn rows(&self) -> Vec<String> {
        let (db, table) = self.table();
        let snapshot = db.read();
        table.all(&snapshot).map(|row| row.cells().join(" ")).collect()
    }

    fn table(&self) -> (Db, Table<NatStat>) {
        let db = self.running.get::<Db>().unwrap();
        let table = self.running.get::<Table<NatStat>>().unwrap();
        (db.clone(), table.clone())
    }

    fn fullest(&self, family: &str) -> Option<f64> {
        let text = exposition(&self.running.get::<Arc<Registry>>().unwrap());
        let name = format!("cilium_nat_endpoint_max_connection{{family=\"{family}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
        Some(line.parse().unwrap())
    }

    /// The next count is done: the metric says so, or the table.
    async fn until(&self, is_done: impl Fn(&Self) -> bool) {
        // Blocking work takes real time, and the clock stands still meanwhile.
        for _ in 0..1000 {
            if is_done(self) {
                return;
            }
            tokio::time::sleep(INTERVAL / 10).await;
        }
        panic!("{:?}, {:?}", self.rows(), self.fullest("ipv4"));
    }
}

#[tokio::test(start_paused = true)]
async fn destinations_with_most_ports_are_in_the_table_and_the_fullest_in_the_metric() {
    // 100 source ports.
    let flags = ["--node-port-range=30000,65435", "--nat-map-stats-entries=2"];
    let world = World::start(&flags).await;
    world.until(|world| world.fullest("ipv4") == Some(0.0)).await;

    world.add4([203, 0, 113, 5], 443, 6, 65_436..65_456);
    world.add4([203, 0, 113, 5], 53, 17, 65_436..65_466);
    world.add4([203, 0, 113, 6], 443, 6, [65_436]);
    // A process of the node that was not given a port of SNAT.
    world.add4([203, 0, 113, 6], 443, 6, 40_000..40_050);
    world.add6(53, 65_436..65_486);
    world.until(|world| world.fullest("ipv6") == Some(50.0)).await;

    assert_eq!(world.fullest("ipv4"), Some(30.0));
    world.until(|world| !world.rows().is_empty()).await;
    assert_eq!(
        world.rows(),
        [
            "ipv4 TCP 172.30.0.1 203.0.113.5:443 20",
            "ipv4 UDP 172.30.0.1 203.0.113.5:53 30",
            "ipv6 UDP 3030:3030:3030:3030:3030:3030:3030:3030 [2020:2020:2020:2020:2020:2020:2020:2020]:53 50",
        ]
    );
    let address: IpAddr = [172, 30, 0, 1].into();
    let (db, table) = world.table();
    let snapshot = db.read();
    let json = table.all(&snapshot).next().unwrap().to_json().unwrap();
    assert_eq!(json["EgressIP"], address.to_string());
    assert_eq!(
        (&json["Count"], &json["RemoteAddr"]),
        (&20.into(), &"203.0.113.5:443".into())
    );
    let revision = table.revision(&snapshot);

    // What stays the same is not written again.
    tokio::time::sleep(INTERVAL * 3).await;
    assert_eq!(table.revision(&db.read()), revision);

    world.nat4.clear().unwrap();
    world.nat6.clear().unwrap();
    world.until(|world| world.rows().is_empty()).await;
    assert_eq!(
        (world.fullest("ipv4"), world.fullest("ipv6")),
        (Some(0.0), Some(0.0))
    );
    hive::testing::stop(world.running).await;
}

#[tokio::test(start_paused = true)]
async fn echo_requests_have_ids_instead_of_ports() {
    let world = World::start(&["--node-port-range=30000,65435"]).await;
    world.add4([203, 0, 113, 5], 0, 1, 0..6554);
    world
        .until(|world| world.fullest("ipv4").is_some_and(|percent| percent > 9.9))
        .await;

    world.until(|world| !world.rows().is_empty()).await;
    assert_eq!(world.rows(), ["ipv4 ICMP 172.30.0.1 203.0.113.5 6554"]);
    assert!(world.fullest("ipv4").unwrap() < 10.1);
    hive::testing::stop(world.running).await;
}

#[tokio::test(start_paused = true)]
async fn among_many_destinations_only_the_fullest_are_rows() {
    let world = World::start(&["--nat-map-stats-entries=1"]).await;
    for n in 0..5000_u32 {
        let [_, high, middle, low] = n.to_be_bytes();
        world.add4([100, high, middle, low], 443, 6, [40_000]);
    }
    world.add4([50, 0, 113, 5], 443, 6, 40_000..40_200);
    world.until(|world| !world.rows().is_empty()).await;

    world
        .until(|world| world.rows() == ["ipv4 TCP 172.30.0.1 50.0.113.5:443 200"])
        .await;
    hive::testing::stop(world.running).await;
}

#[tokio::test(start_paused = true)]
async fn without_rows_maps_are_not_walked() {
    let world = World::start(&["--nat-map-stats-entries=0"]).await;
    world.add4([203, 0, 113, 5], 443, 6, 40_000..40_200);

    tokio::time::sleep(INTERVAL * 10).await;

    assert_eq!((world.rows().len(), world.fullest("ipv4")), (0, None));
    hive::testing::stop(world.running).await;
}

#[test]
fn an_interval_of_zero_is_an_error() {
    let hive = Hive::new([
        statedb::cell(),
        skep_base_metrics::cell(),
        skep_base_settings::cell(),
        skep_datapath_maps::in_memory_cell(),
        crate::cell(),
    ]);
    let report = hive
        .plan(Settings::new().args(["--nat-map-stats-interval=0s"]))
        .unwrap_err()
        .to_string();
    assert!(report.contains("nat-map-stats-interval"), "{report}");
}
