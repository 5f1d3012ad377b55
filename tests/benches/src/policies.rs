// SPDX-License-Identifier: Apache-2.0

//! Policies of endpoints, from objects to the maps in the kernel; and what they cost packets.

use std::{
    path::PathBuf,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use clap::Args;
use hive::{Cell, Hive, Running, Settings};
use parking_lot::Mutex;
use run_packets::measure::{Costs, Load, WayCalls, count_between_pods, measure_between_pods};
use serde_json::{Value, json};
use skep_bpf_maps::policy::{PolicyEntry, PolicyKey, policy_pin};
use skep_bpf_sys::{MapStore, testing::Node};
use skep_identity::{Labels, NumericIdentity};
use skep_identity_cache::{IdentitySource, SecurityIdentity, Writer as IdentityWriter};
use skep_ipcache::IdentityUser;
use skep_policy_maps::PolicyMaps;
use skep_policy_repository::Repository;
use skep_policy_sources::{Origin, PolicyRow};
use statedb::{Db, InitGuard, RwTable, Table};
use tokio::runtime::Runtime;

use crate::{
    datapath,
    report::{Report, Row, median, milliseconds, quantiles},
    usage,
};

const NAME: &str = "policies";
const NAMESPACES: u32 = 50;
const APPS: u32 = 100;
const FIRST_IDENTITY: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_micros(200);
/// Rounds of packets without and with policies, in turn.
const ROUNDS: usize = 3;
/// Entries of a policy beside the one of a packet.
const ENTRIES: u32 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// From objects to maps.
    Maps,
    /// Packets with a policy, against the same without.
    Packets,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What is measured; by default all.
    cases: Vec<Case>,
    #[arg(long, default_value_t = 1_000)]
    policies: u32,
    #[arg(long, default_value_t = 5_000)]
    identities: u32,
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=2000))]
    endpoints: u16,
    /// Identities, and then policies, that are added one after another.
    #[arg(long, default_value_t = 100)]
    more: u32,
    /// Calls of each kind of packet.
    #[arg(long, default_value_t = 20_000)]
    calls: u32,
    /// Recorded packets, and the facts of their node.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../packets/testdata"))]
    recorded: PathBuf,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let cases = match options.cases.as_slice() {
        [] => &[Case::Maps, Case::Packets],
        cases => cases,
    };
    for case in cases {
        match case {
            Case::Maps => {
                for policies in [options.policies / 10, options.policies] {
                    Node::run(NAME, |node| {
                        let done = maps(node, options, policies, report);
                        datapath::remove_cgroup(node, NAME);
                        Ok::<_, std::io::Error>(done)
                    })??;
                }
            }
            Case::Packets => packets(options, report)?,
        }
    }
    Ok(())
}

/// Table `network-policies`, which objects are written to by the benchmark.
struct Objects {
    table: RwTable<PolicyRow>,
    /// Taken when all are there.
    listed: Mutex<Option<InitGuard>>,
}

fn objects(db: Db) -> Result<Arc<Objects>, statedb::Error> {
    let table = RwTable::builder("network-policies")
        .primary(PolicyRow::BY_KEY)
        .build(&db)?;
    let mut txn = db.write(&[&table]);
    let listed = table.register_initializer(&mut txn, NAME)?;
    txn.commit();
    Ok(Arc::new(Objects {
        table,
        listed: Mutex::new(Some(listed)),
    }))
}

struct World {
    runtime: Runtime,
    hive: Option<Running>,
    db: Db,
    objects: Arc<Objects>,
    identities: IdentityWriter,
    known: Table<SecurityIdentity>,
    maps: PolicyMaps,
    repository: Repository,
    user: Arc<dyn IdentityUser>,
    store: Arc<MapStore>,
}

