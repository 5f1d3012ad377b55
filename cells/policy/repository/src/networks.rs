// SPDX-License-Identifier: Apache-2.0

//! Networks that objects name → claims in the ipcache.

use std::collections::BTreeMap;

use ipnet::IpNet;
use skep_identity::{Label, Labels};
use skep_ipcache::{Claim, Owner, Prefix, ResourceId, Source, Writer};
use skep_policy_model::Content;

/// Networks with the labels that they are claimed with.
pub(crate) type Networks = BTreeMap<IpNet, Labels>;

/// The networks of an object.
pub(crate) fn networks(content: &Content) -> Networks {
    match content {
        Content::Rules(set) => {
            let networks = set
                .networks
                .iter()
                .filter_map(|net| Some((*net, Label::cidr(*net)?)));
            networks
                .map(|(net, label)| (net, Labels::from_iter([label])))
                .collect()
        }
        Content::CidrGroup(group) => {
            let labels: Labels = group.labels.iter().cloned().collect();
            group.networks.iter().map(|net| (*net, labels.clone())).collect()
        }
    }
}

/// Claims of the networks of all objects.
#[derive(Debug, Default)]
pub(crate) struct Claims(BTreeMap<String, Networks>);

impl Claims {
    /// Claims what an object names now and has not claimed.
    pub(crate) fn add(
        &mut self,
        ipcache: &Writer,
        object: &str,
        now: &Networks,
    ) -> Result<(), statedb::Error> {
        let known = self.0.entry(object.to_owned()).or_default();
        let new: Vec<_> = now
            .iter()
            .filter(|(net, labels)| known.get(*net) != Some(*labels))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut txn = ipcache.write();
        for (net, labels) in new {
            let claim = Claim::labels(owner(object), labels.clone());
            ipcache.upsert(&mut txn, Prefix::cidr(*net), claim)?;
            known.insert(*net, labels.clone());
        }
        txn.commit();
        Ok(())
    }

    /// Gives back what an object does not name any more.
    pub(crate) fn retain(
        &mut self,
        ipcache: &Writer,
        object: &str,
        now: &Networks,
    ) -> Result<(), statedb::Error> {
        let Some(known) = self.0.get_mut(object) else {
            return Ok(());
        };
        let gone: Vec<IpNet> = known
            .keys()
            .filter(|net| !now.contains_key(*net))
            .copied()
            .collect();
        if !gone.is_empty() {
            let mut txn = ipcache.write();
            for net in gone {
                ipcache.delete(&mut txn, Prefix::cidr(net), &owner(object))?;
                known.remove(&net);
            }
            txn.commit();
        }
        if known.is_empty() {
            self.0.remove(object);
        }
        Ok(())
    }
}

/// An object claims as what it is: `<kind>/<namespace>/<name>`.
fn owner(object: &str) -> Owner {
    let mut parts = object.splitn(3, '/');
    let mut part = || parts.next().unwrap_or_default();
    let (kind, namespace, name) = (part(), part(), part());
    Owner::new(Source::Generated, ResourceId::new(kind, namespace, name))
}
