// SPDX-License-Identifier: Apache-2.0

//! How rows of table `frontends` are written: with their place in the order of ids, and with the addresses of this node
//! that serve them as well.
//!
//! A node port stands in the table once, at the unspecified address. The addresses of the node that serve it too are a
//! field of the row, so that whoever carries frontends out needs nothing but the row. An address that another frontend
//! of the table has is not among them: that one is served there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use statedb::reconciler::Status;
use statedb::{Obj, WriteTxn};

use super::{Writer, WriterError};
use crate::FRONTENDS_BY_ADDRESS;
use crate::node::{AddressUse, Addresses};
use crate::types::{Frontend, FrontendKind, L3n4Addr, Scope};

impl Writer {
    /// Writes a frontend that is new, or of which something else is desired than before: it is the last to get an id.
    pub(super) fn put_frontend(&self, txn: &mut WriteTxn, mut frontend: Frontend) -> Result<(), WriterError> {
        frontend.sequence = self.0.tables.frontends.revision(txn) + 1;
        self.put_again(txn, frontend)
    }

    /// Writes a frontend that keeps its place in the order of ids.
    pub(super) fn put_again(&self, txn: &mut WriteTxn, mut frontend: Frontend) -> Result<(), WriterError> {
        let addresses = self.node(txn).addresses;
        (frontend.node_addresses, frontend.is_node_address) =
            self.evaluate_addresses(txn, &addresses, &frontend);
        frontend.status = Status::pending();
        let address = frontend.params.address;
        self.0.tables.frontends.insert(txn, frontend)?;
        self.share_address(txn, &addresses, &address)
    }

    /// Removes a frontend.
    pub(super) fn delete_frontend(
        &self,
        txn: &mut WriteTxn,
        frontend: &Obj<Frontend>,
    ) -> Result<(), WriterError> {
        self.0.tables.frontends.delete(txn, frontend)?;
        let addresses = self.node(txn).addresses;
        self.share_address(txn, &addresses, &frontend.params.address)
    }

    /// Makes those frontends pending for which the addresses of the node, as they are now, mean something else than
    /// when they were written.
    pub fn reevaluate_addresses(&self, txn: &mut WriteTxn, of: AddressUse) -> Result<(), WriterError> {
        let addresses = self.node(txn).addresses;
        for frontend in self.all_frontends(txn) {
            let is_concerned = match of {
                AddressUse::NodePorts => frontend.is_expanded(),
                AddressUse::Wildcards => may_have_wildcard(&frontend),
            };
            if is_concerned && let Some(changed) = self.evaluated(txn, &addresses, &frontend) {
                self.put_again(txn, changed)?;
            }
        }
        Ok(())
    }

    pub(super) fn all_frontends(&self, txn: &WriteTxn) -> Vec<Obj<Frontend>> {
        self.0.tables.frontends.all(txn).cloned().collect()
    }

    // A node port is served at an address of the node unless another frontend has it.
    fn share_address(
        &self,
        txn: &mut WriteTxn,
        addresses: &Addresses,
        address: &L3n4Addr,
    ) -> Result<(), WriterError> {
        if !addresses.answers_node_ports(address.ip()) {
            return Ok(());
        }
        let any = match address.is_ipv6() {
            true => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        let key = FRONTENDS_BY_ADDRESS.key(&address.with_ip(any));
        let row = self.0.tables.frontends.get(txn, key).cloned();
        let Some(row) = row.filter(|row| row.is_expanded()) else {
            return Ok(());
        };
        match self.evaluated(txn, addresses, &row) {
            // Behind the other one, which takes the address or has left it.
            Some(changed) if row.id != 0 => self.put_frontend(txn, changed),
            Some(changed) => self.put_again(txn, changed),
            None => Ok(()),
        }
    }

    // The frontend as the addresses of the node make it, if it is another then.
    fn evaluated(&self, txn: &WriteTxn, addresses: &Addresses, row: &Frontend) -> Option<Frontend> {
        let (node_addresses, is_node_address) = self.evaluate_addresses(txn, addresses, row);
        let is_same = node_addresses == row.node_addresses && is_node_address == row.is_node_address;
        (!is_same).then(|| Frontend {
            node_addresses,
            is_node_address,
            ..row.clone()
        })
    }

    // The addresses of the node that serve a frontend as well, and whether it has an address of the node itself.
    fn evaluate_addresses(
        &self,
        txn: &WriteTxn,
        addresses: &Addresses,
        frontend: &Frontend,
    ) -> (Option<Arc<[IpAddr]>>, bool) {
        let address = frontend.params.address;
        if !frontend.is_expanded() {
            let is_node_address = may_have_wildcard(frontend) && addresses.all.contains(&address.ip());
            return (None, is_node_address);
        }
        let is_free = |ip: &&IpAddr| {
            let at = address.with_ip(**ip);
            let row = self.0.tables.frontends.get(txn, FRONTENDS_BY_ADDRESS.key(&at));
            at != address && row.is_none_or(|row| row.params.kind == FrontendKind::NodePort)
        };
        let ips = addresses.node_ports(address.is_ipv6()).iter().filter(is_free);
        let ips: Arc<[IpAddr]> = ips.copied().collect();
        ((!ips.is_empty()).then_some(ips), false)
    }
}

fn may_have_wildcard(frontend: &Frontend) -> bool {
    matches!(
        frontend.params.kind,
        FrontendKind::ClusterIp | FrontendKind::LoadBalancer
    ) && frontend.params.address.scope() == Scope::External
}
