// SPDX-License-Identifier: Apache-2.0

//! Annotations on services and endpoint slices, and how to read their aliases.

use super::StringMap;

/// Picks the algorithm of one service: `random` or `maglev`.
pub const LB_ALGORITHM: &str = "service.cilium.io/lb-algorithm";
/// Turns source ranges into a deny list: `allow` or `deny`.
pub const SRC_RANGES_POLICY: &str = "service.cilium.io/src-ranges-policy";
/// `none` or `delegate-if-local`.
pub const PROXY_DELEGATION: &str = "service.cilium.io/proxy-delegation";
/// Picks the forwarding mode of one service: `dsr` or `snat`.
pub const FORWARDING_MODE: &str = "service.cilium.io/forwarding-mode";
/// Restricts the kinds of frontends: `ClusterIP`, `NodePort` or `LoadBalancer`.
pub const TYPE: &str = "service.cilium.io/type";
/// Value that the node label of the same name must have.
pub const NODE: &str = "service.cilium.io/node";
/// Label selector that the node must match; wins over [`NODE`].
pub const NODE_SELECTOR: &str = "service.cilium.io/node-selector";
/// `true`: use backends of other clusters, and export ours.
pub const GLOBAL: &str = "service.cilium.io/global";
/// Old name of [`GLOBAL`].
pub const GLOBAL_ALIAS: &str = "io.cilium/global-service";
/// `false`: do not export backends of a global service.
pub const SHARED: &str = "service.cilium.io/shared";
/// Old name of [`SHARED`].
pub const SHARED_ALIAS: &str = "io.cilium/shared-service";
/// Which backends of a global service come first: `local`, `remote` or `none`.
pub const AFFINITY: &str = "service.cilium.io/affinity";
/// Old name of [`AFFINITY`].
pub const AFFINITY_ALIAS: &str = "io.cilium/service-affinity";
/// On an endpoint slice: weight of its backends, 0…65535; 0 puts them into maintenance.
pub const WEIGHT: &str = "service.cilium.io/weight";

/// Which backends of a global service come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServiceAffinity {
    /// All the same.
    #[default]
    None,
    /// Those of this cluster.
    Local,
    /// Those of other clusters.
    Remote,
}

/// Value of an annotation or of its old name.
pub fn get<'a>(annotations: &'a StringMap, name: &str, alias: &str) -> Option<&'a str> {
    annotations.get(name).or_else(|| annotations.get(alias))
}

/// Whether a service uses backends of other clusters.
pub fn is_global(annotations: &StringMap) -> bool {
    get(annotations, GLOBAL, GLOBAL_ALIAS).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Whether a service exports its backends: global, and not annotated otherwise.
pub fn is_shared(annotations: &StringMap) -> bool {
    is_global(annotations)
        && get(annotations, SHARED, SHARED_ALIAS).is_none_or(|value| value.eq_ignore_ascii_case("true"))
}

/// Affinity of a global service, in upper or lower case; none for others and for unknown values.
pub fn affinity(annotations: &StringMap) -> ServiceAffinity {
    if !is_global(annotations) {
        return ServiceAffinity::None;
    }
    let text = get(annotations, AFFINITY, AFFINITY_ALIAS).unwrap_or_default();
    known_affinity(text).unwrap_or_default()
}

/// The value of an affinity annotation that is none.
pub fn unknown_affinity(annotations: &StringMap) -> Option<&str> {
    get(annotations, AFFINITY, AFFINITY_ALIAS).filter(|text| known_affinity(text).is_none())
}

fn known_affinity(text: &str) -> Option<ServiceAffinity> {
    let words = [
        ("", ServiceAffinity::None),
        ("none", ServiceAffinity::None),
        ("local", ServiceAffinity::Local),
        ("remote", ServiceAffinity::Remote),
    ];
    let mut known = words.into_iter();
    known.find_map(|(word, affinity)| text.eq_ignore_ascii_case(word).then_some(affinity))
}
