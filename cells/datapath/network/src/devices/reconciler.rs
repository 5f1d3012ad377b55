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
use crate::{Owner, causes::WithCauses, wal::Wal};

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
    Reconciler::new(&db, table, DesiredDevice::STATUS, WithCauses(ops), config).spawn(&jobs)?;
    Ok(())
}

/// Another program owns the device: rename or delete one of the two.
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

#[cfg(test)]
mod tests {
    use skep_base_net::netns::Namespace;
    use statedb::reconciler::Status;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::owner::Owners;

    fn device(parent_index: u32, mtu: u32) -> DesiredDevice {
        DesiredDevice {
            owner: Owners::default().register("one").unwrap(),
            name: "vlan30".to_owned(),
            spec: Vlan {
                parent_name: "eth0".to_owned(),
                parent_index,
                id: 30,
                mtu,
            },
            status: Status::pending(),
        }
    }

    #[test]
    fn devices_of_the_log_are_changed_deleted_and_pruned_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOG);
        let (snapshot, token) = (Db::new().read(), CancellationToken::new());
        let round = Round::new(&snapshot, &token);
        let test = || -> Result<(), BoxError> {
            let net = Netlink::open()?;
            let mut ops = DeviceOps {
                log: Wal::new(path.clone()),
            };
            // A veth stands for the interface of the VLAN: not every kernel has those.
            let make = || net.add_link(LinkSpec::veth("eth0", LinkSpec::new().name("vlan30")));
            make()?;
            let parent = net.link("eth0")?.index;
            let error = ops.update(&round, 1, &mut device(parent, 0)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "device vlan30 exist in kernel but not with desired device owner one"
            );
            ops.delete(&round, 1, &device(parent, 0))?;

            ops.log.add("one/vlan30")?;
            ops.update(&round, 1, &mut device(parent, 1400))?;
            let link = net.link("vlan30")?;
            assert!(link.is_up() && link.mtu == 1400, "{link:?}");
            ops.update(&round, 1, &mut device(parent, 0))?;
            assert_eq!(net.link("vlan30")?.mtu, 1500);

            // Another process has the same log.
            let mut ops = DeviceOps {
                log: Wal::new(path.clone()),
            };
            ops.prune(&round, &mut std::iter::empty())?;
            assert_eq!(net.find_link("vlan30")?, None);
            make()?;
            ops.delete(&round, 1, &device(parent, 0))?;
            assert!(net.find_link("vlan30")?.is_some(), "not of the log any more");

            // What cannot be made is not in the log.
            net.delete_link("eth0")?;
            ops.update(&round, 1, &mut device(parent, 0)).unwrap_err();
            assert_eq!(ops.log.keys()?, [""; 0]);
            Ok(())
        };
        let done = Namespace::new()
            .unwrap()
            .inside(|| test().map_err(|error| error.to_string()));
        done.unwrap().unwrap();
    }
}
