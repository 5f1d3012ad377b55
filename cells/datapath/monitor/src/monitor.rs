// SPDX-License-Identifier: Apache-2.0

//! The one place where events pass.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use hive::Cfg;
use parking_lot::Mutex;
use skep_datapath_monitor_events::{access_log::LogRecord, agent::AgentNotify, payload};

use crate::{
    Config,
    listeners::{Listener, Listeners},
    metrics::MonitorMetrics,
    ring::RingStatus,
};

/// Sends events to all listeners, and takes those of the agent.
#[derive(Debug)]
pub struct Monitor {
    listeners: Arc<Listeners>,
    queue: usize,
    metrics: Arc<MonitorMetrics>,
    lost: AtomicU64,
    /// The rings, while they are read.
    rings: Mutex<Option<RingStatus>>,
}

impl Monitor {
    pub(crate) fn new(config: Cfg<Config>, metrics: Arc<MonitorMetrics>) -> Arc<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self {
            listeners: Arc::new(Listeners::new(metrics.clone())),
            queue: config.queue(cpus),
            metrics,
            lost: AtomicU64::new(0),
            rings: Mutex::default(),
        })
    }

    /// Sends a notification of the agent.
    pub fn notify(&self, event: &AgentNotify) {
        if self.has_listeners() {
            self.event(0, [&event.to_bytes(), &[]]);
        }
    }

    /// Sends a record of a proxy.
    pub fn access_log(&self, record: &LogRecord) {
        if self.has_listeners() {
            self.event(0, [&record.to_bytes(), &[]]);
        }
    }

    /// Whether there are listeners. Callers for which an event is costly to make ask first.
    pub fn has_listeners(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// The rings as they are read now; `None` without listeners.
    pub fn rings(&self) -> Option<RingStatus> {
        let rings = *self.rings.lock();
        rings.map(|rings| RingStatus {
            lost: self.lost.load(Ordering::Relaxed),
            ..rings
        })
    }

    pub(crate) fn set_rings(&self, rings: Option<RingStatus>) {
        *self.rings.lock() = rings;
    }

    pub(crate) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    pub(crate) fn listen(&self) -> Listener {
        self.listeners.add(self.queue)
    }

    /// An event of a program, in two parts.
    pub(crate) fn event(&self, cpu: u32, data: [&[u8]; 2]) {
        self.metrics.events.inc();
        self.send(payload::event_message(cpu, data).into());
    }

    pub(crate) fn lost(&self, cpu: u32, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        self.metrics.lost.with(["ring"]).add(count as f64);
        self.send(payload::lost_message(cpu, count).into());
    }

    fn send(&self, message: Bytes) {
        let lost = self.listeners.send(&message);
        if lost > 0 {
            self.metrics.lost.with(["listener"]).add(lost as f64);
        }
    }
}
