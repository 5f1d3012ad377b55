// SPDX-License-Identifier: Apache-2.0

//! The cell with fake collectors, which report what the test sets.

use std::{collections::BTreeSet, io, net::IpAddr, sync::Arc, time::Duration};

use hive::{Cell, Hive, Level, Member, Running, Settings};
use parking_lot::Mutex;
use skep_base_metrics::{Registry, exposition};
use skep_bpf_maps::{
    collect::{CollectError, Collected, FlowCollector, FlowMap, NatCount, Purged, Removal},
    conntrack::OWNER,
    nat::{NAT_ATTEMPTS, NAT_RETRIES4, NAT4, NatEntry4, NatKey4},
};
use skep_datapath_maps::{MapOwner, Maps};
use tokio::time::Instant;
use zerocopy::{FromZeros as _, network_endian::U16};

use crate::{CollectorSource, Conntrack, SourceError, ports::SourcePorts};

/// Reports for each of the two maps of IPv4, of 1000 entries, the deletes that the test sets.
#[derive(Default)]
struct Fake {
    deletes: Mutex<u64>,
    fails: Mutex<bool>,
    is_absent: Mutex<bool>,
    /// Entries of the second map beyond 250.
    more: Mutex<u64>,
    /// NAT entries of IPv4, of 1000.
    translations: Mutex<u64>,
    /// The kernel does not count NAT entries.
    is_old_kernel: Mutex<bool>,
    passes: Mutex<Vec<(Instant, FlowMap, Removal)>>,
    purges: Mutex<Vec<bool>>,
}

struct Handle(Arc<Fake>);

impl CollectorSource for Handle {
    fn collector(&self) -> Result<Option<Arc<dyn FlowCollector>>, SourceError> {
        let is_absent = *self.0.is_absent.lock();
        Ok((!is_absent).then(|| Arc::new(Self(self.0.clone())) as Arc<dyn FlowCollector>))
    }
}

impl FlowCollector for Handle {
    fn max_entries(&self, map: FlowMap) -> Option<u32> {
        (!map.is_ipv6()).then_some(1000)
    }

    fn count(&self, map: FlowMap) -> Option<u64> {
        (map == FlowMap::Any4).then(|| 250 + *self.0.more.lock())
    }

    fn max_nat_entries(&self, is_ipv6: bool) -> Option<u32> {
        (!is_ipv6).then_some(1000)
    }

    fn count_nat(&self, is_ipv6: bool) -> Option<u64> {
        (!is_ipv6 && !*self.0.is_old_kernel.lock()).then(|| *self.0.translations.lock())
    }

    fn walk_nat(&self, _: bool) -> Result<u64, CollectError> {
        Ok(*self.0.translations.lock())
    }

    fn collect(&self, map: FlowMap, removal: &Removal) -> Result<Collected, CollectError> {
        if *self.0.fails.lock() {
            return Err(CollectError::Iterate {
                map: map.family().name,
                source: io::Error::other("broken"),
            });
        }
        let mut passes = self.0.passes.lock();
        passes.push((Instant::now(), map, removal.clone()));
        Ok(Collected {
            alive: 10,
            deleted: *self.0.deletes.lock(),
            nat_deleted: NatCount {
                forward: 1,
                reverse: 2,
            },
        })
    }

    fn purge(&self, is_ipv6: bool) -> Result<Purged, CollectError> {
        self.0.purges.lock().push(is_ipv6);
        Ok(Purged::default())
    }
}

