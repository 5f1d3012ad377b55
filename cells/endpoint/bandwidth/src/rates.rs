// SPDX-License-Identifier: Apache-2.0

//! Annotations of pods → table `bandwidth-edts` → map `cilium_throttle`.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use hive::JobCtx;
use serde_json::{Value, json};
use skep_bpf_maps::throttle::{ThrottleKey, ThrottleValue};
use skep_bpf_sys::Map;
use skep_datapath_hooks::RateSwitch;
use skep_duration::format_duration;
use skep_endpoint::{Endpoint, EndpointPod, Endpoints};
use statedb::{
    Db, Index, InitGuard, Obj, Revision, Row, RwTable,
    reconciler::{Ops, Round, Status, StatusField},
    row::BoxError,
};
use tokio::time::Instant;

use crate::{
    annotations::{self, AnnotationError, GUARANTEED},
    qdiscs::HORIZON,
};

/// Entries of endpoints whose pod is not known so long after the start are removed.
const UNKNOWN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// What the endpoint sends.
    Egress,
    /// What it receives.
    Ingress,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Egress => "egress",
            Self::Ingress => "ingress",
        })
    }
}

/// The rate of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    pub endpoint: u16,
    pub direction: Direction,
    /// Bits a second; 0: no limit.
    pub bits: u64,
    /// Priority of packets plus one; 0: unchanged.
    pub priority: u32,
    pub status: Status,
}

impl Rate {
    pub const BY_ENDPOINT: Index<Self, (u16, u8)> = Index::new("id", |row, keys| {
        keys.add(&(row.endpoint, row.direction as u8));
    });
    pub(crate) const STATUS: StatusField<Self> = StatusField {
        get: |row| row.status.clone(),
        set: |row, status| row.status = status,
    };

    fn key(&self) -> ThrottleKey {
        let direction = match self.direction {
            Direction::Egress => ThrottleKey::EGRESS,
            Direction::Ingress => ThrottleKey::INGRESS,
        };
        ThrottleKey::new(self.endpoint, direction)
    }

    fn value(&self) -> ThrottleValue {
        ThrottleValue {
            rate: self.bits / 8,
            limit: self.horizon().as_nanos().try_into().unwrap_or(u64::MAX),
            priority: self.priority,
            ..ThrottleValue::default()
        }
    }

    /// A bucket of tokens begins full: its last packet was received at time 0.
    fn horizon(&self) -> Duration {
        match self.direction {
            Direction::Egress => HORIZON,
            Direction::Ingress => Duration::ZERO,
        }
    }
}

impl Row for Rate {
    fn header() -> &'static [&'static str] {
        &["EndpointID", "BitsPerSecond", "Prio", "TimeHorizonDrop", "Status"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.endpoint.to_string(),
            self.bits.to_string(),
            self.priority.to_string(),
            format_duration(self.horizon()),
            self.status.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "EndpointID": self.endpoint,
            "Direction": self.direction.to_string(),
            "BitsPerSecond": self.bits,
            "Prio": self.priority,
            "TimeHorizonDrop": format_duration(self.horizon()),
        }))
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<Rate>, statedb::Error> {
    RwTable::builder("bandwidth-edts")
        .primary(Rate::BY_ENDPOINT)
        .build(&db)
}

/// Writes the map.
pub(crate) struct RateOps {
    pub(crate) map: Map<ThrottleKey, ThrottleValue>,
}

impl Ops<Rate> for RateOps {
    fn update(&mut self, _: &Round<'_>, _: Revision, row: &mut Rate) -> Result<(), BoxError> {
        let (key, value) = (row.key(), row.value());
        // Programs account in the entry.
        let found = self.map.lookup(&key)?;
        if found.is_none_or(|found| (found.rate, found.priority) != (value.rate, value.priority)) {
            self.map.update(&key, &value)?;
        }
        Ok(())
    }

    fn delete(&mut self, _: &Round<'_>, _: Revision, row: &Rate) -> Result<(), BoxError> {
        self.map.delete(&row.key())?;
        Ok(())
    }

