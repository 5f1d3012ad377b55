// SPDX-License-Identifier: Apache-2.0

//! Identities allocated in a real etcd by several clients at once, each as the agent of a node.
//!
//! Two cases: each client has label sets of its own, or all of them have the same, in the same order. Either way each label set
//! has one id afterwards, and each id one label set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use skep_identity::{IdentityRange, MaxConnectedClusters, NumericIdentity};
use skep_identity_kvstore::{AllocatorOptions, Identities, IdentityAllocator, IdentityKeys, IdentityLabels};
use skep_kvstore_client::testing::RunningClient;
use skep_kvstore_client::{Backend, ClientKind, ClientOptions, KeyRange, KeyValue, RangeRequest, RateLimit};
use tokio::task::JoinSet;

use crate::etcd::{Etcd, EtcdOptions};
use crate::report::{Report, Row, quantiles};

const CLUSTER: &str = "local";
const CLUSTER_ID: u32 = 1;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Clients, each with an allocator and a connection of its own.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=250))]
    clients: u32,
    /// Different label sets.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    label_sets: u32,
    /// Allocations that a client has under way at once.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    parallel: u32,
    /// Operations a second of each client, as `etcd.qps` of an agent has it; 0 for no limit.
    #[arg(long, default_value_t = 0)]
    qps: u32,
    #[command(flatten)]
    etcd: EtcdOptions,
}

/// Who allocates what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// Each client has label sets of its own.
    Distinct,
    /// All clients have the same label sets, in the same order.
    Same,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for case in [Case::Distinct, Case::Same] {
        for row in runtime.block_on(measure(options, case))? {
            report.add(row);
        }
    }
    Ok(())
}

/// One allocation: which labels, what they got, and how long it took.
struct Allocated {
    number: u32,
    id: NumericIdentity,
    is_new: bool,
    took: Duration,
}

async fn measure(options: &Options, case: Case) -> anyhow::Result<Vec<Row>> {
    let etcd = Etcd::start(&options.etcd).await?;
    let range = IdentityRange::of_cluster(CLUSTER_ID, MaxConnectedClusters::Max255)?;
    let clients: Vec<Client> = (0..options.clients)
        .map(|number| Client::new(etcd.connect(), number, range, options.qps))
        .collect();
    for client in &clients {
        client.allocator.status().wait_synced().await;
    }

    let begun = Instant::now();
    let mut running = JoinSet::new();
    for (number, client) in (0..).zip(&clients) {
        let sets: Vec<u32> = (0..options.label_sets)
            .filter(|set| case == Case::Same || set % options.clients == number)
            .collect();
        let (sets, next) = (Arc::new(sets), Arc::new(AtomicUsize::new(0)));
        for _ in 0..options.parallel {
            let (allocator, sets, next) = (client.allocator.clone(), Arc::clone(&sets), Arc::clone(&next));
            running.spawn(async move {
                let mut done = Vec::new();
                while let Some(number) = sets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    let allocation = allocator.allocate(&labels(*number)).await?;
                    done.push(Allocated {
                        number: *number,
                        id: allocation.id,
                        is_new: allocation.is_new,
                        took: begun.elapsed(),
                    });
                }
                anyhow::Ok(done)
            });
        }
    }
    let mut all = Vec::new();
    while let Some(done) = running.join_next().await {
        all.extend(done.context("a client")??);
    }
    let seconds = begun.elapsed().as_secs_f64();

    check(&etcd.backend(), options.label_sets, &all).await?;
    Ok(rows(options, case, seconds, all))
}

fn rows(options: &Options, case: Case, seconds: f64, all: Vec<Allocated>) -> Vec<Row> {
    let which = match case {
        Case::Distinct => "label sets of their own",
        Case::Same => "the same label sets",
    };
    let limit = match options.qps {
        0 => String::new(),
        qps => format!(", {qps} operations a second"),
    };
    let name = format!(
        "allocation, {} clients, {which}{limit}{}",
        options.clients, options.etcd
    );
    let allocations = all.len() as f64;
    let at = quantiles(all.into_iter().map(|allocated| allocated.took).collect());
    let mut rows = vec![Row::rate(
        format!("{name}: identities"),
        f64::from(options.label_sets) / seconds,
        "1/s",
    )];
    if case == Case::Same {
        rows.push(Row::rate(
            format!("{name}: allocations"),
            allocations / seconds,
            "1/s",
        ));
    }
    rows.push(Row::cost(format!("{name}: an allocation, p50"), at(0.5), "ms"));
    rows.push(Row::cost(format!("{name}: an allocation, p99"), at(0.99), "ms"));
    rows
}

/// A client whose allocator runs until this is dropped.
struct Client {
    allocator: IdentityAllocator,
    _client: RunningClient,
    _running: JoinSet<()>,
}

impl Client {
    fn new(backend: Arc<dyn Backend>, number: u32, range: IdentityRange, qps: u32) -> Self {
        let client = RunningClient::new(
            backend,
            ClientOptions {
                rate: RateLimit {
                    qps,
                    bootstrap_qps: None,
                    max_inflight: 0,
                },
                ..ClientOptions::new("etcd", ClientKind::Full)
            },
        );
        let node = format!("192.168.50.{}", number + 1);
        let options = AllocatorOptions::new(CLUSTER, node, range);
        let allocator = IdentityAllocator::new(client.clone(), Identities::new(), (), options);
        let mut running = JoinSet::new();
        let runs = allocator.clone();
        running.spawn(async move { runs.run().await });
        Self {
            allocator,
            _client: client,
            _running: running,
        }
    }
}

