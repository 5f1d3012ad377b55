// SPDX-License-Identifier: Apache-2.0

//! Names, labels and annotations of what is derived.

use sha2::{Digest, Sha256};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::Str;

/// On the ServiceImport and the derived Service: the name of the latter.
pub(crate) const DERIVED_SERVICE: &str = "multicluster.kubernetes.io/derived-service";
/// On both: IP families that all clusters have.
pub(crate) const SUPPORTED_IP_FAMILIES: &str = "clustermesh.cilium.io/supported-ip-families";
/// On the derived Service: it is shared with other clusters.
pub(crate) const GLOBAL_SERVICE: &str = "service.cilium.io/global";
/// On the derived Service and its slices: the name of the ServiceImport.
pub(crate) const SERVICE_NAME: &str = "multicluster.kubernetes.io/service-name";
/// On slices: the cluster that the endpoints are of.
pub(crate) const SOURCE_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";
/// On copies of slices: the slice that was copied.
pub(crate) const LOCAL_SLICE: &str = "service.cilium.io/local-endpointslice";
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Writes copies of slices of local Services.
pub(crate) const COPIES_MANAGER: &str = "endpointslice-local-mcsapi-controller.cilium.io";
pub(crate) const MIRROR_MANAGER: &str = "endpointslice-mesh-controller.cilium.io";
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";

const LONGEST_LABEL: usize = 63;

fn hash(text: &str) -> String {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let digest = Sha256::digest(text.as_bytes());
    // Ten digits of five bits: the first fifty bits.
    let bits = digest[..8]
        .iter()
        .fold(0_u64, |bits, byte| (bits << 8) | u64::from(*byte));
    let digit = |at: u32| char::from(DIGITS[(bits >> (59 - 5 * at)) as usize & 31]);
    (0..10).map(digit).collect()
}

/// Name of the Service that is derived of a ServiceImport; the same in all clusters.
pub(crate) fn derived(key: &ObjectKey) -> Str {
    Str::new(format!(
        "derived-{}",
        hash(&format!("{}/{}", key.namespace, key.name))
    ))
}

/// Name of the copy of a slice, without a look at other slices.
pub(crate) fn copy(key: &ObjectKey, slice: &str) -> String {
    let derived = derived(key);
    match slice.strip_prefix(key.name.as_str()) {
        Some(suffix) if suffix.starts_with('-') => format!("{derived}{suffix}"),
        _ => format!("{derived}-{}", shortened(slice, 200)),
    }
}

/// Name of the copy of a slice whose name is taken.
pub(crate) fn other_copy(key: &ObjectKey, slice: &str) -> String {
    format!("{}-{}", derived(key), hash(slice))
}

/// A name as the value of a label.
pub(crate) fn label_value(name: &str) -> String {
    shortened(name, LONGEST_LABEL)
}

/// A name of at most so many bytes.
fn shortened(name: &str, longest: usize) -> String {
    if name.len() <= longest {
        return name.to_owned();
    }
    let end = (0..=longest - 11)
        .rev()
        .find(|end| name.is_char_boundary(*end))
        .unwrap_or_default();
    format!("{}-{}", &name[..end], hash(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            namespace: Str::new("shop"),
            name: Str::new(name),
        }
    }

    #[test]
    fn derived_names_are_those_of_other_clusters() {
        assert_eq!(derived(&key("cart")), "derived-bsqa4s8pq5");
    }

    #[test]
    fn copies_have_the_suffix_of_the_slice() {
        assert_eq!(copy(&key("cart"), "cart-x7k2p"), "derived-bsqa4s8pq5-x7k2p");
        assert_eq!(copy(&key("cart"), "own"), "derived-bsqa4s8pq5-own");
        assert_eq!(copy(&key("cart"), "cartoon-1"), "derived-bsqa4s8pq5-cartoon-1");
        assert!(copy(&key("cart"), &"long".repeat(60)).len() < 253);
        assert_ne!(other_copy(&key("cart"), "a"), other_copy(&key("cart"), "b"));
    }

    #[test]
    fn long_names_are_still_labels() {
        assert_eq!(label_value("cart-x7k2p"), "cart-x7k2p");
        let (a, b) = (label_value(&"a".repeat(64)), label_value(&"a".repeat(65)));
        assert_eq!((a.len(), b.len()), (63, 63));
        assert_ne!(a, b);
    }
}
