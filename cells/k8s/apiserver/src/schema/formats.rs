// SPDX-License-Identifier: Apache-2.0

//! Formats of texts.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine;
use ipnet::IpNet;

/// Whether a text has a format. Formats that are not known here are not checked; nor does an API server know all.
pub(super) fn has_format(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => text.parse::<IpNet>().is_ok(),
        "mac" => mac(text),
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "uuid" | "uuid3" | "uuid4" | "uuid5" => uuid::Uuid::parse_str(text).is_ok(),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        _ => true,
    }
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
    fn checks_texts() {
        for (format, good, bad) in [
            (
                "cidr",
                &["10.1.2.3/8", "fd00::/8"][..],
                &["10.0.0.1", "10.0.0.0/33", "a/8"][..],
            ),
            ("ipv4", &["10.0.0.1"], &["fd00::1", "10.0.0", ""]),
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
