// SPDX-License-Identifier: Apache-2.0

//! Table `podippools`: CiliumPodIPPools.

use std::{fmt, sync::Arc};

use hive::Jobs;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::{ReflectError, Reflector};
use skep_k8s_types::slim::{LabelSelector, Metadata};
use statedb::{Db, Index, Row, RwTable, row};

/// Addresses of the pool keep their source address outside of the cluster.
const SKIP_MASQUERADE: &str = "ipam.cilium.io/skip-masquerade";
/// Networks of a pool that a cell shows.
const SHOWN: usize = 2;

/// A CiliumPodIPPool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodIpPool {
    pub metadata: Metadata,
    pub spec: PodIpPoolSpec,
}

skep_k8s_types::resource!(
    PodIpPool,
    "cilium.io",
    "v2alpha1",
    "CiliumPodIPPool",
    "ciliumpodippools",
    false
);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodIpPoolSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<PoolFamily>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<PoolFamily>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    #[serde(rename = "allowFirstIP")]
    pub allow_first_ip: Option<bool>,
    #[serde(rename = "allowLastIP")]
    pub allow_last_ip: Option<bool>,
}

/// Networks of a family.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PoolFamily {
    pub cidrs: Vec<String>,
    pub mask_size: u8,
}

/// Row of `podippools`.
#[derive(Debug, Clone)]
pub struct PoolRow(pub Arc<PodIpPool>);

impl PoolRow {
    /// Primary index: by name.
    pub const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.0.metadata.name));

    pub(super) fn skips_masquerade(&self) -> bool {
        self.0.metadata.annotations.get(SKIP_MASQUERADE) == Some("true")
    }
}

fn cidrs(family: Option<&PoolFamily>) -> String {
    let all = family.map(|family| &*family.cidrs).unwrap_or_default();
    match all.len() {
        count if count > SHOWN + 1 => format!("{}, ...", all[..SHOWN].join(", ")),
        _ => all.join(", "),
    }
}

fn mask(family: Option<&PoolFamily>) -> String {
    family.map_or_else(|| "-".to_owned(), |family| family.mask_size.to_string())
}

impl Row for PoolRow {
    fn header() -> &'static [&'static str] {
        &["Name", "v4CIDRs", "v4MaskSize", "v6CIDRs", "v6MaskSize", "Flags"]
    }

    fn cells(&self) -> Vec<String> {
        let spec = &self.0.spec;
        let (ipv4, ipv6) = (spec.ipv4.as_ref(), spec.ipv6.as_ref());
        let flags = [
            (self.skips_masquerade(), "SkipMasquerade=true"),
            (spec.allow_first_ip == Some(true), "AllowFirstIP=true"),
            (spec.allow_last_ip == Some(true), "AllowLastIP=true"),
        ];
        let flags: Vec<&str> = flags
            .into_iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, flag)| flag)
            .collect();
        vec![
            self.0.metadata.name.to_string(),
            cidrs(ipv4),
            mask(ipv4),
            cidrs(ipv6),
            mask(ipv6),
            flags.join(", "),
        ]
    }

    fn to_json(&self) -> Result<Value, row::BoxError> {
        row::to_json(&*self.0)
    }
}

impl fmt::Display for PoolRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.metadata.name)
    }
}

pub(super) fn new_table(db: Db) -> Result<RwTable<PoolRow>, statedb::Error> {
    RwTable::builder("podippools")
        .primary(PoolRow::BY_NAME)
        .build(&db)
}

pub(super) fn reflect(
    db: &Db,
    table: &RwTable<PoolRow>,
    client: Arc<dyn Client>,
    jobs: &Jobs,
) -> Result<(), ReflectError> {
    let source = Arc::new(Api::<PodIpPool>::all(client));
    Reflector::new("daemon-k8s", table.clone(), source, |pool: &Arc<PodIpPool>| {
        Some(PoolRow(pool.clone()))
    })
    .optional_kind()
    .register(jobs, db)
}
