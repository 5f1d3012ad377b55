// SPDX-License-Identifier: Apache-2.0

//! Reads master keys.

use std::sync::Arc;

use bytes::Bytes;
use skep_identity::{IdentityRange, NumericIdentity};
use skep_kvstore_client::Key;

use crate::layout::IdentityLabels;
use skep_kvstore_store::Decoder;

/// Decodes master keys, the names of which are ids and the values labels.
#[derive(Clone, Debug)]
pub struct IdentityDecoder {
    remote: Option<Remote>,
}

#[derive(Clone, Debug)]
struct Remote {
    cluster: String,
    range: IdentityRange,
}

/// Why a master key is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The key does not end in an id.
    #[error("`{0}` is not an identity")]
    Number(String),

    /// The id belongs to another cluster: two clusters may have the same id.
    #[error("identity {id} is not in the range {range} of cluster `{cluster}`")]
    Range {
        id: NumericIdentity,
        range: IdentityRange,
        cluster: String,
    },

    /// The value is empty, or not UTF-8.
    #[error("identity {0} has no labels")]
    Labels(NumericIdentity),

    /// The labels are those of another cluster, or of none.
    #[error("identity {id} has the cluster label `{found}` instead of `{cluster}`")]
    Cluster {
        id: NumericIdentity,
        cluster: String,
        /// The cluster of the labels; empty if there is no such label.
        found: String,
    },
}

impl IdentityDecoder {
    /// For the own cluster: any id, any labels.
    pub fn own() -> Self {
        Self { remote: None }
    }

    /// For a remote cluster: the id must be in its range, the label for the cluster must be its name.
    pub fn remote(cluster: impl Into<String>, range: IdentityRange) -> Self {
        Self {
            remote: Some(Remote {
                cluster: cluster.into(),
                range,
            }),
        }
    }
}

impl Decoder for IdentityDecoder {
    type Key = NumericIdentity;
    type Value = IdentityLabels;
    type Kept = Arc<IdentityLabels>;
    type Error = IdentityError;

    fn decode(&self, name: &Key, value: &Bytes) -> Result<(NumericIdentity, IdentityLabels), IdentityError> {
        let id: NumericIdentity = name
            .parse()
            .map_err(|_| IdentityError::Number(name.to_string()))?;
        let labels = match std::str::from_utf8(value) {
            Ok(text) if !text.is_empty() => IdentityLabels::from(text),
            Ok(_) | Err(_) => return Err(IdentityError::Labels(id)),
        };
        if let Some(Remote { cluster, range }) = &self.remote {
            if !range.contains(id) {
                return Err(IdentityError::Range {
                    id,
                    range: *range,
                    cluster: cluster.clone(),
                });
            }
            if labels.cluster() != Some(cluster) {
                return Err(IdentityError::Cluster {
                    id,
                    cluster: cluster.clone(),
                    found: labels.cluster().unwrap_or_default().to_owned(),
                });
            }
        }
        Ok((id, labels))
    }
}

#[cfg(test)]
mod tests {
    use skep_identity::MaxConnectedClusters;

    use super::*;
    use skep_kvstore_store::testing::golden_cases;

    fn decode(decoder: &IdentityDecoder, case: &serde_json::Value) -> Result<NumericIdentity, IdentityError> {
        let key = case["key"].as_str().expect("it has a key");
        let (_, name) = key.rsplit_once('/').expect("it has a prefix");
        let value = case["value"].as_str().expect("it has a value").to_owned();
        decoder.decode(&name.into(), &value.into()).map(|(id, _)| id)
    }

    #[test]
    fn identities_of_a_remote_cluster_are_accepted() {
        let range = IdentityRange::of_cluster(7, MaxConnectedClusters::Max255).expect("it is valid");
        let decoder = IdentityDecoder::remote("alder", range);
        let cases = golden_cases("identities");
        let masters: Vec<_> = cases.iter().filter(|case| case["name"] != "slave").collect();
        assert_eq!(masters.len(), 4);

        for case in masters {
            decode(&decoder, case).expect("it is valid");
        }
    }

    #[test]
    fn invalid_identities_are_named() {
        let range = IdentityRange::of_cluster(7, MaxConnectedClusters::Max255).expect("it is valid");
        let decoder = IdentityDecoder::remote("alder", range);

        let errors: Vec<String> = golden_cases("invalid_identities")
            .iter()
            .map(|case| decode(&decoder, case).expect_err("it is invalid").to_string())
            .collect();

        assert_eq!(
            errors,
            [
                "identity 300 is not in the range 458752-524287 of cluster `alder`",
                "identity 459002 has the cluster label `` instead of `alder`",
                "identity 459003 has the cluster label `birch` instead of `alder`",
                "identity 459004 has no labels",
                "`abc` is not an identity",
            ]
        );
    }

    #[test]
    fn the_own_cluster_has_any_labels_and_ids() {
        let decode =
            |name: &str, value| IdentityDecoder::own().decode(&name.into(), &Bytes::from_static(value));

        assert!(decode("300", b"k8s:app=cart;").is_ok());
        assert!(decode("+300", b"k8s:app=cart;").is_err());
        assert!(decode("", b"k8s:app=cart;").is_err());
        assert!(decode("4294967296", b"k8s:app=cart;").is_err());
        assert!(decode("300", b"\xff").is_err());
    }
}
