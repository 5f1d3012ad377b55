// SPDX-License-Identifier: Apache-2.0

//! A load balancer without API server: decoded events in, maps out.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use skep_bpf_maps::lb::LbMapSizes;
use skep_bpf_sys::testing::Node;
use skep_loadbalancer_maglev::{HashSeed, Maglev, TableSize};
use skep_loadbalancer_model::{Config, Tables, Writer, WriterSettings};
use skep_loadbalancer_reconciler::maps::LoadBalancerMaps;
use skep_loadbalancer_reconciler::{FrontendReconciler, Ops, Settings, Timing};
use skep_loadbalancer_sources::convert::Rules;
use skep_loadbalancer_sources::{Batch, Event, ServiceReflector};
use statedb::Db;
use statedb::reconciler::{NoHealth, Progress, ReconcilerHandle, StatusKind};
use tokio::runtime::Runtime;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Maps;

/// What the agent has between the API server and the kernel.
pub(crate) struct World {
    pub(crate) writer: Writer,
    source: Source,
    maps: Arc<LoadBalancerMaps>,
    runtime: Runtime,
    _stop: DropGuard,
}

struct Source {
    writer: Writer,
    reflector: ServiceReflector,
    batch: Batch,
    handle: ReconcilerHandle,
}

impl Source {
    fn feed(&mut self, event: Event) {
        self.batch.push(event);
        if self.batch.is_full() {
            self.reflector.write(&mut self.batch);
        }
    }

    async fn settle(&mut self) -> anyhow::Result<()> {
        if !self.batch.is_empty() {
            self.reflector.write(&mut self.batch);
        }
        let revision = self.writer.frontends().revision(&self.writer.db().read());
        let progress: Progress = self.handle.wait_until_reconciled(revision).await;
        anyhow::ensure!(progress.failing.is_none(), "frontends cannot be reconciled");
        Ok(())
    }
}

/// Runs `work` where maps of the kind can be made: those of the kernel are pinned on a BPF file system of their own.
pub(crate) fn with_maps<T: Send>(
    kind: Maps,
    services: u32,
    backends: u32,
    work: impl FnOnce(Arc<LoadBalancerMaps>) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let all = services * backends;
    let mut sizes = LbMapSizes::uniform(1024);
    // Master, wildcard and slots of each service, and room to spare.
    sizes.services = services * 2 + all + 1024;
    sizes.backends = all + 1024;
    sizes.reverse_nat = services + 1024;
    match kind {
        Maps::Fake => work(Arc::new(LoadBalancerMaps::in_memory(sizes)?)),
        Maps::Bpf => Node::run("lb-benchmark", |node| {
            let maps = LoadBalancerMaps::open(&node.store(), sizes, true, true);
            match maps.context("making maps (needs root)") {
                Ok(maps) => Ok(work(Arc::new(maps))),
                Err(error) => Ok::<_, std::io::Error>(Err(error)),
            }
        })?,
    }
}

impl World {
    /// Starts a reconciler that writes `maps`.
    pub(crate) fn start(maps: Arc<LoadBalancerMaps>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()?;
        let db = Db::new();
        let tables = Tables::new(&db)?;
        let writer = Writer::new(db, tables, WriterSettings::default());
        let maglev = Maglev::new(TableSize::try_from(16381)?, HashSeed::default());
        let ops = Arc::new(Mutex::new(Ops::new(Settings::default(), maps.clone(), maglev)));
        let config = <Config as hive::Config>::defaults().map_err(anyhow::Error::msg)?;
        let timing = Timing {
            retry_min: config.retry_min,
            retry_max: config.retry_max,
            init_wait_timeout: config.init_wait_timeout,
        };
        let reconciler = Arc::new(FrontendReconciler::new(writer.clone(), ops, timing, None));
        let handle = reconciler.handle();
        let stop = CancellationToken::new();
        let token = stop.clone();
        runtime.spawn(async move {
            reconciler.start().await;
            reconciler.run(&token, &NoHealth).await;
        });
        let source = Source {
            writer: writer.clone(),
            reflector: ServiceReflector::new(writer.clone(), Rules::default()),
            batch: Batch::default(),
            handle,
        };
        Ok(Self {
            writer,
            source,
            maps,
            runtime,
            _stop: stop.drop_guard(),
        })
    }

    /// Takes an event; writes when enough have come.
    pub(crate) fn feed(&mut self, event: Event) {
        self.source.feed(event);
    }

    /// Writes what is left and waits until all of it was reconciled.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        self.runtime.block_on(self.source.settle())
    }

    /// Feeds `count` events one by one, each when the one before was reconciled and a pause is over, from a task of the
    /// runtime: that is where the job of the agent is that follows the API server. Gives what `measure` makes of each.
    pub(crate) fn feed_each<M: Send + 'static>(
        mut self,
        count: u32,
        pause: Duration,
        event: impl Fn(u32) -> Event + Send + 'static,
        measure: impl Fn() -> M + Send + 'static,
    ) -> anyhow::Result<(Self, Vec<(M, M)>)> {
        let mut source = self.source;
        let task = self.runtime.spawn(async move {
            let mut measured = Vec::with_capacity(count as usize);
            for number in 0..count {
                tokio::time::sleep(pause).await;
                let event = event(number);
                let before = measure();
                source.feed(event);
                source.settle().await?;
                measured.push((before, measure()));
            }
            anyhow::Ok((source, measured))
        });
        let (source, measured) = self.runtime.block_on(task)??;
        self.source = source;
        Ok((self, measured))
    }

    /// Checks that every frontend of the table is done and has as many backends as it should.
    pub(crate) fn check_done(&self, frontends: u32, backends: u32) -> anyhow::Result<()> {
        let snapshot = self.writer.db().read();
        let mut done = 0;
        for row in self.writer.frontends().all(&snapshot) {
            anyhow::ensure!(
                row.status.kind == StatusKind::Done && row.backends.len() as u32 == backends,
                "{}: {:?}, {} backends",
                row.address(),
                row.status.kind,
                row.backends.len()
            );
            done += 1;
        }
        anyhow::ensure!(done == frontends, "{done} frontends instead of {frontends}");
        Ok(())
    }

    /// Checks that nothing is left in tables and maps.
    pub(crate) fn check_empty(&self) -> anyhow::Result<()> {
        let snapshot = self.writer.db().read();
        let left = self.writer.services().len(&snapshot)
            + self.writer.frontends().len(&snapshot)
            + self.writer.backends().len(&snapshot);
        anyhow::ensure!(left == 0, "{left} rows left");
        let entries = self.entries()?;
        anyhow::ensure!(entries == 0, "{entries} map entries left");
        Ok(())
    }

    pub(crate) fn entries(&self) -> anyhow::Result<usize> {
        Ok(self.maps.count()?)
    }
}