async fn start(fake: &Arc<Fake>, flags: &[&'static str]) -> Running {
    start_cells(fake, flags, None).await
}

/// As [`start`], on a node whose programs track flows: with their maps.
async fn start_with_maps(fake: &Arc<Fake>, flags: &[&'static str]) -> Running {
    let owner = || Member(MapOwner::new(OWNER));
    let packets = Cell::module("packets", "Programs at interfaces").provide(owner);
    start_cells(fake, flags, Some(packets)).await
}

async fn start_cells(fake: &Arc<Fake>, flags: &[&'static str], packets: Option<Cell>) -> Running {
    let source = fake.clone();
    let fake = Cell::module("fake", "Fake collectors")
        .provide(move || Arc::new(Handle(source.clone())) as Arc<dyn CollectorSource>);
    let cells = [
        skep_base_metrics::cell(),
        skep_base_settings::cell(),
        skep_datapath_maps::in_memory_cell(),
        crate::cell::module(),
        fake,
    ];
    let hive = Hive::new(cells.into_iter().chain(packets))
        .root::<Arc<Conntrack>>()
        .root::<Arc<Maps>>()
        .root::<Arc<Registry>>();
    hive::testing::start_with(hive, Settings::new().args(flags.iter().copied())).await
}

fn conntrack(running: &Running) -> Arc<Conntrack> {
    running.get::<Arc<Conntrack>>().unwrap().clone()
}

/// When passes over the first map began.
fn times(fake: &Fake, start: Instant) -> Vec<u64> {
    let passes = fake.passes.lock();
    let first = passes.iter().filter(|(_, map, _)| *map == FlowMap::Tcp4);
    first.map(|(time, ..)| (*time - start).as_secs()).collect()
}

fn health(running: &Running, job: &str) -> (Level, String) {
    let entries = running.health().entries();
    let found = entries.iter().find(|entry| entry.id.to_string().ends_with(job));
    found.map_or((Level::Ok, String::new()), |entry| {
        (entry.level, entry.message.to_string())
    })
}

fn errors(running: &Running) -> Vec<String> {
    let entries = running.health().entries();
    let errors = entries.iter().filter_map(|entry| entry.error.as_deref());
    errors.map(ToOwned::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn passes_come_at_start_and_when_they_are_due() {
    let fake = Arc::new(Fake::default());
    *fake.deletes.lock() = 400;
    let begin = Instant::now();

    let running = start(&fake, &[]).await;
    // 300 s less 40 %: 180 s, 108 s, 65 s.
    tokio::time::sleep(Duration::from_secs(300)).await;

    assert_eq!(times(&fake, begin), [0, 180, 288]);
    let (level, message) = health(&running, "collect");
    assert_eq!(level, Level::Ok);
    assert_eq!(message, "800 entries deleted, 20 are alive, next pass in 65s");
    assert!(fake.purges.lock().is_empty(), "no signal, no purge");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_fixed_interval_is_kept() {
    let fake = Arc::new(Fake::default());
    *fake.deletes.lock() = 900;
    let begin = Instant::now();

    let running = start(&fake, &["--conntrack-gc-interval=30s"]).await;
    tokio::time::sleep(Duration::from_secs(95)).await;

    assert_eq!(times(&fake, begin), [0, 30, 60, 90]);
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_in_between_puts_the_next_one_off() {
    let fake = Arc::new(Fake::default());
    let begin = Instant::now();
    let running = start(&fake, &[]).await;
    tokio::time::sleep(Duration::from_secs(200)).await;

    let done = conntrack(&running).collect().await.unwrap();
    tokio::time::sleep(Duration::from_secs(350)).await;

    assert_eq!((done.maps, done.alive, done.nat_deleted.total()), (2, 20, 6));
    assert_eq!(times(&fake, begin), [0, 200, 500]);
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn entries_of_addresses_and_all_are_removed_on_request() {
    let fake = Arc::new(Fake::default());
    let running = start(&fake, &[]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    fake.passes.lock().clear();
    let conntrack = conntrack(&running);
    let pod: IpAddr = "10.0.1.5".parse().unwrap();

    conntrack.forget([pod]).await.unwrap();
    conntrack.forget([]).await.unwrap();
    conntrack
        .forget(["fd00::5".parse::<IpAddr>().unwrap()])
        .await
        .unwrap();
    conntrack.flush().await.unwrap();

    let removals: Vec<Removal> = fake
        .passes
        .lock()
        .iter()
        .map(|(.., removal)| removal.clone())
        .collect();
    let of_pod = Removal::Addresses(BTreeSet::from([pod]));
    assert_eq!(
        removals,
        [of_pod.clone(), of_pod, Removal::All, Removal::All],
        "IPv6 maps are not there"
    );
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_fails_is_repeated_and_said() {
    let fake = Arc::new(Fake::default());
    *fake.fails.lock() = true;
    let begin = Instant::now();
    let running = start(&fake, &[]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(health(&running, "collect").0, Level::Degraded);

    *fake.fails.lock() = false;
    tokio::time::sleep(Duration::from_secs(60)).await;

    assert_eq!(health(&running, "collect").0, Level::Ok);
    let times = times(&fake, begin);
    assert!(times.len() == 1 && times[0] <= 30, "{times:?}");
    let text = exposition(&running.get::<Arc<Registry>>().unwrap());
    for line in [
        r#"cilium_datapath_conntrack_gc_runs_total{family="ipv4",protocol="TCP",status="completed"} 1"#,
        r#"cilium_datapath_conntrack_gc_runs_total{family="ipv4",protocol="non-TCP",status="uncompleted"}"#,
        r#"cilium_datapath_conntrack_gc_entries{family="ipv4",protocol="TCP",status="alive"} 10"#,
        r#"cilium_datapath_conntrack_gc_interval_seconds{global="global"} 300"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn without_maps_nothing_is_done() {
    let fake = Arc::new(Fake::default());
    *fake.is_absent.lock() = true;
    let running = start(&fake, &[]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(health(&running, "collect").1, "No flows are tracked");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn translations_are_purged_of_the_family_that_asks_for_it() {
    let fake = Arc::new(Fake::default());
    let running = start(&fake, &[]).await;

    let conntrack = conntrack(&running);
    conntrack.collect_and(|is_ipv6| is_ipv6).await.unwrap();

    assert_eq!(*fake.purges.lock(), [true]);
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn maps_are_as_full_as_passes_find_or_the_kernel_counts() {
    let fake = Arc::new(Fake::default());
    let running = start(&fake, &[]).await;
    let registry = running.get::<Arc<Registry>>().unwrap().clone();
    let is = |name: &str, pressure: &str| {
        let line = format!("cilium_bpf_map_pressure{{map_name=\"{name}\"}} {pressure}\n");
        let text = exposition(&registry);
        assert!(text.contains(&line), "{line} is not in\n{text}");
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    is("ct4_global", "0.01");
    is("ct_any4_global", "0.01");

    tokio::time::sleep(Duration::from_secs(30)).await;

    is("ct4_global", "0.01");
    is("ct_any4_global", "0.25");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_map_is_named_by_health_until_it_has_room() {
    let fake = Arc::new(Fake::default());
    *fake.more.lock() = 740;
    let running = start(&fake, &[]).await;

    tokio::time::sleep(Duration::from_secs(31)).await;
    let expected = "maps of flows are full, new flows evict others: cilium_ct_any4_global has 990 of 1000 entries \
                    (bpf-ct-global-any-max)";
    assert_eq!(errors(&running), [expected]);

    *fake.more.lock() = 0;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(health(&running, "report-pressure").0, Level::Ok);
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_nat_map_is_named_by_health_until_it_has_room() {
    // The kernel counts entries every 30 s, or each pass does, after 300 s.
    for (is_old_kernel, checks) in [(false, [31, 31]), (true, [31, 601])] {
        let fake = Arc::new(Fake::default());
        *fake.translations.lock() = 960;
        *fake.is_old_kernel.lock() = is_old_kernel;
        let running = start(&fake, &[]).await;

        tokio::time::sleep(Duration::from_secs(checks[0])).await;

        let expected = "maps of flows are full, new flows evict others: cilium_snat_v4_external has 960 of 1000 \
                        entries (bpf-nat-global-max)";
        assert_eq!(errors(&running), [expected]);
        let line = "cilium_bpf_map_pressure{map_name=\"snat_v4_external\"} 0.96\n";
        let text = exposition(&running.get::<Arc<Registry>>().unwrap());
        assert!(text.contains(line), "{line} is not in\n{text}");

        *fake.translations.lock() = 0;
        tokio::time::sleep(Duration::from_secs(checks[1])).await;
        assert_eq!(health(&running, "report-pressure").0, Level::Ok);
        hive::testing::stop(running).await;
    }
}

/// Sets how many packets found no source port.
fn count_failures(maps: &Maps, count: u32) {
    let map = maps.get(NAT_RETRIES4.name).unwrap().raw();
    let mut values = vec![0; map.value_len()];
    values[..4].copy_from_slice(&count.to_ne_bytes());
    let failed = map.update(&NAT_ATTEMPTS.to_ne_bytes(), &values);
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn source_ports_that_ran_out_are_in_health_with_who_has_them_until_flows_find_some() {
    let fake = Arc::new(Fake::default());
    // 20 source ports.
    let running = start_with_maps(&fake, &["--node-port-range=30000,65515"]).await;
    let maps = running.get::<Arc<Maps>>().unwrap().clone();
    let nat = maps.handle(&NAT4);
    for (port, last) in (65_510..=65_535).zip([5; 26]).chain([(65_520, 6)]) {
        let key = NatKey4 {
            daddr: [172, 30, 0, 1],
            saddr: [203, 0, 113, last],
            dport: U16::new(port),
            sport: U16::new(443),
            proto: 6,
            flags: 1,
        };
        nat.update(&key, &NatEntry4::new_zeroed()).unwrap();
        nat.update(&NatKey4 { flags: 0, ..key }, &NatEntry4::new_zeroed())
            .unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    count_failures(&maps, 3);

    tokio::time::sleep(Duration::from_secs(30)).await;

    let expected = "SNAT found no source port for ipv4 (`node-port-range` leaves 20), packets of new flows dropped: 3; \
                    TCP from 172.30.0.1 to 203.0.113.5:443 has 20 of 20";
    let (level, _) = health(&running, "report-source-ports");
    let errors = errors(&running);
    assert_eq!(level, Level::Degraded);
    assert!(errors.contains(&expected.to_owned()), "{errors:?}");
    let line = "cilium_datapath_nat_port_allocation_failures_total{family=\"ipv4\"} 3\n";
    let text = exposition(&running.get::<Arc<Registry>>().unwrap());
    assert!(text.contains(line), "{line} is not in\n{text}");

    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(health(&running, "report-source-ports").0, Level::Ok);

    // `skep bpf nat retries flush`.
    count_failures(&maps, 0);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(health(&running, "report-source-ports").0, Level::Ok);
    hive::testing::stop(running).await;
}

#[test]
fn failures_from_before_the_agent_are_not_reported() {
    let maps = Arc::new(Maps::in_memory([MapOwner::new(OWNER)]).unwrap());
    count_failures(&maps, 7);
    let ports = SourcePorts::new(maps.clone(), "30000,32767".parse().unwrap(), Arc::default());

    ports.check().unwrap();
    count_failures(&maps, 8);

    let error = ports.check().unwrap_err().to_string();
    let expected = "SNAT found no source port for ipv4 (`node-port-range` leaves 32768), packets of new flows dropped: 1";
    assert_eq!(error, expected);
}
