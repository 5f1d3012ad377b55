// SPDX-License-Identifier: Apache-2.0

//! Where a cluster has its identities.

use std::fmt;
use std::str::FromStr;

use hive::Cell;

/// Where the global identities of the cluster are.
#[derive(Debug, Clone, hive::Config)]
pub struct IdentityConfig {
    /// Identity allocation backend: `crd`, `kvstore`, `doublewrite-readcrd` or `doublewrite-readkvstore`.
    #[config(default = "kvstore")]
    pub identity_allocation_mode: AllocationMode,
    /// Creator of CiliumIdentities: `agent`, `operator` or `both`.
    #[config(default = "agent")]
    pub identity_management_mode: ManagementMode,
}

hive::catalogue!(cell);

/// Cell: declares [`IdentityConfig`].
pub fn cell() -> Cell {
    Cell::module("identity-config", "Where identities are allocated").config::<IdentityConfig>()
}

/// Where the global identities of a cluster are: Cilium's setting `identity-allocation-mode`.
///
/// ```
/// use skep_base_settings::identity::AllocationMode;
///
/// let mode: AllocationMode = "doublewrite-readcrd".parse()?;
/// assert!(mode.uses_objects() && mode.uses_kvstore() && mode.reads_objects());
/// # Ok::<(), skep_base_settings::identity::UnknownMode>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationMode {
    /// In the key-value store.
    KvStore,
    /// As CiliumIdentities.
    Crd,
    /// In both; those in the key-value store count.
    DoubleWriteReadKvStore,
    /// In both; CiliumIdentities count.
    DoubleWriteReadCrd,
}

/// The word is no mode: fix `identity-allocation-mode`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of crd, kvstore, doublewrite-readcrd, doublewrite-readkvstore")]
pub struct UnknownMode(pub String);

impl AllocationMode {
    /// Whether identities are CiliumIdentities, perhaps among others.
    pub const fn uses_objects(self) -> bool {
        !matches!(self, Self::KvStore)
    }

    /// Whether identities are in the key-value store, perhaps among others.
    pub const fn uses_kvstore(self) -> bool {
        !matches!(self, Self::Crd)
    }

    /// Whether identities are read from CiliumIdentities; otherwise they are read from the key-value store.
    pub const fn reads_objects(self) -> bool {
        matches!(self, Self::Crd | Self::DoubleWriteReadCrd)
    }
}

impl FromStr for AllocationMode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        match word {
            "kvstore" => Ok(Self::KvStore),
            "crd" => Ok(Self::Crd),
            "doublewrite-readkvstore" => Ok(Self::DoubleWriteReadKvStore),
            "doublewrite-readcrd" => Ok(Self::DoubleWriteReadCrd),
            other => Err(UnknownMode(other.to_owned())),
        }
    }
}

impl fmt::Display for AllocationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KvStore => "kvstore",
            Self::Crd => "crd",
            Self::DoubleWriteReadKvStore => "doublewrite-readkvstore",
            Self::DoubleWriteReadCrd => "doublewrite-readcrd",
        })
    }
}

/// Who creates CiliumIdentities: Cilium's setting `identity-management-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementMode {
    /// Agents.
    Agent,
    /// The operator.
    Operator,
    /// Both, on the way from one to the other.
    Both,
}

/// The word is no mode: fix `identity-management-mode`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of agent, operator, both")]
pub struct UnknownManagementMode(pub String);

impl FromStr for ManagementMode {
    type Err = UnknownManagementMode;

    fn from_str(word: &str) -> Result<Self, UnknownManagementMode> {
        match word {
            "agent" => Ok(Self::Agent),
            "operator" => Ok(Self::Operator),
            "both" => Ok(Self::Both),
            other => Err(UnknownManagementMode(other.to_owned())),
        }
    }
}

impl fmt::Display for ManagementMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "agent",
            Self::Operator => "operator",
            Self::Both => "both",
        })
    }
}

hive::config_value!(ManagementMode, "agent, operator or both");
hive::config_value!(
    AllocationMode,
    "crd, kvstore, doublewrite-readcrd or doublewrite-readkvstore"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_say_where_identities_are_and_which_count() {
        for (word, objects, kvstore, reads_objects) in [
            ("kvstore", false, true, false),
            ("crd", true, false, true),
            ("doublewrite-readkvstore", true, true, false),
            ("doublewrite-readcrd", true, true, true),
        ] {
            let mode: AllocationMode = word.parse().unwrap();
            assert_eq!(
                (mode.uses_objects(), mode.uses_kvstore(), mode.reads_objects()),
                (objects, kvstore, reads_objects),
                "{word}"
            );
        }
        assert_eq!(
            "CRD".parse::<AllocationMode>().unwrap_err().to_string(),
            "`CRD` is none of crd, kvstore, doublewrite-readcrd, doublewrite-readkvstore"
        );
    }
}