impl World {
    fn start(node: &Node) -> anyhow::Result<Self> {
        let cells = [
            statedb::cell(),
            skep_base_settings::cell(),
            skep_base_settings::cluster::cell(),
            skep_base_settings::node_name::cell(),
            skep_datapath_maps::cell(),
            skep_node_local::cells::local_node(),
            skep_identity_cache::cell(),
            skep_ipcache::cell(),
            skep_policy_maps::cell(),
            skep_policy_repository::cell(),
            Cell::module("objects", "Objects of the benchmark")
                .provide(objects)
                .provide(|objects: Arc<Objects>| objects.table.reader()),
        ];
        let plan = Hive::new(cells)
            .root::<Db>()
            .root::<Arc<Objects>>()
            .root::<IdentityWriter>()
            .root::<Table<SecurityIdentity>>()
            .root::<PolicyMaps>()
            .root::<Repository>()
            .root::<Arc<dyn IdentityUser>>()
            .root::<Arc<MapStore>>()
            .plan(Settings::new().args([format!("--bpf-root={}", node.bpf_root().display())]))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let hive = runtime.block_on(async { plan.build()?.start().await.map_err(anyhow::Error::from) })?;
        let missing = "a root of the hive";
        Ok(Self {
            db: hive.get().context(missing)?,
            objects: hive.get().context(missing)?,
            identities: hive.get().context(missing)?,
            known: hive.get().context(missing)?,
            maps: hive.get().context(missing)?,
            repository: hive.get().context(missing)?,
            user: hive.get().context(missing)?,
            store: hive.get().context(missing)?,
            runtime,
            hive: Some(hive),
        })
    }

    fn add_identities(
        &self,
        numbers: std::ops::Range<u32>,
        labels: impl Fn(u32) -> String,
    ) -> anyhow::Result<u64> {
        let mut txn = self.identities.write();
        for number in numbers {
            let row = SecurityIdentity {
                id: identity(number),
                source: IdentitySource::Kubernetes,
                cluster: "default".into(),
                labels: Arc::new(labels(number).parse::<Labels>()?),
                object: Default::default(),
            };
            self.identities.upsert(&mut txn, row)?;
        }
        txn.commit();
        Ok(self.known.revision(&self.db.read()))
    }

    fn add_policies(&self, objects: Vec<PolicyRow>, are_all: bool) -> anyhow::Result<()> {
        let mut txn = self.db.write(&[&self.objects.table]);
        for row in objects {
            self.objects.table.insert(&mut txn, row)?;
        }
        if are_all && let Some(listed) = self.objects.listed.lock().take() {
            txn.initialized(&listed)?;
        }
        txn.commit();
        Ok(())
    }

    fn revision(&self) -> u64 {
        self.repository.with(|policies| policies.revision())
    }

    /// Waits until the maps of all endpoints have what the rules of this revision say.
    fn wait(&self, revision: u64, endpoints: u16) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let snapshot = self.db.read();
            let is_realized = |endpoint| {
                let row = self.maps.get(&snapshot, endpoint);
                let realized = row.and_then(|row| row.current());
                realized.is_some_and(|realized| realized.revision >= revision)
            };
            if (0..endpoints).all(is_realized) {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "policies of revision {revision} are not in the maps; the rules have {}",
                self.revision()
            );
            sleep(POLL);
        }
    }

    /// Entries in the kernel, which are what is desired.
    fn check(&self, endpoints: u16) -> anyhow::Result<usize> {
        let snapshot = self.db.read();
        let mut all = 0;
        for endpoint in 0..endpoints {
            let row = self.maps.get(&snapshot, endpoint);
            let desired = row.and_then(|row| row.desired.clone()).context("no policy")?;
            let map = self.store.open::<PolicyKey, PolicyEntry>(&policy_pin(endpoint))?;
            let found = map.entries()?.len();
            ensure!(
                found == desired.state.len(),
                "endpoint {endpoint}: {found} of {} entries",
                desired.state.len()
            );
            all += found;
        }
        Ok(all)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(hive) = self.hive.take() {
            let _ = self.runtime.block_on(hive.stop());
        }
    }
}

fn identity(number: u32) -> NumericIdentity {
    NumericIdentity::new(FIRST_IDENTITY + number)
}

