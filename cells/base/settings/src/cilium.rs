// SPDX-License-Identifier: Apache-2.0

//! Settings of Cilium's programs that have no effect here.
//!
//! A ConfigMap written for Cilium mounts unchanged: it holds keys of the operator, of the proxy, and of features that
//! Skep lacks. They are accepted and named in one line of the log. Every other unknown key is an error, since it is most
//! likely misspelt.

/// Names of Cilium's settings that have no effect here, sorted.
pub fn cilium_keys() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("cilium_keys.txt").lines();
    lines.filter(|line| !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(cilium_keys().is_sorted_by(|a, b| a < b));
        assert!(cilium_keys().any(|key| key == "enable-lb-ipam"));
    }
}