/// Labels as those of a pod.
fn labels(number: u32) -> IdentityLabels {
    let text = format!(
        "k8s:app=app-{number};k8s:io.cilium.k8s.policy.cluster={CLUSTER};\
         k8s:io.cilium.k8s.policy.serviceaccount=default;k8s:io.kubernetes.pod.namespace=bench;"
    );
    text.as_str().into()
}

/// Checks that each label set has one id and each id one label set, as the clients and the store have them, that each was new
/// once, and that no lock is left.
async fn check(store: &Arc<dyn Backend>, label_sets: u32, all: &[Allocated]) -> anyhow::Result<()> {
    let keys = IdentityKeys::default();
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for KeyValue { key, value, .. } in list(store, &keys.masters()).await? {
        let id = key[keys.masters().len() + 1..].to_owned();
        let labels = String::from_utf8_lossy(&value).into_owned();
        if let Some(other) = ids.insert(labels.clone(), id.clone()) {
            anyhow::bail!("`{labels}` has two ids: {other} and {id}");
        }
    }
    anyhow::ensure!(
        ids.len() == label_sets as usize,
        "{} identities of {label_sets} label sets",
        ids.len()
    );
    for allocated in all {
        let labels = labels(allocated.number);
        let found = ids.get(labels.as_str());
        anyhow::ensure!(
            found == Some(&allocated.id.to_string()),
            "`{labels}` got {}, and the store has {found:?}",
            allocated.id
        );
    }
    let new = all.iter().filter(|allocated| allocated.is_new).count();
    anyhow::ensure!(new == label_sets as usize, "{new} new identities of {label_sets}");
    let slaves = list(store, &keys.slaves()).await?.len();
    anyhow::ensure!(
        slaves == all.len(),
        "{slaves} slave keys of {} allocations",
        all.len()
    );
    let locks = list(store, &keys.locks()).await?.len();
    anyhow::ensure!(locks == 0, "{locks} locks are left");
    Ok(())
}

async fn list(store: &Arc<dyn Backend>, prefix: &str) -> anyhow::Result<Vec<KeyValue>> {
    let response = store.range(RangeRequest::new(KeyRange::prefix(prefix))).await?;
    Ok(response.items)
}

#[cfg(test)]
mod tests {
    use skep_kvstore_client::memory::Memory;
    use skep_kvstore_client::{LeaseId, Op, Txn};

    use super::*;

    #[test]
    fn a_small_run_has_all_rows() {
        let options = Options {
            clients: 3,
            label_sets: 20,
            parallel: 4,
            qps: 0,
            etcd: EtcdOptions::default(),
        };
        let mut report = Report::default();

        run(&options, &mut report).expect("nothing is allocated twice");

        let names: Vec<&str> = report.names().collect();
        assert_eq!(
            names,
            [
                "allocation, 3 clients, label sets of their own: identities",
                "allocation, 3 clients, label sets of their own: an allocation, p50",
                "allocation, 3 clients, label sets of their own: an allocation, p99",
                "allocation, 3 clients, the same label sets: identities",
                "allocation, 3 clients, the same label sets: allocations",
                "allocation, 3 clients, the same label sets: an allocation, p50",
                "allocation, 3 clients, the same label sets: an allocation, p99",
            ]
        );
    }

    async fn put(store: &Memory, key: &str, value: &str) {
        let put = Op::Put {
            key: key.into(),
            value: value.to_owned().into(),
            lease: LeaseId::NONE,
        };
        store.txn(Txn::one(put)).await.expect("it is written");
    }

    async fn checked(store: &Memory, label_sets: u32, all: &[Allocated]) -> Result<(), String> {
        let store: Arc<dyn Backend> = Arc::new(store.clone());
        let result = check(&store, label_sets, all).await;
        result.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn what_is_wrong_is_an_error() {
        let (store, keys) = (Memory::new(), IdentityKeys::default());
        let (first, second) = (NumericIdentity::new(65_800), NumericIdentity::new(65_801));
        let text = labels(0).to_string();
        let allocated = |id, is_new| Allocated {
            number: 0,
            id,
            is_new,
            took: Duration::ZERO,
        };
        put(&store, &keys.master(first), &text).await;
        put(&store, &keys.slave(&labels(0), "192.168.50.1"), "65800").await;
        assert_eq!(checked(&store, 1, &[allocated(first, true)]).await, Ok(()));

        for (label_sets, all, error) in [
            (
                2,
                vec![allocated(first, true)],
                "1 identities of 2 label sets".to_owned(),
            ),
            (
                1,
                vec![allocated(second, true)],
                format!("`{text}` got 65801, and the store has Some(\"65800\")"),
            ),
            (
                1,
                vec![allocated(first, false)],
                "0 new identities of 1".to_owned(),
            ),
            (
                1,
                vec![allocated(first, true), allocated(first, false)],
                "1 slave keys of 2 allocations".to_owned(),
            ),
        ] {
            assert_eq!(checked(&store, label_sets, &all).await, Err(error));
        }
        put(&store, &keys.lock(&labels(1)), "").await;
        let error = checked(&store, 1, &[allocated(first, true)]).await;
        assert_eq!(error, Err("1 locks are left".to_owned()));
        put(&store, &keys.master(second), &text).await;
        let error = checked(&store, 1, &[allocated(first, true)]).await;
        assert_eq!(error, Err(format!("`{text}` has two ids: 65800 and 65801")));
    }
}
