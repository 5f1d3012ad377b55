// SPDX-License-Identifier: Apache-2.0

//! Texts of numbers in events, as Cilium's tools show them.

use skep_bpf_maps::event::reason;
pub use skep_bpf_maps::event::source_file;

/// Why a packet was dropped, with the extended error if there is one.
pub fn drop_reason(code: u8, extended_error: i8) -> String {
    match (reason::text(code), extended_error) {
        (Some(text), 0) => text.to_owned(),
        (Some(text), error) => format!("{text}, {error}"),
        (None, error) => format!("{code}, {error}"),
    }
}

/// Points that trace events are sent at.
pub mod point {
    /// To a pod of the node.
    pub const TO_ENDPOINT: u8 = 0;
    pub const TO_PROXY: u8 = 1;
    pub const TO_HOST: u8 = 2;
    /// From a pod of the node.
    pub const FROM_ENDPOINT: u8 = 5;
}

const POINTS: [&str; 14] = [
    "to-endpoint",
    "to-proxy",
    "to-host",
    "to-stack",
    "to-overlay",
    "from-endpoint",
    "from-proxy",
    "from-host",
    "from-stack",
    "from-overlay",
    "from-network",
    "to-network",
    "from-crypto",
    "to-crypto",
];

/// The point of a trace event: the number if it has no name.
pub fn observation_point(number: u8) -> String {
    name_or_number(&POINTS, number)
}

const REASONS: [&str; 9] = [
    "new",
    "established",
    "reply",
    "related",
    "reopened",
    "unknown",
    "srv6-encap",
    "srv6-decap",
    "encrypt-overlay",
];

/// What connection tracking says of a traced packet: the number if it has no name.
pub fn trace_reason(number: u8) -> String {
    name_or_number(&REASONS, number)
}

const MATCHES: [&str; 7] = [
    "none",
    "L3-Only",
    "L3-L4",
    "L4-Only",
    "all",
    "L3-Proto",
    "Proto-Only",
];

/// What of a policy matched: the number if it has no name.
pub fn policy_match(number: u8) -> String {
    name_or_number(&MATCHES, number)
}

const AUTH: [&str; 3] = ["disabled", "spire", "test-always-fail"];

/// Kind of authentication: the number if it has no name.
pub fn auth_type(number: u8) -> String {
    name_or_number(&AUTH, number)
}

/// The point of a socket's translation.
pub const fn socket_point(number: u8) -> &'static str {
    match number {
        1 => "pre-xlate-fwd",
        2 => "post-xlate-fwd",
        3 => "pre-xlate-rev",
        4 => "post-xlate-rev",
        _ => "unknown",
    }
}

fn name_or_number(names: &[&str], number: u8) -> String {
    names
        .get(usize::from(number))
        .map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_have_the_text_of_their_reason_and_the_error() {
        assert_eq!(drop_reason(133, 0), "Policy denied");
        assert_eq!(drop_reason(169, 7), "FIB lookup failed, 7");
        assert_eq!(drop_reason(169, -3), "FIB lookup failed, -3");
        assert_eq!(drop_reason(159, 0), "159, 0");
    }

    #[test]
    fn numbers_without_a_name_stay_numbers() {
        assert_eq!(observation_point(13), "to-crypto");
        assert_eq!(observation_point(14), "14");
        assert_eq!(trace_reason(5), "unknown");
        assert_eq!(trace_reason(9), "9");
        assert_eq!(policy_match(6), "Proto-Only");
        assert_eq!(policy_match(7), "7");
        assert_eq!(auth_type(1), "spire");
        assert_eq!(socket_point(9), "unknown");
        assert_eq!(source_file(2), "bpf_lxc.c");
        assert_eq!(source_file(6), "unknown(6)");
    }
}