fn labels(number: u32) -> String {
    let (namespace, app) = (number % NAMESPACES, number / NAMESPACES % APPS);
    of_namespace(&format!("n{namespace}"), &format!("a{app}"), number)
}

/// Labels of a pod in a namespace that no policy is about.
fn other_labels(number: u32) -> String {
    of_namespace("other", "other", number)
}

fn of_namespace(namespace: &str, app: &str, number: u32) -> String {
    format!(
        "k8s:app={app};k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name={namespace};\
         k8s:io.cilium.k8s.policy.cluster=default;k8s:io.kubernetes.pod.namespace={namespace};k8s:number={number};"
    )
}

/// Selects pods of one application in one namespace, and allows three others, a namespace and DNS.
fn policy(number: u32) -> PolicyRow {
    let app = |app: u32| json!({ "matchLabels": { "app": format!("a{}", app % APPS) } });
    let other = format!("n{}", (number + 1) % NAMESPACES);
    let (name, namespace) = (format!("p{number}"), format!("n{}", number % NAMESPACES));
    let object: Value = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "podSelector": app(number / NAMESPACES),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                { "from": [{ "podSelector": app(number + 1) }, { "podSelector": app(number + 2) }], "ports": [{ "port": 8080 }] },
                { "from": [{ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": other } } }],
                  "ports": [{ "port": 9090, "endPort": 9099 }] },
            ],
            "egress": [{ "to": [{ "podSelector": app(number + 3) }] }, { "ports": [{ "port": 53, "protocol": "UDP" }] }],
        },
    });
    PolicyRow {
        origin: Origin::Kubernetes,
        kind: "NetworkPolicy",
        namespace,
        name,
        object: Arc::new(object),
    }
}

fn maps(node: &Node, options: &Options, policies: u32, report: &mut Report) -> anyhow::Result<()> {
    let (identities, endpoints) = (options.identities, options.endpoints);
    let is_whole = policies == options.policies;
    let world = World::start(node)?;
    // Of all namespaces and applications that policies are about.
    let requested =
        (0..endpoints).map(|endpoint| (endpoint, identity(u32::from(endpoint) * 25 % identities)));
    world.maps.request(requested)?;
    let objects: Vec<PolicyRow> = (0..policies).map(policy).collect();

    // Each object is a revision.
    let before = world.revision();
    usage::reset_peak()?;
    let (used, begun) = (usage::processor_time(), Instant::now());
    world.add_identities(0..identities, labels)?;
    world.add_policies(objects, true)?;
    world.wait(before + u64::from(policies), endpoints)?;
    let (took, used) = (begun.elapsed(), usage::processor_time() - used);
    let entries = world.check(endpoints)?;
    let case = format!("{policies} policies × {identities} identities × {endpoints} endpoints");
    let only = |target: f64| is_whole.then_some(target);
    report.add(Row::cost(format!("{case}: from objects to maps"), took.as_secs_f64(), "s").target(only(2.0)));
    report.add(Row::cost(
        format!("{case}: processor time"),
        used.as_secs_f64(),
        "s",
    ));
    report.add(
        Row::cost(
            format!("{case}: highest resident memory"),
            usage::peak_mib()?,
            "MiB",
        )
        .target(only(150.0)),
    );
    report.add(Row::cost(
        format!("{case}: entries in the maps"),
        entries as f64,
        "",
    ));

    let kinds: [(&str, fn(u32) -> String); 2] = [
        ("that rules select", labels),
        ("that no rule selects", other_labels),
    ];
    let mut next = identities;
    for (what, labels) in kinds {
        let (mut times, used) = (Vec::new(), usage::processor_time());
        for _ in 0..options.more {
            let begun = Instant::now();
            let revision = world.add_identities(next..next + 1, labels)?;
            world.runtime.block_on(world.user.wait(revision));
            times.push(begun.elapsed());
            next += 1;
        }
        let used = milliseconds(usage::processor_time() - used) / f64::from(options.more);
        add(
            report,
            &format!("an identity more {what}, {policies} policies, all maps"),
            times,
            used,
            2.0,
        );
    }
    let (mut times, used) = (Vec::new(), usage::processor_time());
    for number in policies..policies + options.more {
        let object = policy(number);
        let before = world.revision();
        let begun = Instant::now();
        world.add_policies(vec![object], false)?;
        world.wait(before + 1, endpoints)?;
        times.push(begun.elapsed());
    }
    let used = milliseconds(usage::processor_time() - used) / f64::from(options.more);
    add(
        report,
        &format!("a policy more, {policies} policies, all maps"),
        times,
        used,
        10.0,
    );
    world.check(endpoints)?;
    Ok(())
}

