// SPDX-License-Identifier: Apache-2.0

//! Annotations about what is shared beyond those that `skep-loadbalancer-model` reads on services.

/// On a service: mirror its remote backends as endpoint slices.
pub const GLOBAL_SYNC_ENDPOINT_SLICES: &str = "service.cilium.io/global-sync-endpoint-slices";
/// On a namespace: whether what is in it is shared.
pub const GLOBAL_NAMESPACE: &str = "clustermesh.cilium.io/global";

/// Whether the backends of a global service are mirrored, by the value of [`GLOBAL_SYNC_ENDPOINT_SLICES`]. Without it those of
/// headless services are.
pub fn syncs_endpoint_slices(value: Option<&str>, is_headless: bool) -> bool {
    value.map_or(is_headless, is_true)
}

/// Whether what is in a namespace is shared, by the value of [`GLOBAL_NAMESPACE`]. `default` is
/// `clustermesh-default-global-namespace`.
pub fn is_global_namespace(value: Option<&str>, default: bool) -> bool {
    value.map_or(default, is_true)
}

fn is_true(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_decide_before_defaults() {
        for default in [true, false] {
            assert_eq!(syncs_endpoint_slices(None, default), default);
            assert_eq!(is_global_namespace(None, default), default);
            for (value, expected) in [
                ("true", true),
                ("True", true),
                ("false", false),
                ("yes", false),
                ("", false),
            ] {
                assert_eq!(syncs_endpoint_slices(Some(value), default), expected);
                assert_eq!(is_global_namespace(Some(value), default), expected);
            }
        }
    }
}
