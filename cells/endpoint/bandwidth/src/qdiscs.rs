// SPDX-License-Identifier: Apache-2.0

//! Table `bandwidth-qdiscs` → queueing disciplines of devices.

use std::{fmt::Debug, sync::Arc, time::Duration};

use serde_json::{Value, json};
use skep_base_net::{FqOptions, NetError, Netlink, Qdisc};
use skep_duration::format_duration;
use skep_node_local::Device;
use statedb::{
    Db, Index, Obj, Revision, Row, RwTable,
    reconciler::{Ops, Round, Status, StatusField},
    row::BoxError,
};

/// Packets that are to leave later are dropped.
pub(crate) const HORIZON: Duration = Duration::from_secs(2);
const FQ: FqOptions = FqOptions {
    horizon: HORIZON.as_micros() as u32,
    buckets: 15,
};

/// The queueing discipline that a device has to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredQdisc {
    pub index: u32,
    pub name: String,
    /// Other devices send for it, which have queues: the interface of a bond.
    pub is_queueless: bool,
    pub status: Status,
}

impl DesiredQdisc {
    /// By the kernel's index of the device.
    pub const BY_INDEX: Index<Self, u32> = Index::new("id", |row, keys| keys.add(&row.index));
    pub(crate) const STATUS: StatusField<Self> = StatusField {
        get: |row| row.status.clone(),
        set: |row, status| row.status = status,
    };

    /// The same is desired.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.index, &self.name, self.is_queueless) == (other.index, &other.name, other.is_queueless)
    }

    fn horizon(&self) -> String {
        let horizon = if self.is_queueless {
            Duration::ZERO
        } else {
            HORIZON
        };
        format_duration(horizon)
    }

    fn buckets(&self) -> u32 {
        if self.is_queueless { 0 } else { FQ.buckets }
    }
}

impl Row for DesiredQdisc {
    fn header() -> &'static [&'static str] {
        &["LinkIndex", "LinkName", "FqHorizon", "FqBuckets", "Status"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.index.to_string(),
            self.name.clone(),
            self.horizon(),
            self.buckets().to_string(),
            self.status.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "LinkIndex": self.index,
            "LinkName": self.name,
            "FqHorizon": self.horizon(),
            "FqBuckets": self.buckets(),
        }))
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<DesiredQdisc>, statedb::Error> {
    RwTable::builder("bandwidth-qdiscs")
        .primary(DesiredQdisc::BY_INDEX)
        .build(&db)
}

/// Queueing disciplines of the selected devices. A bond has none: those that it joins have.
pub(crate) fn desired(devices: &[&Device]) -> Vec<DesiredQdisc> {
    let row = |device: &Device, is_queueless| DesiredQdisc {
        index: device.index,
        name: device.name.clone(),
        is_queueless,
        status: Status::pending(),
    };
    let mut rows: Vec<DesiredQdisc> = Vec::new();
    for device in devices.iter().filter(|device| device.selected) {
        if device.kind != "bond" {
            rows.push(row(device, false));
            continue;
        }
        let members = devices
            .iter()
            .filter(|member| member.master_index == device.index);
        let members: Vec<DesiredQdisc> = members.map(|member| row(member, false)).collect();
        if !members.is_empty() {
            rows.push(row(device, true));
            rows.extend(members);
        }
    }
    rows.sort_by_key(|row| row.index);
    rows.dedup_by_key(|row| row.index);
    rows
}

/// Queueing disciplines of the kernel.
pub(crate) trait Qdiscs: Debug + Send + Sync {
    fn list(&self, device: u32) -> Result<Vec<Qdisc>, NetError>;
    fn replace(&self, qdisc: &Qdisc) -> Result<(), NetError>;
}

/// Those of the network namespace of the thread.
#[derive(Debug)]
pub(crate) struct KernelQdiscs;

impl Qdiscs for KernelQdiscs {
    fn list(&self, device: u32) -> Result<Vec<Qdisc>, NetError> {
        Netlink::open()?.qdiscs(device)
    }

    fn replace(&self, qdisc: &Qdisc) -> Result<(), NetError> {
        Netlink::open()?.replace_qdisc(qdisc)
    }
}

#[derive(Debug)]
pub(crate) struct QdiscOps(pub(crate) Arc<dyn Qdiscs>);

fn is_right(qdisc: &Qdisc) -> bool {
    qdisc.kind == "fq" && qdisc.fq == Some(FQ)
}

/// The disciplines of the queues of `mq`.
fn leaves<'a>(all: &'a [Qdisc], mq: &'a Qdisc) -> impl Iterator<Item = &'a Qdisc> {
    // Classes have the major number of their discipline.
    all.iter()
        .filter(|leaf| !leaf.is_root() && leaf.parent >> 16 == mq.handle >> 16)
}

impl QdiscOps {
    fn root(&self, device: u32) -> Result<(Vec<Qdisc>, Option<Qdisc>), NetError> {
        let mut all = self.0.list(device)?;
        all.retain(|qdisc| qdisc.parent != Qdisc::CLSACT);
        let root = all.iter().find(|qdisc| qdisc.is_root()).cloned();
        Ok((all, root))
    }