fn add(report: &mut Report, what: &str, times: Vec<Duration>, used: f64, target: f64) {
    let delays = quantiles(times);
    report.add(Row::cost(format!("{what}: p50"), delays(0.5), "ms").target(target));
    report.add(Row::cost(format!("{what}: p99"), delays(0.99), "ms"));
    report.add(Row::cost(format!("{what}: processor time"), used, "ms"));
}

/// What policies add to packets between pods of the node.
fn packets(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let load = Load {
        services: 1,
        flows: 10_000,
        flow_table: 0,
    };
    let kinds = [None, Some(ENTRIES)];
    let mut rounds: [Vec<Vec<Costs>>; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (all, policy) in rounds.iter_mut().zip(kinds) {
            all.push(measure_between_pods(
                &options.recorded,
                options.calls,
                load,
                policy,
            )?);
        }
    }
    let [before, after] = kinds.map(|policy| count_between_pods(&options.recorded, policy));
    let (before, after) = (before?, after?);
    for (index, way) in rounds[0][0].iter().enumerate() {
        let family = if way.is_ipv6 { "IPv6" } else { "IPv4" };
        let p10 = |all: &[Vec<Costs>], of: fn(&Costs) -> u64| {
            median(all.iter().map(|costs| of(&costs[index]) as f64).collect())
        };
        let established = |costs: &Costs| costs.established.map_or(0, |cost| cost.p10);
        let kinds: [(&str, fn(&Costs) -> u64, f64); 2] = [
            ("first packet", |costs| costs.first.p10, 60.0),
            // As precise as the clock.
            ("established", established, 5.0),
        ];
        for (kind, of, target) in kinds {
            let [without, with] = [p10(&rounds[0], of), p10(&rounds[1], of)];
            let name = format!("{}, {family}, {kind}", way.name);
            report.add(Row::cost(format!("{name}: p10 without policy"), without, "ns"));
            report.add(
                Row::cost(
                    format!("{name}: a policy of {ENTRIES} entries adds"),
                    (with - without).max(0.0),
                    "ns",
                )
                .target(target),
            );
        }
        let lookups = |way: &WayCalls| {
            let all = way
                .established
                .map(|calls| calls.hash_lookups() + calls.prefix_lookups() + calls.array_lookups());
            all.unwrap_or_default() as f64
        };
        let added = lookups(&after[index]) - lookups(&before[index]);
        report.add(
            Row::cost(
                format!("{}, {family}, established: a policy adds", way.name),
                added,
                "lookups",
            )
            .target(0.0),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_has_all_rows() {
        let options = Options {
            cases: Vec::new(),
            policies: 20,
            identities: 100,
            endpoints: 10,
            more: 3,
            calls: 20,
            recorded: concat!(env!("CARGO_MANIFEST_DIR"), "/../packets/testdata").into(),
        };
        let mut report = Report::default();

        run(&options, &mut report).unwrap();

        let has = |text: &str| report.names().any(|name| name.starts_with(text));
        for text in [
            "20 policies × 100 identities × 10 endpoints: from objects to maps",
            "an identity more that rules select, 2 policies, all maps: p50",
            "an identity more that no rule selects, 20 policies, all maps: p99",
            "a policy more, 20 policies",
            "pod to pod of the node, IPv4, first packet: a policy of 500 entries adds",
            "pod to pod of the node, IPv6, established: a policy adds",
        ] {
            assert!(has(text), "{text}");
        }
    }
}