    fn prune(&mut self, _: &Round<'_>, rows: &mut dyn Iterator<Item = &Obj<Rate>>) -> Result<(), BoxError> {
        let desired: HashSet<ThrottleKey> = rows.map(|row| row.key()).collect();
        for key in self.map.keys()? {
            if !desired.contains(&key) {
                self.map.delete(&key)?;
            }
        }
        Ok(())
    }
}

type Desired = BTreeMap<(u16, Direction), (u64, u32)>;

/// Rates of a pod. An invalid rate is none at all; an invalid priority leaves packets unchanged.
fn rates(id: u16, pod: &EndpointPod, desired: &mut Desired, invalid: &mut BTreeSet<(u16, AnnotationError)>) {
    let annotations = &pod.bandwidth;
    let priority = match annotations.priority.as_deref().map(annotations::priority) {
        Some(Ok(priority)) => priority + 1,
        Some(Err(error)) => {
            invalid.insert((id, error));
            0
        }
        None => 0,
    };
    match annotations.egress.as_deref().map_or(Ok(0), annotations::bits) {
        Ok(bits) => {
            desired.insert((id, Direction::Egress), (bits, priority));
        }
        Err(error) => {
            invalid.insert((id, error));
        }
    }
    match annotations.ingress.as_deref().map(annotations::bits) {
        Some(Ok(bits)) => {
            desired.insert((id, Direction::Ingress), (bits, 0));
        }
        Some(Err(error)) => {
            invalid.insert((id, error));
        }
        None => {}
    }
}

/// Keeps the table as the pods of endpoints have it.
#[derive(Clone)]
pub(crate) struct RateFollower {
    endpoints: Endpoints,
    db: Db,
    table: RwTable<Rate>,
    switch: Arc<RateSwitch>,
    guard: Arc<InitGuard>,
}

impl RateFollower {
    pub(crate) fn new(
        endpoints: Endpoints,
        db: Db,
        table: RwTable<Rate>,
        switch: Arc<RateSwitch>,
    ) -> Result<Self, statedb::Error> {
        let mut txn = db.write(&[&table]);
        let guard = table.register_initializer(&mut txn, "endpoints")?;
        txn.commit();
        Ok(Self {
            endpoints,
            db,
            table,
            switch,
            guard: Arc::new(guard),
        })
    }

    pub(crate) async fn follow(&self, _: &JobCtx) -> Result<(), statedb::Error> {
        // The sender lives as long as this.
        let _ = self.switch.subscribe().wait_for(|is_on| *is_on).await;
        let endpoints = self.endpoints.table();
        let mut reported = BTreeSet::new();
        let (begun, mut is_complete) = (Instant::now(), false);
        loop {
            let snapshot = self.db.read();
            let (is_restored, restored) = endpoints.initialized_watch(&snapshot);
            let changed = endpoints.table_watch(&snapshot);
            let (mut desired, mut invalid) = (Desired::new(), BTreeSet::new());
            let mut unknown = BTreeSet::new();
            for row in endpoints.all(&snapshot).filter(|row| row.is_live()) {
                match &row.pod {
                    Some(pod) => rates(row.id, pod, &mut desired, &mut invalid),
                    None if row.is_host => {
                        desired.insert((row.id, Direction::Egress), (0, GUARANTEED + 1));
                    }
                    None if has_pod(row) => {
                        unknown.insert(row.id);
                    }
                    None => {}
                }
            }
            drop(snapshot);
            for (endpoint, error) in invalid.difference(&reported) {
                tracing::warn!(endpoint, error = %error, "Invalid bandwidth annotation");
            }
            reported = invalid;
            let is_late = begun.elapsed() >= UNKNOWN;
            let completes = !is_complete && is_restored && (unknown.is_empty() || is_late);
            self.write(&desired, &unknown, completes)?;
            is_complete |= completes;
            tokio::select! {
                () = changed.closed() => {}
                () = restored.closed(), if !is_restored => {}
                () = tokio::time::sleep_until(begun + UNKNOWN), if !is_complete && !is_late => {}
            }
        }
    }

    /// Rates are not enforced: there are none.
    pub(crate) fn none(&self) -> Result<(), statedb::Error> {
        self.write(&Desired::new(), &BTreeSet::new(), true)
    }

