// SPDX-License-Identifier: Apache-2.0

//! A load balancer without API server: decoded events in, maps out.

use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use skep_bpf::lb::LbMapSizes;
use skep_bpf::testing::Node;
use skep_loadbalancer::convert::Rules;
use skep_loadbalancer::maps::bpf::BpfMaps;
use skep_loadbalancer::maps::fake::FakeMaps;
use skep_loadbalancer::maps::{LbMaps, dump_all};
use skep_loadbalancer::reconciler::{FrontendReconciler, Ops, Settings, Timing};
use skep_loadbalancer::reflector::{Batch, Changed, Ingest};
use skep_loadbalancer::{Config, NoAddresses, Tables, Writer, WriterSettings};
use skep_maglev::{HashSeed, Maglev, TableSize};
use statedb::Db;
use statedb::reconciler::{NoHealth, Progress, ReconcilerHandle, StatusKind};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::Maps;

/// What the agent has between the API server and the kernel.
pub(crate) struct World {
    pub(crate) writer: Writer,
    ingest: Ingest,
    batch: Batch,
    maps: Arc<dyn LbMaps>,
    handle: ReconcilerHandle,
    stop: CancellationToken,
    runtime: Runtime,
}

/// Runs `work` where maps of the kind can be made: those of the kernel are pinned on a BPF file system of their own.
pub(crate) fn with_maps<T: Send>(
    kind: Maps,
    services: u32,
    backends: u32,
    work: impl FnOnce(Arc<dyn LbMaps>) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let all = services * backends;
    let mut sizes = LbMapSizes::uniform(1024);
    // Master, wildcard and slots of each service, and room to spare.
    sizes.services = services * 2 + all + 1024;
    sizes.backends = all + 1024;
    sizes.reverse_nat = services + 1024;
    match kind {
        Maps::Fake => work(Arc::new(FakeMaps::new(sizes))),
        Maps::Bpf => Node::run("lb-benchmark", |node| {
            let maps = BpfMaps::open(&node.store(), sizes, true, true);
            match maps.context("making maps (needs root)") {
                Ok(maps) => Ok(work(Arc::new(maps))),
                Err(error) => Ok::<_, std::io::Error>(Err(error)),
            }
        })?,
    }
}

impl World {
    /// Starts a reconciler that writes `maps`.
    pub(crate) fn start(maps: Arc<dyn LbMaps>) -> anyhow::Result<Self> {
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
        let reconciler = Arc::new(FrontendReconciler::new(
            writer.clone(),
            ops,
            Arc::new(NoAddresses),
            timing,
            None,
        ));
        let handle = reconciler.handle();
        let stop = CancellationToken::new();
        let token = stop.clone();
        runtime.spawn(async move {
            reconciler.start().await;
            reconciler.run(&token, &NoHealth).await;
        });
        Ok(Self {
            ingest: Ingest::new(writer.clone(), Rules::default()),
            writer,
            batch: Batch::default(),
            maps,
            handle,
            stop,
            runtime,
        })
    }

    /// Takes an event; writes when enough have come.
    pub(crate) fn feed(&mut self, changed: Changed) {
        self.batch.push(changed);
        if self.batch.is_full() {
            self.ingest.write(&mut self.batch);
        }
    }

    /// Writes what is left and waits until all of it was reconciled.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        if !self.batch.is_empty() {
            self.ingest.write(&mut self.batch);
        }
        let revision = self.writer.frontends().revision(&self.writer.db().read());
        let progress: Progress = self.runtime.block_on(self.handle.wait_until_reconciled(revision));
        anyhow::ensure!(progress.failing.is_none(), "frontends cannot be reconciled");
        Ok(())
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

    /// Entries of all maps.
    pub(crate) fn entries(&self) -> anyhow::Result<usize> {
        Ok(dump_all(&*self.maps)?.len())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
