// SPDX-License-Identifier: Apache-2.0

//! Passes over the maps, and what others ask for.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use hive::Cfg;
use skep_bpf_maps::{
    Family,
    collect::{CollectError, Collected, FlowCollector, FlowMap, NatCount, Purged, Removal, nat_family},
};
use skep_datapath_hooks::{EndpointFlows, FlowPass, FlowPasses, ForgetError};
use skep_datapath_maps::Maps;
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep_until},
};

use crate::{CollectorSource, Config, SourceError, interval::Interval, metrics::ConntrackMetrics};

/// A first pass that takes longer is worth a warning.
const LONG: Duration = Duration::from_secs(30);

/// Why entries of flows were not removed, or not all.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A pass did not come to its end; the others did.
    #[error("entries of flows were not collected")]
    Collect(#[from] CollectError),
    /// The thread that does the work ended.
    #[error("entries of flows were not collected")]
    Interrupted(#[from] tokio::task::JoinError),
    /// The kernel evicts entries for those of new flows, first of flows that were idle for long. Make the maps larger.
    #[error("maps of flows are full, new flows evict others: {}", list(.0))]
    Full(Vec<FullMap>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullMap {
    pub map: &'static str,
    pub entries: u64,
    /// Entries that it has room for.
    pub max: u32,
    pub setting: &'static str,
}

impl FullMap {
    /// The kernel begins to evict a little before the last entry.
    const PERCENT: u64 = 95;

    fn of(family: &'static Family, entries: u64, max: u32) -> Option<Self> {
        let setting = family.size_setting()?;
        let is_full = entries * 100 >= u64::from(max) * Self::PERCENT;
        is_full.then_some(Self {
            map: family.name,
            entries,
            max,
            setting,
        })
    }
}

/// How many entries a map has, and room for.
type Counted = (&'static Family, u64, u32);

fn list(maps: &[FullMap]) -> String {
    let texts = maps.iter().map(|full| {
        let FullMap {
            map,
            entries,
            max,
            setting,
        } = full;
        format!("{map} has {entries} of {max} entries ({setting})")
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// What a pass over all maps did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Conntrack maps; 0 if no flow is tracked on this node.
    pub maps: usize,
    pub alive: u64,
    pub deleted: u64,
    /// NAT entries that were deleted with them.
    pub nat_deleted: NatCount,
    /// NAT entries that were deleted since nothing tracks their flow.
    pub orphans: NatCount,
}

impl Summary {
    fn add(&mut self, done: &Collected) {
        self.maps += 1;
        self.alive += done.alive;
        self.deleted += done.deleted;
        self.nat_deleted.add(done.nat_deleted);
    }
}

/// The entries of flows: removes those that are not needed any more. Passes never overlap.
pub struct Conntrack {
    source: Arc<dyn CollectorSource>,
    maps: Option<Arc<Maps>>,
    metrics: Arc<ConntrackMetrics>,
    /// Maps without room, when they were last measured.
    full: parking_lot::Mutex<BTreeMap<&'static str, FullMap>>,
    state: Mutex<State>,
    passes: watch::Sender<Option<FlowPass>>,
}

struct State {
    interval: Interval,
    last: Option<Instant>,
}

/// What a pass found of one map.
type Found = (FlowMap, u32, Duration, Result<Collected, CollectError>);

impl Conntrack {
    pub(crate) fn new(
        config: Cfg<Config>,
        source: Arc<dyn CollectorSource>,
        maps: Option<Arc<Maps>>,
        metrics: Arc<ConntrackMetrics>,
    ) -> Arc<Self> {
        let interval = Interval::new(&config);
        metrics.interval(interval.current());
        Arc::new(Self {
            source,
            maps,
            metrics,
            full: parking_lot::Mutex::default(),
            state: Mutex::new(State { interval, last: None }),
            passes: watch::Sender::new(None),
        })
    }

    /// Removes the entries of flows that have ended, now; the next pass comes an interval later.
    ///
    /// # Errors
    ///
    /// [`ConntrackError`] if a pass did not come to its end.
    pub async fn collect(&self) -> Result<Summary, ConntrackError> {
        self.collect_and(|_| false).await
    }

    /// Removes all entries from and to these addresses, for example of an endpoint that is gone.
    ///
    /// # Errors
    ///
    /// [`ConntrackError`] if a pass did not come to its end.
    pub async fn forget(
        &self,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Summary, ConntrackError> {
        let addresses: BTreeSet<IpAddr> = addresses.into_iter().collect();
        if addresses.is_empty() {
            return Ok(Summary::default());
        }
        let of_family = |map: &FlowMap| addresses.iter().any(|address| address.is_ipv6() == map.is_ipv6());
        let maps = FlowMap::ALL.into_iter().filter(of_family).collect();
        let _turn = self.state.lock().await;
        let (_, summary) = self.pass(maps, Removal::Addresses(addresses)).await?;
        Ok(summary)
    }

    /// Removes the entries of all flows. Connections that go on get new ones, as far as policies allow it.
    ///
    /// # Errors
    ///
    /// [`ConntrackError`] if a pass did not come to its end.
    pub async fn flush(&self) -> Result<Summary, ConntrackError> {
        let _turn = self.state.lock().await;
        let (_, summary) = self.pass(FlowMap::ALL.to_vec(), Removal::All).await?;
        Ok(summary)
    }

    /// As [`collect`](Self::collect); then removes NAT entries whose flow nothing tracks, of these address families.
    pub(crate) async fn collect_and(&self, purges: impl Fn(bool) -> bool) -> Result<Summary, ConntrackError> {
        let mut state = self.state.lock().await;
        let (start, began) = (Instant::now(), SystemTime::now());
        let is_first = state.last.is_none();
        let (removed, mut summary) = self.pass(FlowMap::ALL.to_vec(), Removal::Ended).await?;
        for is_ipv6 in [false, true] {
            if purges(is_ipv6) {
                let done = self.purge(is_ipv6).await?;
                summary.orphans.add(done.deleted);
            }
        }
        let passed = state.last.map(|last| start - last);
        state.interval.adapt(passed, removed);
        state.last = Some(start);
        let next = began + state.interval.current();
        self.passes.send_modify(|pass| {
            *pass = Some(FlowPass {
                number: pass.map_or(1, |pass| pass.number + 1),
                start: began,
                next,
            });
        });
        self.metrics.interval(state.interval.current());
        if is_first && summary.maps > 0 {
            report_first(&summary, start.elapsed());
        }
        self.walk_nat().await?;
        Ok(summary)
    }

    /// Waits until the next pass is due; returns at once before the first.
    pub(crate) async fn due(&self) {
        loop {
            let state = self.state.lock().await;
            let Some(last) = state.last else { return };
            let due = last + state.interval.current();
            drop(state);
            if Instant::now() >= due {
                return;
            }
            // Meanwhile, others may collect: then it is due later.
            sleep_until(due).await;
        }
    }

    /// Time between the last pass and the next one.
    pub async fn interval(&self) -> Duration {
        self.state.lock().await.interval.current()
    }

    /// Reports how full conntrack and NAT maps are, where that is known without a walk; elsewhere, as the last pass found
    /// them.
    ///
    /// # Errors
    ///
    /// [`ConntrackError::Full`] names those that are full.
    pub(crate) async fn report_pressure(&self) -> Result<(), ConntrackError> {
        let source = self.source.clone();
        let counted = tokio::task::spawn_blocking(move || {
            let collector = source.collector()?;
            Ok::<_, SourceError>(collector.map_or_else(Vec::new, |collector| count(&*collector)))
        });
        for (family, entries, max) in counted.await?? {
            self.report_entries(family, entries, max);
        }
        let full: Vec<FullMap> = self.full.lock().values().copied().collect();
        if full.is_empty() {
            Ok(())
        } else {
            Err(ConntrackError::Full(full))
        }
    }

    fn report_entries(&self, family: &'static Family, entries: u64, max: u32) {
        match FullMap::of(family, entries, max) {
            Some(full) => self.full.lock().insert(family.name, full),
            None => self.full.lock().remove(family.name),
        };
        if let Some(maps) = &self.maps {
            let entries = u32::try_from(entries).unwrap_or(u32::MAX);
            maps.report_entries(family.name, entries, max);
        }
    }

    /// Reports how full NAT maps are where the kernel does not count entries: by a walk, since passes do not walk them.
    async fn walk_nat(&self) -> Result<(), ConntrackError> {
        let source = self.source.clone();
        let walked = tokio::task::spawn_blocking(move || {
            let mut walked = Vec::new();
            let Some(collector) = source.collector()? else {
                return Ok(walked);
            };
            for is_ipv6 in [false, true] {
                if let Some(max) = collector.max_nat_entries(is_ipv6)
                    && collector.count_nat(is_ipv6).is_none()
                {
                    walked.push((nat_family(is_ipv6), collector.walk_nat(is_ipv6)?, max));
                }
            }
            Ok::<Vec<Counted>, ConntrackError>(walked)
        });
        for (family, entries, max) in walked.await?? {
            self.report_entries(family, entries, max);
        }
        Ok(())
    }

    /// Conntrack garbage collection runs. Returns the largest part of a map that was removed, and the sums.
    async fn pass(&self, maps: Vec<FlowMap>, removal: Removal) -> Result<(f64, Summary), ConntrackError> {
        let source = self.source.clone();
        let found = tokio::task::spawn_blocking(move || {
            let Some(collector) = source.collector()? else {
                return Ok(Vec::new());
            };
            let there = maps
                .into_iter()
                .filter_map(|map| Some((map, collector.max_entries(map)?)));
            Ok::<Vec<Found>, SourceError>(
                there
                    .map(|(map, max)| timed(&*collector, map, max, &removal))
                    .collect(),
            )
        })
        .await??;
        let (mut removed, mut summary, mut failed) = (0.0_f64, Summary::default(), None);
        for (map, max, took, result) in found {
            self.metrics.pass(map, result.as_ref().ok(), took);
            match result {
                Ok(done) => {
                    removed = removed.max(done.deleted as f64 / f64::from(max.max(1)));
                    summary.add(&done);
                    self.report_entries(map.family(), done.alive, max);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(error.into()),
            None => Ok((removed, summary)),
        }
    }

    async fn purge(&self, is_ipv6: bool) -> Result<Purged, ConntrackError> {
        let source = self.source.clone();
        let purged = tokio::task::spawn_blocking(move || {
            let collector = source.collector()?;
            let Some(collector) = collector else {
                return Ok(Purged::default());
            };
            Ok::<_, ConntrackError>(collector.purge(is_ipv6)?)
        });
        let done = purged.await??;
        self.metrics.purge(is_ipv6, &done);
        Ok(done)
    }
}

impl FlowPasses for Conntrack {
    fn passes(&self) -> watch::Receiver<Option<FlowPass>> {
        self.passes.subscribe()
    }
}

impl EndpointFlows for Conntrack {
    fn forget(
        &self,
        addresses: Vec<IpAddr>,
    ) -> Pin<Box<dyn Future<Output = Result<(), ForgetError>> + Send + '_>> {
        Box::pin(async move {
            match Self::forget(self, addresses.iter().copied()).await {
                Ok(_) => Ok(()),
                Err(error) => Err(ForgetError {
                    addresses,
                    source: error.into(),
                }),
            }
        })
    }
}

impl std::fmt::Debug for Conntrack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conntrack").finish_non_exhaustive()
    }
}

/// The maps whose entries are known without a walk.
fn count(collector: &dyn FlowCollector) -> Vec<Counted> {
    let tracked = FlowMap::ALL
        .map(|map| Some((map.family(), collector.count(map)?, collector.max_entries(map)?)))
        .into_iter();
    let translated = [false, true].map(|is_ipv6| {
        let (entries, max) = (collector.count_nat(is_ipv6)?, collector.max_nat_entries(is_ipv6)?);
        Some((nat_family(is_ipv6), entries, max))
    });
    tracked.chain(translated).flatten().collect()
}

fn timed(collector: &dyn FlowCollector, map: FlowMap, max: u32, removal: &Removal) -> Found {
    let start = std::time::Instant::now();
    let result = collector.collect(map, removal);
    (map, max, start.elapsed(), result)
}

fn report_first(summary: &Summary, took: Duration) {
    let (alive, deleted, seconds) = (summary.alive, summary.deleted, took.as_secs_f64());
    if took > LONG {
        tracing::warn!(
            alive,
            deleted,
            seconds,
            "Slow initial conntrack garbage collection"
        );
    } else {
        tracing::info!(
            alive,
            deleted,
            seconds,
            "Finished initial conntrack garbage collection"
        );
    }
}