    fn ensure(&self, device: u32, is_queueless: bool) -> Result<(), NetError> {
        let at_root = |kind: &str, fq| Qdisc {
            device,
            kind: kind.to_owned(),
            parent: Qdisc::ROOT,
            fq,
            ..Qdisc::default()
        };
        let (all, root) = self.root(device)?;
        if is_queueless {
            return match root {
                Some(root) if root.kind != "noqueue" => self.0.replace(&at_root("noqueue", None)),
                _ => Ok(()),
            };
        }
        let is_mq = root
            .as_ref()
            .is_some_and(|root| root.kind == "mq" && root.handle != 0);
        match &root {
            Some(root) if is_right(root) => return Ok(()),
            Some(root) if is_mq && leaves(&all, root).count() > 0 && leaves(&all, root).all(is_right) => {
                return Ok(());
            }
            _ => {}
        }
        if !is_mq {
            // That of the kernel has no handle, and is not replaced by one of its kind.
            self.0.replace(&at_root("noqueue", None))?;
            // A device with a single queue has none.
            if self.0.replace(&at_root("mq", None)).is_err() {
                return self.0.replace(&at_root("fq", Some(FQ)));
            }
        }
        let (all, root) = self.root(device)?;
        let Some(root) = root else { return Ok(()) };
        for leaf in leaves(&all, &root).filter(|leaf| !is_right(leaf)) {
            self.0.replace(&Qdisc {
                parent: leaf.parent,
                ..at_root("fq", Some(FQ))
            })?;
        }
        Ok(())
    }
}

impl Ops<DesiredQdisc> for QdiscOps {
    fn update(&mut self, _: &Round<'_>, _: Revision, row: &mut DesiredQdisc) -> Result<(), BoxError> {
        Ok(self.ensure(row.index, row.is_queueless)?)
    }

    fn delete(&mut self, _: &Round<'_>, _: Revision, _: &DesiredQdisc) -> Result<(), BoxError> {
        Ok(())
    }

    fn prune(
        &mut self,
        _: &Round<'_>,
        _: &mut dyn Iterator<Item = &Obj<DesiredQdisc>>,
    ) -> Result<(), BoxError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Mutex};

    use super::*;

    /// A device with so many queues, and a kernel that has fq.
    #[derive(Debug)]
    struct Kernel {
        queues: u32,
        qdiscs: Mutex<Vec<Qdisc>>,
        changes: Mutex<Vec<String>>,
    }

    impl Kernel {
        fn new(queues: u32, qdiscs: Vec<Qdisc>) -> Arc<Self> {
            Arc::new(Self {
                queues,
                qdiscs: Mutex::new(qdiscs),
                changes: Mutex::default(),
            })
        }

        /// What was changed since the last call.
        fn ensure(self: &Arc<Self>, is_queueless: bool) -> String {
            QdiscOps(self.clone()).ensure(3, is_queueless).unwrap();
            std::mem::take(&mut *self.changes.lock().unwrap()).join(" ")
        }
    }

    impl Qdiscs for Kernel {
        fn list(&self, _: u32) -> Result<Vec<Qdisc>, NetError> {
            Ok(self.qdiscs.lock().unwrap().clone())
        }

        fn replace(&self, qdisc: &Qdisc) -> Result<(), NetError> {
            if qdisc.kind == "mq" && self.queues == 1 {
                let source = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
                return Err(NetError::refused("set mq", source));
            }
            let mut all = self.qdiscs.lock().unwrap();
            if qdisc.is_root() {
                all.retain(|found| found.parent == Qdisc::CLSACT);
            }
            all.retain(|found| found.parent != qdisc.parent);
            all.push(Qdisc {
                handle: 0x8001_0000,
                ..qdisc.clone()
            });
            if qdisc.kind == "mq" {
                all.extend((1..=self.queues).map(|queue| of("pfifo_fast", 0, 0x8001_0000 | queue)));
            }
            self.changes.lock().unwrap().push(qdisc.kind.clone());
            Ok(())
        }
    }

    fn of(kind: &str, handle: u32, parent: u32) -> Qdisc {
        Qdisc {
            device: 3,
            kind: kind.to_owned(),
            handle,
            parent,
            fq: None,
        }
    }

    #[test]
    fn queues_of_devices_get_fq() {
        let clsact = of("clsact", 0xffff_0000, Qdisc::CLSACT);
        let single = Kernel::new(1, vec![of("pfifo_fast", 0, Qdisc::ROOT), clsact.clone()]);
        assert_eq!(single.ensure(false), "noqueue fq");
        assert_eq!(single.ensure(false), "");

        // That of the kernel, without a handle.
        let root = of("mq", 0, Qdisc::ROOT);
        let several = Kernel::new(2, vec![root, of("fq_codel", 0, 1), of("fq_codel", 0, 2), clsact]);
        assert_eq!(several.ensure(false), "noqueue mq fq fq");
        assert_eq!(several.ensure(false), "");
        several.qdiscs.lock().unwrap().last_mut().unwrap().fq = None;
        assert_eq!(several.ensure(false), "fq");
        assert_eq!(several.ensure(true), "noqueue");
        assert_eq!(several.ensure(true), "");
    }

    #[test]
    fn members_of_bonds_have_the_queues() {
        let device = |index: u32, kind: &str, master_index, selected| Device {
            index,
            name: format!("eth{index}"),
            kind: kind.to_owned(),
            master_index,
            selected,
            ..Device::default()
        };
        let all = [
            device(2, "device", 0, true),
            device(3, "bond", 0, true),
            device(4, "device", 3, false),
            device(5, "bond", 0, true),
            device(6, "veth", 0, false),
        ];

        let found = desired(&all.iter().collect::<Vec<_>>());

        let found: Vec<_> = found.iter().map(|row| (row.index, row.is_queueless)).collect();
        assert_eq!(found, [(2, false), (3, true), (4, false)]);
    }
}
