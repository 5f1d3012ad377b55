// SPDX-License-Identifier: Apache-2.0

//! The load: pods of the remote cluster that move between nodes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use skep_kvstore_client::Backend;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::remote::{self, Size};
use super::store;

/// Those who write at once, each one transaction after the other.
const WRITERS: u32 = 64;

/// How much is written, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Changes a second; `None` for as many as etcd takes.
    rate: Option<u32>,
    /// Changes of one transaction. Agents write one; who publishes a whole cluster writes up to 100.
    keys: u32,
}

impl Pace {
    /// As many changes as etcd takes, each in a transaction of its own.
    pub(crate) const UNLIMITED: Self = Self { rate: None, keys: 1 };

    /// So many changes a second, each in a transaction of its own.
    pub(crate) const fn a_second(rate: u32) -> Self {
        Self {
            rate: Some(rate),
            keys: 1,
        }
    }

    /// So many changes in each transaction.
    pub(crate) const fn together(self, keys: u32) -> Self {
        Self { keys, ..self }
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.rate.is_none()
    }
}

/// As in names of measurements: `10000 changes a second, 10 a transaction`.
impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "{rate} changes a second")?,
            None => f.write_str("as many changes as possible")?,
        }
        match self.keys {
            1 => Ok(()),
            keys => write!(f, ", {keys} a transaction"),
        }
    }
}

/// Moves all pods but the first. Each writer has pods of its own, so that it is known where each pod is.
pub(crate) struct Load {
    size: Size,
    writers: Vec<Writer>,
}

struct Writer {
    store: Arc<dyn Backend>,
    number: u32,
    pods: u32,
    /// How many moves it has made: all its pods in turn.
    moves: u32,
}

impl Load {
    /// A load that has not moved any pod, over these connections.
    pub(crate) fn new(size: Size, connections: &[Arc<dyn Backend>]) -> Self {
        let others = size.pods.saturating_sub(1);
        let writers = (0..WRITERS.min(others)).zip(connections.iter().cycle());
        Self {
            size,
            writers: writers
                .map(|(number, store)| Writer {
                    store: Arc::clone(store),
                    number,
                    pods: (others - number).div_ceil(WRITERS),
                    moves: 0,
                })
                .collect(),
        }
    }

    /// Writes for a time; returns how many changes were acknowledged a second.
    pub(crate) async fn run(&mut self, pace: Pace, time: Duration) -> anyhow::Result<f64> {
        let begun = Instant::now();
        let before = self.moves();
        let mut running = JoinSet::new();
        for writer in self.writers.drain(..) {
            running.spawn(writer.run(self.size, pace, begun, begun + time));
        }
        while let Some(done) = running.join_next().await {
            self.writers.push(done.context("a writer")??);
        }
        self.writers.sort_by_key(|writer| writer.number);
        Ok((self.moves() - before) as f64 / begun.elapsed().as_secs_f64())
    }

    fn moves(&self) -> u64 {
        self.writers.iter().map(|writer| u64::from(writer.moves)).sum()
    }

    /// All pods but the first, and the nodes that they are on.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (u32, u32)> {
        let of_writer = |writer: &Writer| {
            (0..writer.pods)
                .map(|nth| writer.place(self.size, nth))
                .collect::<Vec<_>>()
        };
        self.writers.iter().flat_map(of_writer)
    }
}

impl Writer {
    async fn run(mut self, size: Size, pace: Pace, begun: Instant, end: Instant) -> anyhow::Result<Self> {
        let keys = pace.keys.clamp(1, self.pods);
        for round in 0.. {
            let due = pace.rate.map_or(begun, |rate| {
                let before = (round * WRITERS + self.number) * keys;
                begun + Duration::from_secs_f64(f64::from(before) / f64::from(rate))
            });
            if due.max(Instant::now()) >= end {
                break;
            }
            sleep_until(due).await;
            let items = (0..keys).map(|nth| {
                let (pod, on) = self.target(size, self.moves + nth);
                remote::address(size, pod, on)
            });
            store::write_together(&self.store, items.collect::<Result<_, _>>()?).await?;
            self.moves += keys;
        }
        Ok(self)
    }

    fn pod(&self, nth: u32) -> u32 {
        1 + self.number + WRITERS * nth
    }

    /// The pod of a move, and the node that it is moved to.
    fn target(&self, size: Size, number: u32) -> (u32, u32) {
        let pod = self.pod(number % self.pods);
        (pod, (pod + number / self.pods + 1) % size.nodes)
    }

    /// A pod, and the node that it is on.
    fn place(&self, size: Size, nth: u32) -> (u32, u32) {
        let moved = self.moves / self.pods + u32::from(nth < self.moves % self.pods);
        let pod = self.pod(nth);
        (pod, (pod + moved) % size.nodes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use skep_kvstore_client::memory::Memory;

    use super::*;

    fn size(pods: u32) -> Size {
        Size {
            pods,
            nodes: 7,
            services: 0,
            backends: 0,
            identities: 3,
        }
    }

    /// The keys and values of some pods.
    fn items(size: Size, pods: impl Iterator<Item = (u32, u32)>) -> BTreeMap<String, Vec<u8>> {
        let items = pods.map(|(pod, on)| remote::address(size, pod, on));
        items.collect::<Result<_, _>>().expect("they can be encoded")
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_where_the_store_has_them() {
        let size = size(500);
        let memory = Memory::new();
        let connections: [Arc<dyn Backend>; 2] = [Arc::new(memory.clone()), Arc::new(memory.clone())];
        let mut load = Load::new(size, &connections);
        let places: BTreeMap<u32, u32> = load.pods().collect();
        assert_eq!(places, (1..500).map(|pod| (pod, pod % 7)).collect());

        for (rate, keys) in [(300, 1), (1_000, 5), (1_000, 100)] {
            let pace = Pace::a_second(rate).together(keys);
            let reached = load.run(pace, Duration::from_secs(3)).await.expect("it writes");
            assert!(
                (f64::from(rate) - reached).abs() < f64::from(rate) / 10.0,
                "{reached}"
            );

            let all = items(size, load.pods());
            let stored = memory.items();
            assert!(
                stored
                    .iter()
                    .all(|item| all.get(&*item.key).is_some_and(|value| *value == item.value))
            );
        }
        assert_eq!(memory.items().len(), 499, "all were moved");
    }

    #[tokio::test]
    async fn a_single_pod_is_not_moved() {
        let memory: Arc<dyn Backend> = Arc::new(Memory::new());
        let mut load = Load::new(size(1), &[memory]);

        let reached = load.run(Pace::UNLIMITED, Duration::from_secs(1)).await;

        assert_eq!(reached.expect("there is nothing to write"), 0.0);
    }
}
