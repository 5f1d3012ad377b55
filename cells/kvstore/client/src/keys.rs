// SPDX-License-Identifier: Apache-2.0

//! The layout of the key space that is shared with Cilium.

pub const BASE: &str = "cilium";
/// State that a cluster publishes about itself.
pub const STATE: &str = "cilium/state";
/// Copies of the state of remote clusters.
pub const CACHE: &str = "cilium/cache";
/// Configurations of clusters, one key a cluster.
pub const CLUSTER_CONFIG: &str = "cilium/cluster-config";
/// Canaries: which prefixes of a cluster are complete.
pub const SYNCED: &str = "cilium/synced";
/// Rewritten every minute by one writer; readers conclude from it that the store still makes progress.
pub const HEARTBEAT: &str = "cilium/.heartbeat";
/// Locks that are taken and released to find out whether the store has a quorum.
pub const INIT_LOCK: &str = "cilium/.initlock";

/// Joins parts of a key by `/`. Runs of `/` collapse and the last one is cut, as Cilium does; nothing is escaped.
///
/// ```
/// use skep_kvstore_client::keys;
///
/// assert_eq!(keys::join(["cilium/state/", "/nodes", "v1"]), "cilium/state/nodes/v1");
/// ```
pub fn join<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut key = String::new();
    for part in parts {
        // A leading slash of the first part stays, as one.
        if key.is_empty() && part.starts_with('/') {
            key.push('/');
        }
        for element in part.split('/').filter(|element| !element.is_empty()) {
            if !key.is_empty() && !key.ends_with('/') {
                key.push('/');
            }
            key.push_str(element);
        }
    }
    key
}

/// The prefix that matches what is below a key, and not its siblings: `cilium/state/nodes/v1/alder/` does not match
/// `alder-2`.
pub fn below(key: &str) -> String {
    let mut prefix = key.trim_end_matches('/').to_owned();
    prefix.push('/');
    prefix
}

/// The cached form of a state prefix: `cilium/state/nodes/v1` becomes `cilium/cache/nodes/v1`.
pub fn cached(prefix: &str) -> String {
    prefix.replacen(STATE, CACHE, 1)
}

/// The label `scope` that metrics have for a key: `services/v1` for keys of the state and of its copies, else the
/// first 12 characters.
///
/// ```
/// use skep_kvstore_client::keys;
///
/// assert_eq!(keys::scope("cilium/state/services/v1/alder/shop/cart"), "services/v1");
/// assert_eq!(keys::scope("cilium/.heartbeat"), "cilium/.hear");
/// ```
pub fn scope(key: &str) -> &str {
    if let Some(range) = positional_scope(key) {
        return &key[range];
    }
    match key.char_indices().nth(12) {
        Some((end, _)) => &key[..end],
        None => key,
    }
}

/// Elements 3 and 4 of `cilium/<a>/<x>/<v>/…`, by position alone as in Cilium: canaries have `<cluster>/cilium`.
fn positional_scope(key: &str) -> Option<std::ops::Range<usize>> {
    let rest = key.strip_prefix(BASE)?.strip_prefix('/')?;
    let mut slashes = rest.match_indices('/').map(|(at, _)| at);
    let start = slashes.next()? + 1;
    let _middle = slashes.next()?;
    let end = slashes.next()?;
    let offset = key.len() - rest.len();
    Some(offset + start..offset + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_like_a_path() {
        assert_eq!(join(["a", "b"]), "a/b");
        assert_eq!(join(["a//b/", "", "/c/"]), "a/b/c");
        assert_eq!(join(["/", "a"]), "/a");
        assert_eq!(join([]), "");
        assert_eq!(join(["a", "..", "."]), "a/../.", "nothing is resolved");
    }

    #[test]
    fn prefixes_end_in_one_slash() {
        assert_eq!(below("cilium/state"), "cilium/state/");
        assert_eq!(below("cilium/state/"), "cilium/state/");
    }

    #[test]
    fn caches_replace_the_first_state() {
        assert_eq!(cached("cilium/state/ip/v1"), "cilium/cache/ip/v1");
        assert_eq!(cached("cilium/synced"), "cilium/synced");
    }

    #[test]
    fn scopes_are_the_kind_or_the_beginning() {
        assert_eq!(scope("cilium/state/identities/v1/id/7"), "identities/v1");
        assert_eq!(scope("cilium/cache/nodes/v1/alder/n1"), "nodes/v1");
        assert_eq!(scope("cilium/state/nodes/v1/"), "nodes/v1");
        assert_eq!(scope("cilium/cluster-config/alder"), "cilium/clust");
        assert_eq!(scope("cilium/.initlock/12/34"), "cilium/.init");
        assert_eq!(scope("cilium/synced/alder/cilium/state/nodes/v1"), "alder/cilium");
        assert_eq!(scope("äöü"), "äöü");
    }
}
