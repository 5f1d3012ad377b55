// SPDX-License-Identifier: Apache-2.0

//! Switches rates on if the kernel can pace, and derives the queueing disciplines from the devices.

use std::{future::pending, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use hive::{Cfg, JobCtx};
use skep_base_api::StatusProbe;
use skep_base_api_types::{BandwidthManager, Status, StatusResponse};
use skep_base_settings::BandwidthConfig;
use skep_datapath_hooks::RateSwitch;
use skep_node_local::Device;
use statedb::{Db, RwTable, Table};

use crate::{DesiredQdisc, kernel, qdiscs, rates::RateFollower};

pub(crate) struct Manager {
    pub(crate) config: Cfg<BandwidthConfig>,
    /// Where the settings of the kernel are.
    pub(crate) sysctl: PathBuf,
    pub(crate) switch: Arc<RateSwitch>,
    pub(crate) devices: Table<Device>,
    pub(crate) qdiscs: RwTable<DesiredQdisc>,
    pub(crate) rates: RateFollower,
    pub(crate) db: Db,
}

impl Manager {
    pub(crate) async fn follow(&self, JobCtx { health, .. }: &JobCtx) -> Result<(), statedb::Error> {
        match kernel::prepare(&self.sysctl, &self.config) {
            Err(error) => {
                health.degraded(
                    "Bandwidth manager is off: bandwidth of pods is not limited",
                    &error,
                );
                self.rates.none()?;
                return pending().await;
            }
            Ok(refused) => match refused.first() {
                None => health.ok("Bandwidth of pods is limited"),
                Some(error) => health.degraded("Bandwidth of pods is limited", error),
            },
        }
        self.switch.set(true);
        loop {
            let snapshot = self.db.read();
            let changed = self.devices.table_watch(&snapshot);
            let devices: Vec<_> = self.devices.all(&snapshot).collect();
            let devices: Vec<&Device> = devices.iter().map(|device| &***device).collect();
            self.write(qdiscs::desired(&devices))?;
            drop(devices);
            drop(snapshot);
            changed.closed().await;
        }
    }

    /// Nothing is undone at a device that is not selected any more.
    fn write(&self, desired: Vec<DesiredQdisc>) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.qdiscs]);
        let rows: Vec<_> = self.qdiscs.all(&txn).cloned().collect();
        for row in &rows {
            if !desired.iter().any(|wanted| wanted.is_like(row)) {
                self.qdiscs.delete(&mut txn, row)?;
            }
        }
        for wanted in desired {
            if !rows.iter().any(|row| wanted.is_like(row)) {
                self.qdiscs.insert(&mut txn, wanted)?;
            }
        }
        txn.commit();
        Ok(())
    }
}

/// Part `bandwidth-manager` of the status.
pub(crate) struct Probe {
    pub(crate) config: Cfg<BandwidthConfig>,
    pub(crate) switch: Arc<RateSwitch>,
    pub(crate) devices: Table<Device>,
    pub(crate) db: Db,
}

#[async_trait]
impl StatusProbe for Probe {
    fn name(&self) -> &'static str {
        "bandwidth-manager"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let mut part = BandwidthManager::default();
        if *self.switch.subscribe().borrow() {
            let snapshot = self.db.read();
            let devices = self.devices.all(&snapshot).filter(|device| device.selected);
            part = BandwidthManager {
                enabled: true,
                congestion_control: self.config.congestion_control().to_owned(),
                devices: devices.map(|device| device.name.clone()).collect(),
            };
        }
        response.bandwidth_manager = Some(part);
        None
    }
}
