// SPDX-License-Identifier: Apache-2.0

//! How many clusters a mesh may have.

/// Bits of ids of the global scope.
const BITS: u32 = 24;

/// How many clusters a mesh may have: all clusters of a mesh agree on it, and it never changes. It decides which of the 24
/// bits of an identity are the id of its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MaxConnectedClusters {
    /// 255, of 65,536 identities each.
    #[default]
    Max255,
    /// 511, of 32,768 identities each.
    Max511,
}

/// A number of clusters is not supported: fix `max-connected-clusters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported number of clusters {0}: it must be 255 or 511")]
pub struct UnsupportedMax(pub u32);

impl MaxConnectedClusters {
    /// The number, which is also the largest cluster id.
    pub const fn get(self) -> u32 {
        match self {
            Self::Max255 => 255,
            Self::Max511 => 511,
        }
    }

    /// How many bits of an identity are below the cluster id.
    pub const fn identity_bits(self) -> u32 {
        BITS - self.get().count_ones()
    }
}

impl TryFrom<u32> for MaxConnectedClusters {
    type Error = UnsupportedMax;

    fn try_from(max: u32) -> Result<Self, UnsupportedMax> {
        match max {
            255 => Ok(Self::Max255),
            511 => Ok(Self::Max511),
            other => Err(UnsupportedMax(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_numbers_of_clusters_are_unsupported() {
        let error = MaxConnectedClusters::try_from(300).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unsupported number of clusters 300: it must be 255 or 511"
        );
    }
}