    /// Rates of endpoints whose pod is unknown are kept.
    fn write(
        &self,
        desired: &Desired,
        unknown: &BTreeSet<u16>,
        completes: bool,
    ) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let mut present = Desired::new();
        let rows: Vec<_> = self.table.all(&txn).cloned().collect();
        for row in rows {
            let key = (row.endpoint, row.direction);
            if desired.contains_key(&key) || unknown.contains(&row.endpoint) {
                present.insert(key, (row.bits, row.priority));
            } else {
                self.table.delete(&mut txn, &row)?;
            }
        }
        for (key, rate) in desired {
            if present.get(key) == Some(rate) {
                continue;
            }
            let (bits, priority) = *rate;
            let row = Rate {
                endpoint: key.0,
                direction: key.1,
                bits,
                priority,
                status: Status::pending(),
            };
            self.table.insert(&mut txn, row)?;
        }
        if completes {
            txn.initialized(&self.guard)?;
        }
        txn.commit();
        Ok(())
    }
}

fn has_pod(row: &Endpoint) -> bool {
    row.spec.pod_name().is_some()
}

#[cfg(test)]
mod tests {
    use skep_bpf_maps::{MapSizes, throttle::THROTTLE};
    use skep_endpoint::BandwidthAnnotations;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn pod(egress: &str, ingress: &str, priority: &str) -> EndpointPod {
        let some = |text: &str| (!text.is_empty()).then(|| text.into());
        EndpointPod {
            bandwidth: BandwidthAnnotations {
                egress: some(egress),
                ingress: some(ingress),
                priority: some(priority),
            },
            ..EndpointPod::default()
        }
    }

    #[test]
    fn rates_are_those_of_the_annotations() {
        use Direction::{Egress, Ingress};
        for (egress, ingress, priority, expected, faults) in [
            ("", "", "", vec![(Egress, 0, 0)], 0),
            (
                "10M",
                "1Gi",
                "",
                vec![(Egress, 10_000_000, 0), (Ingress, 1 << 30, 0)],
                0,
            ),
            ("", "", "guaranteed", vec![(Egress, 0, 7)], 0),
            ("1k", "", "urgent", vec![(Egress, 1000, 0)], 1),
            ("much", "1k", "0", vec![(Ingress, 1000, 0)], 1),
            ("much", "more", "0", vec![], 2),
        ] {
            let (mut desired, mut invalid) = (Desired::new(), BTreeSet::new());
            rates(7, &pod(egress, ingress, priority), &mut desired, &mut invalid);

            let found: Vec<_> = desired
                .into_iter()
                .map(|((_, direction), (bits, priority))| (direction, bits, priority))
                .collect();
            assert_eq!(found, expected, "{egress} {ingress} {priority}");
            assert_eq!(invalid.len(), faults);
        }
    }

    #[test]
    fn entries_are_written_once_and_pruned() {
        let map = Map::in_memory(&THROTTLE.spec(&MapSizes::default())).unwrap();
        let mut ops = RateOps { map };
        let (snapshot, token) = (Db::new().read(), CancellationToken::new());
        let round = Round::new(&snapshot, &token);
        let mut row = Rate {
            endpoint: 724,
            direction: Direction::Egress,
            bits: 10_000_000,
            priority: 0,
            status: Status::pending(),
        };

        ops.update(&round, 1, &mut row).unwrap();

        let (key, value) = ops.map.entries().unwrap()[0];
        assert_eq!((key.endpoint, key.direction), (724, 0));
        assert_eq!(
            (value.rate, value.last, value.limit),
            (1_250_000, 0, 2_000_000_000)
        );
        let used = ThrottleValue { last: 5, ..value };
        ops.map.update(&key, &used).unwrap();
        ops.update(&round, 2, &mut row).unwrap();
        assert_eq!(ops.map.lookup(&key).unwrap(), Some(used));
        row.priority = 7;
        ops.update(&round, 3, &mut row).unwrap();
        assert_eq!(ops.map.lookup(&key).unwrap().unwrap().priority, 7);
        ops.prune(&round, &mut std::iter::empty()).unwrap();
        assert!(ops.map.keys().unwrap().is_empty());
    }
}
