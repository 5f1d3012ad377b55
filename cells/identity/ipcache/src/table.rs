// SPDX-License-Identifier: Apache-2.0

//! Table `ipcache`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};
use skep_identity_cache::LocalIdentity;
use statedb::reconciler::{Status, StatusField};
use statedb::row::BoxError;
use statedb::{Db, Index, Obj, ReadTxn, Row, RwTable, Table};

use crate::claim::Claims;
use crate::prefix::Prefix;
use crate::resolve::Resolved;

/// A prefix and the claims on it.
#[derive(Clone, Debug, PartialEq)]
pub struct IpcacheEntry {
    pub prefix: Prefix,
    pub claims: Claims,
    /// The identity of claimed labels that have no reserved one. It is in use while this row exists.
    pub local: Option<LocalIdentity>,
    pub status: Status,
}

impl IpcacheEntry {
    pub const BY_PREFIX: Index<Self, Prefix> = Index::new("prefix", |row, keys| keys.add(&row.prefix));
    pub(crate) const STATUS: StatusField<Self> = StatusField {
        get: |row| row.status.clone(),
        set: |row, status| row.status = status,
    };

    /// What the prefix is, by all claims on it.
    pub fn resolve(&self) -> Option<Resolved<'_>> {
        self.claims.resolve(self.local.as_ref())
    }
}

impl Row for IpcacheEntry {
    fn header() -> &'static [&'static str] {
        &[
            "Prefix",
            "Identity",
            "Source",
            "TunnelPeer",
            "EncryptKey",
            "Flags",
            "Pod",
            "Owners",
            "Status",
        ]
    }

    fn cells(&self) -> Vec<String> {
        let owners: Vec<String> = self.claims.iter().map(|claim| claim.owner.to_string()).collect();
        let resolved = self.resolve();
        let cell = |text: fn(&Resolved<'_>) -> String| resolved.as_ref().map(text).unwrap_or_default();
        vec![
            self.prefix.to_string(),
            cell(|entry| entry.identity.to_string()),
            cell(|entry| entry.source.to_string()),
            cell(|entry| entry.tunnel_peer.map(|node| node.to_string()).unwrap_or_default()),
            cell(|entry| entry.encrypt_key.to_string()),
            cell(flags_text),
            cell(|entry| entry.pod.map(ToString::to_string).unwrap_or_default()),
            owners.join(", "),
            self.status.kind.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        let owners: Vec<String> = self.claims.iter().map(|claim| claim.owner.to_string()).collect();
        let resolved = self.resolve();
        let pod = resolved.as_ref().and_then(|entry| entry.pod);
        Ok(json!({
            "Prefix": self.prefix.to_string(),
            "Identity": resolved.as_ref().map(|entry| entry.identity.get()),
            "Source": resolved.as_ref().map(|entry| entry.source.as_str()),
            "TunnelPeer": resolved.as_ref().and_then(|entry| entry.tunnel_peer),
            "EncryptKey": resolved.as_ref().map(|entry| entry.encrypt_key),
            "Flags": resolved.as_ref().map(flags_text),
            "Namespace": pod.map(|pod| pod.namespace.as_str()),
            "PodName": pod.map(|pod| pod.name.as_str()),
            "Owners": owners,
            "Status": serde_json::to_value(&self.status)?,
        }))
    }
}

fn flags_text(entry: &Resolved<'_>) -> String {
    let names: Vec<String> = entry
        .flags
        .iter_names()
        .map(|(name, _)| name.to_lowercase().replace('_', "-"))
        .collect();
    names.join(",")
}

/// The entry that a packet to or from an address has: the address itself, else the longest network around it that has an
/// identity.
pub fn lookup<'a>(
    table: &'a Table<IpcacheEntry>,
    txn: &'a impl ReadTxn,
    address: IpAddr,
    cluster_id: u16,
) -> Option<&'a Obj<IpcacheEntry>> {
    let get = |prefix: Prefix| {
        let key = IpcacheEntry::BY_PREFIX.key(&prefix.in_cluster(cluster_id));
        table.get(txn, key).filter(|row| row.resolve().is_some())
    };
    if let Some(found) = get(Prefix::address(address)) {
        return Some(found);
    }
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let networks = (0..=longest).rev();
    networks
        .filter_map(|bits| IpNet::new(address, bits).ok())
        .find_map(|net| get(Prefix::cidr(net)))
}

pub(crate) fn new(db: Db) -> Result<RwTable<IpcacheEntry>, statedb::Error> {
    RwTable::builder("ipcache")
        .primary(IpcacheEntry::BY_PREFIX)
        .build(&db)
}
