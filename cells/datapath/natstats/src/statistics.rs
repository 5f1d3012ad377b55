// SPDX-License-Identifier: Apache-2.0

//! NAT maps → table and metric.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
};

use skep_bpf_maps::{
    MapFamily,
    nat::{NAT4, NAT6, NatKey, NatTuple},
};
use skep_bpf_sys::{MapError, RawMap, map::Plain};
use skep_datapath_maps::Maps;
use statedb::{Db, RwTable};

use crate::{NatStat, metrics::NatMetrics};

/// Ids of ICMP echo requests, which are its ports.
const ICMP_IDS: u32 = 65_536;

/// Why source ports were not counted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatisticsError {
    /// A NAT map cannot be read.
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Table(#[from] statedb::Error),
    /// The thread that does the work ended.
    #[error("source ports were not counted")]
    Interrupted(#[from] tokio::task::JoinError),
}

pub(crate) struct Statistics {
    pub(crate) maps: Arc<Maps>,
    pub(crate) ports: RangeInclusive<u16>,
    pub(crate) rows: usize,
    pub(crate) db: Db,
    pub(crate) table: RwTable<NatStat>,
    pub(crate) metrics: Arc<NatMetrics>,
}

impl Statistics {
    /// Counts them. Blocks while the maps are read.
    pub(crate) fn update(&self) -> Result<(), StatisticsError> {
        let mut rows = self.most(&NAT4, false)?;
        rows.extend(self.most(&NAT6, true)?);
        Ok(self.write(rows)?)
    }

    /// The tuples with most ports of one address family; none if there is no such map.
    fn most<K: NatKey, E: Plain>(
        &self,
        nat: &MapFamily<K, E>,
        is_ipv6: bool,
    ) -> Result<Vec<NatStat>, MapError> {
        let Some(map) = self.maps.get(nat.name) else {
            return Ok(Vec::new());
        };
        let map = map.raw();
        let mut counts: HashMap<NatTuple, u32> = HashMap::new();
        self.walk::<K>(&*map, |tuple| *counts.entry(tuple).or_default() += 1)?;
        let counts = counts.into_iter();
        let mut rows: Vec<NatStat> = counts.map(|(tuple, ports)| NatStat { tuple, ports }).collect();
        let fullest = rows.iter().map(|row| self.percentage(row)).fold(0.0, f64::max);
        self.metrics.fullest(is_ipv6, fullest);
        let fullest_first = |row: &NatStat| (Reverse(row.ports), row.tuple);
        if rows.len() > self.rows {
            rows.select_nth_unstable_by_key(self.rows, fullest_first);
            rows.truncate(self.rows);
        }
        rows.sort_by_key(fullest_first);
        Ok(rows)
    }

    /// Visits the source ports that are taken: each has one entry, that of answers.
    fn walk<K: NatKey>(&self, map: &dyn RawMap, mut visit: impl FnMut(NatTuple)) -> Result<(), MapError> {
        let walked = map.walk(&mut |key, _| {
            if let Ok(key) = K::read_from_bytes(key)
                && let Some((tuple, port)) = key.answers()
                && (is_icmp(tuple) || self.ports.contains(&port))
            {
                visit(tuple);
            }
        });
        walked.map_err(|source| MapError::Walk {
            map: map.name().to_owned(),
            source,
        })
    }

    fn percentage(&self, row: &NatStat) -> f64 {
        let there_are = match is_icmp(row.tuple) {
            true => ICMP_IDS,
            false => u32::from(self.ports.end() - self.ports.start()) + 1,
        };
        f64::from(row.ports) * 100.0 / f64::from(there_are)
    }

    /// Replaces the rows of the table; those that are the same keep their revision.
    fn write(&self, rows: Vec<NatStat>) -> Result<(), statedb::Error> {
        let mut wanted: BTreeMap<NatTuple, NatStat> = rows.into_iter().map(|row| (row.tuple, row)).collect();
        let mut txn = self.db.write(&[&self.table]);
        let known: Vec<NatStat> = self.table.all(&txn).map(|row| **row).collect();
        for row in known {
            match wanted.get(&row.tuple) {
                None => drop(self.table.delete(&mut txn, &row)?),
                Some(same) if *same == row => drop(wanted.remove(&row.tuple)),
                Some(_) => {}
            }
        }
        for row in wanted.into_values() {
            self.table.insert(&mut txn, row)?;
        }
        txn.commit();
        Ok(())
    }
}

fn is_icmp(tuple: NatTuple) -> bool {
    match tuple.source {
        IpAddr::V4(_) => tuple.protocol == 1,
        IpAddr::V6(_) => tuple.protocol == 58,
    }
}
