// SPDX-License-Identifier: Apache-2.0

//! Formats of texts.

use std::net::{IpAddr, Ipv6Addr};

use base64::Engine;

/// Whether a text has a format. Formats that are not known here are not checked; nor does an API server know all.
pub(super) fn has_format(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.contains('.') && address(text).is_some(),
        "ipv6" => text.contains(':') && address(text).is_some(),
        "cidr" => network(text),
        "mac" => mac(text),
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "uuid" | "uuid3" | "uuid4" | "uuid5" => uuid::Uuid::parse_str(text).is_ok(),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        _ => true,
    }
}

/// Reads an address as Go once did: numbers of IPv4 may have zeros in front.
fn address(text: &str) -> Option<IpAddr> {
    if let Some((before, last)) = text.rsplit_once(':') {
        let text = match octets(last) {
            Some(octets) => format!("{before}:{}", std::net::Ipv4Addr::from(octets)),
            None => text.to_owned(),
        };
        return text.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    octets(text).map(IpAddr::from)
}

fn octets(text: &str) -> Option<[u8; 4]> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
    }
    parts.next().is_none().then_some(octets)
}

fn network(text: &str) -> bool {
    let Some((start, length)) = text.split_once('/') else {
        return false;
    };
    let most = match address(start) {
        Some(IpAddr::V4(_)) => 32,
        Some(IpAddr::V6(_)) => 128,
        None => return false,
    };
    length.bytes().all(|byte| byte.is_ascii_digit())
        && length.parse::<u16>().is_ok_and(|length| length <= most)
}

fn mac(text: &str) -> bool {
    let separator = if text.contains('-') { '-' } else { ':' };
    let parts: Vec<&str> = text.split(separator).collect();
    matches!(parts.len(), 6 | 8 | 20)
        && parts
            .iter()
            .all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_texts() {
        for (format, good, bad) in [
            (
                "cidr",
                &[
                    "10.0.0.0/8",
                    "10.1.2.3/8",
                    "010.0.0.0/8",
                    "fd00::/8",
                    "::ffff:1.2.3.4/96",
                ][..],
                &[
                    "10.0.0.1",
                    "10.0.0.0/33",
                    "fd00::/129",
                    "a/8",
                    "10.0.0/8",
                    "1.2.3.4/-1",
                    "1.2.3.4/",
                ][..],
            ),
            (
                "ipv4",
                &["10.0.0.1", "010.0.0.1"],
                &["fd00::1", "10.0.0", "10.0.0.256", "10.0.0.1.1", ""],
            ),
            ("ipv6", &["fd00::1", "::"], &["10.0.0.1", "fd00::1::2"]),
            (
                "mac",
                &["00:11:22:aa:BB:cc", "00-11-22-aa-bb-cc"],
                &["00:11:22", "0:1:2:3:4:5"],
            ),
            (
                "date-time",
                &["2026-11-22T10:00:00Z", "2026-11-22T10:00:00.5+01:00"],
                &["2026-11-22", "now"],
            ),
            ("date", &["2026-11-22"], &["2026-13-01"]),
            ("byte", &["aGk=", ""], &["?"]),
            ("idn-hostname", &["any text"], &[]),
        ] {
            for text in good {
                assert!(has_format(format, text), "{format} {text:?}");
            }
            for text in bad {
                assert!(!has_format(format, text), "{format} {text:?}");
            }
        }
    }
}
