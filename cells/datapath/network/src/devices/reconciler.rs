// SPDX-License-Identifier: Apache-2.0

//! Table `desired-devices` → interfaces.

use std::{collections::HashSet, time::Duration};

use hive::{Cfg, Jobs, SpawnError};
use skep_base_net::{Link, LinkSpec, NetError, Netlink};
use skep_base_settings::StateConfig;
use statedb::{
    Db, Obj, Revision, RwTable,
    reconciler::{Config, Ops, Reconciler, Round},
    row::BoxError,
};

use super::row::{DesiredDevice, Vlan};
use crate::{Owner, wal::Wal};

/// Name of the log.
const LOG: &str = "device-reconciler.wal";
/// Interval of pruning.
pub(crate) const PRUNE_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Registers the reconciler.
pub(crate) fn start(
    db: Db,
    table: RwTable<DesiredDevice>,
    state: Cfg<StateConfig>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    let ops = DeviceOps {
        log: Wal::new(state.directory().join(LOG)),
    };
    let config = Config {
        prune_interval: Some(PRUNE_INTERVAL),
        blocking: true,
        ..Config::default()
    };
    Reconciler::new(&db, table, DesiredDevice::STATUS, ops, config).spawn(&jobs)?;
    Ok(())
}

/// The device is somebody else's: rename or delete one of the two.
#[derive(Debug, thiserror::Error)]
#[error("device {name} exist in kernel but not with desired device owner {owner}")]
struct ForeignDevice {
    name: String,
    owner: Owner,
}

struct DeviceOps {
    log: Wal,
}

impl DeviceOps {
    /// Creates a device. One that could not be created is not in the log: another program may make one of that name.
    fn create(&mut self, net: &Netlink, device: &DesiredDevice) -> Result<(), BoxError> {
        let Vlan {
            parent_index,
            id,
            mtu,
            ..
        } = device.spec;
        let mut spec = LinkSpec::vlan(&device.name, parent_index, id);
        if mtu > 0 {
            spec = spec.mtu(mtu);
        }
        self.log.add(&device.id())?;
        let created = net.add_link(spec).and_then(|()| net.link(&device.name));
        match created {
            Ok(link) => Ok(net.set_link(&link, LinkSpec::new().up())?),
            Err(error) => {
                self.log.remove(&device.id())?;
                Err(error.into())
            }
        }
    }
}

/// Changes what differs, and sets the device up.
fn modify(net: &Netlink, link: &Link, spec: &Vlan) -> Result<(), NetError> {
    let mtu = match spec.mtu {
        0 => net.link_of_index(spec.parent_index)?.map(|parent| parent.mtu),
        mtu => Some(mtu),
    };
    let mut change = LinkSpec::new().up();
    if let Some(mtu) = mtu.filter(|mtu| *mtu != link.mtu) {
        change = change.mtu(mtu);
    }
    net.set_link(link, change)
}

impl Ops<DesiredDevice> for DeviceOps {
    fn update(&mut self, _: &Round<'_>, _: Revision, device: &mut DesiredDevice) -> Result<(), BoxError> {
        let net = Netlink::open()?;
        match net.find_link(&device.name)? {
            None => self.create(&net, device),
            Some(link) if self.log.contains(&device.id())? => Ok(modify(&net, &link, &device.spec)?),
            Some(_) => Err(ForeignDevice {
                name: device.name.clone(),
                owner: device.owner.clone(),
            }
            .into()),
        }
    }

    fn delete(&mut self, _: &Round<'_>, _: Revision, device: &DesiredDevice) -> Result<(), BoxError> {
        let id = device.id();
        if self.log.contains(&id)? {
            Netlink::open()?.delete_link(&device.name)?;
            self.log.remove(&id)?;
        }
        Ok(())
    }

    fn prune(
        &mut self,
        _: &Round<'_>,
        devices: &mut dyn Iterator<Item = &Obj<DesiredDevice>>,
    ) -> Result<(), BoxError> {
        let desired: HashSet<String> = devices.map(|device| device.id()).collect();
        let net = Netlink::open()?;
        for id in self.log.keys()?.into_iter().filter(|id| !desired.contains(id)) {
            // Names of interfaces have no slash.
            let name = id.rsplit_once('/').map_or(id.as_str(), |(_, name)| name);
            net.delete_link(name)?;
            self.log.remove(&id)?;
        }
        Ok(self.log.compact()?)
    }
}
