// SPDX-License-Identifier: Apache-2.0

//! IP addresses in requests.

use std::net::IpAddr;

/// Parses an IP address.
///
/// # Errors
///
/// The error in the words of Go's parser, which clients of Cilium's agent show.
pub fn parse_address(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| format!("ParseAddr({text:?}): {}", fault(text)))
}

fn fault(text: &str) -> &'static str {
    let is_v4 = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    if !text.contains('.') || !text.bytes().all(is_v4) {
        return "unable to parse IP";
    }
    let fields: Vec<&str> = text.split('.').collect();
    let is_large = |field: &&str| field.len() > 3 || field.parse::<u16>().is_ok_and(|field| field > 255);
    if fields.iter().any(|field| field.is_empty()) {
        "IPv4 field must have at least one digit"
    } else if fields.iter().any(is_large) {
        "IPv4 field has value >255"
    } else if fields
        .iter()
        .any(|field| field.len() > 1 && field.starts_with('0'))
    {
        "IPv4 field has octet with leading zero"
    } else if fields.len() < 4 {
        "IPv4 address too short"
    } else {
        "IPv4 address too long"
    }
}
