// SPDX-License-Identifier: Apache-2.0

//! Endpoints of the agent itself: the node and the listener of Ingresses.

use std::{net::IpAddr, sync::Arc};

use skep_identity::{Labels, NumericIdentity, Reserved};
use statedb::{Obj, ReadTxn};

use super::{CreateError, Endpoints};
use crate::{Endpoint, EndpointLabels, EndpointSpec, EndpointState, Mac, RegenerationReason, host_endpoint};

impl Endpoints {
    /// The endpoint of the node is at this interface, and has these labels.
    pub(crate) fn set_host(&self, ifindex: u32, mac: Mac, labels: Labels) -> Result<(), CreateError> {
        let spec = EndpointSpec {
            interface: host_endpoint::INTERFACE.to_owned(),
            ifindex,
            mac,
            host_mac: mac,
            ..EndpointSpec::default()
        };
        let labels = Arc::new(labels);
        let of_node = EndpointLabels {
            info: (*labels).clone(),
            identity: labels,
            ..EndpointLabels::default()
        };
        let id = self.set_own(NumericIdentity::HOST, spec, of_node, "updated host endpoint")?;
        if self.has_host_firewall {
            self.policies.request([(id, NumericIdentity::HOST)])?;
        }
        Ok(())
    }

    /// The listener of Ingresses has these addresses; without any there is none.
    pub(crate) fn set_ingress(&self, addresses: &[IpAddr]) -> Result<(), CreateError> {
        if addresses.is_empty() {
            let snapshot = self.db.read();
            let found = self.own(&snapshot, NumericIdentity::INGRESS, "");
            if let Some(row) = found.filter(|row| row.is_live()) {
                self.disconnect(row.id)?;
            }
            return Ok(());
        }
        let mut spec = EndpointSpec {
            labels: Labels::from_iter([Reserved::Ingress.into()]),
            ..EndpointSpec::default()
        };
        for address in addresses {
            match *address {
                IpAddr::V4(address) => spec.ipv4 = Some(address),
                IpAddr::V6(address) => spec.ipv6 = Some(address),
            }
        }
        let labels = EndpointLabels {
            identity: Reserved::Ingress.into(),
            ..EndpointLabels::default()
        };
        let identity = NumericIdentity::INGRESS;
        let id = self.set_own(identity, spec, labels, "updated ingress endpoint")?;
        self.policies.request([(id, identity)])?;
        Ok(())
    }

    /// The endpoint of the agent itself with this identity at this interface.
    fn own(&self, txn: &impl ReadTxn, identity: NumericIdentity, interface: &str) -> Option<Obj<Endpoint>> {
        let mut found = self.table.list(txn, Endpoint::BY_INTERFACE.key(interface));
        found.find(|row| row.identity == Some(identity)).cloned()
    }

    /// Creates or changes an endpoint of the agent itself; returns its id.
    fn set_own(
        &self,
        identity: NumericIdentity,
        spec: EndpointSpec,
        labels: EndpointLabels,
        cause: &str,
    ) -> Result<u16, CreateError> {
        let mut txn = self.db.write(&[&self.table]);
        let found = self.own(&txn, identity, &spec.interface);
        let mut row = match &found {
            Some(row) => (**row).clone(),
            None => {
                let row = Endpoint {
                    id: self.free_id(&txn)?,
                    identity: Some(identity),
                    is_host: identity == NumericIdentity::HOST,
                    keeps_addresses: true,
                    options: self.default_options(),
                    ..Endpoint::default()
                };
                row.log.ok(EndpointState::WaitingForIdentity, "Endpoint creation");
                row
            }
        };
        let id = row.id;
        self.check_free(&txn, &spec, Some(id))?;
        let is_readdressed = !row.spec.addresses().eq(spec.addresses());
        if found.is_some() && is_readdressed && row.former.is_none() {
            row.former = Some(row.spec.clone());
        }
        row.spec = Arc::new(spec);
        row.labels = Arc::new(labels);
        row.identity_labels = row.labels.identity.clone();
        let is_same = |found: &Obj<Endpoint>| row.spec == found.spec && row.labels == found.labels;
        if row.is_live() && !found.as_ref().is_some_and(is_same) {
            row.regenerate(RegenerationReason::EndpointUpdate, cause);
            self.table.insert(&mut txn, row)?;
            txn.commit();
        }
        Ok(id)
    }
}
