// SPDX-License-Identifier: Apache-2.0

//! Checks defaults of settings of common types when they are compiled. Those of other types are checked by the plan.
//! The forms are those that `hive::config::ConfigValue` reads.

use syn::Type;

/// Says what is wrong with a default, if the type is known here.
pub(crate) fn check(ty: &Type, text: &str) -> Result<(), String> {
    let Type::Path(path) = ty else { return Ok(()) };
    let Some(last) = path.path.segments.last() else {
        return Ok(());
    };
    let name = last.ident.to_string();
    let good = match name.as_str() {
        "bool" => is_bool(text),
        "Duration" => skep_duration::parse_duration(text).is_ok(),
        "f32" | "f64" => text.parse::<f64>().is_ok(),
        "IpAddr" => text.trim().parse::<std::net::IpAddr>().is_ok(),
        "Ipv4Addr" => text.trim().parse::<std::net::Ipv4Addr>().is_ok(),
        "Ipv6Addr" => text.trim().parse::<std::net::Ipv6Addr>().is_ok(),
        "SocketAddr" => text.trim().parse::<std::net::SocketAddr>().is_ok(),
        _ => match range(&name) {
            Some((min, max)) => whole_number(text).is_some_and(|number| (min..=max).contains(&number)),
            None => true,
        },
    };
    if good {
        Ok(())
    } else {
        Err(format!("`{text}` cannot be the default of a `{name}`"))
    }
}

fn is_bool(text: &str) -> bool {
    matches!(
        text,
        "1" | "t" | "T" | "true" | "TRUE" | "True" | "0" | "f" | "F" | "false" | "FALSE" | "False"
    )
}

/// The values of an integer type; 64 bits where the machine decides.
fn range(name: &str) -> Option<(i128, i128)> {
    Some(match name {
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "i8" => (i8::MIN.into(), i8::MAX.into()),
        "i16" => (i16::MIN.into(), i16::MAX.into()),
        "i32" => (i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => (i64::MIN.into(), i64::MAX.into()),
        "NonZeroU8" => (1, u8::MAX.into()),
        "NonZeroU16" => (1, u16::MAX.into()),
        "NonZeroU32" => (1, u32::MAX.into()),
        "NonZeroU64" | "NonZeroUsize" => (1, u64::MAX.into()),
        _ => return None,
    })
}

fn whole_number(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    let digits = digits.replace('_', "");
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    i128::from_str_radix(&digits, radix)
        .ok()
        .map(|number| sign * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_good(ty: &str, text: &str) -> bool {
        check(&syn::parse_str(ty).expect("a type"), text).is_ok()
    }

    #[test]
    fn accepts_what_users_may_write() {
        for (ty, text) in [
            ("u16", "65535"),
            ("std::num::NonZeroU16", "1"),
            ("i8", "-0x80"),
            ("u32", "0o600"),
            ("u32", "0600"),
            ("u64", "1_000"),
            ("std::time::Duration", "1h2m3.5s"),
            ("Duration", "0"),
            ("Duration", "300µs"),
            ("bool", "t"),
            ("f64", "0.0025"),
            ("IpAddr", "::1"),
            ("SocketAddr", "127.0.0.1:80"),
            ("String", "anything"),
            ("Option<Duration>", "unknown here"),
            ("Mode", "unknown here"),
        ] {
            assert!(is_good(ty, text), "{ty} {text}");
        }
    }

    #[test]
    fn refuses_what_cannot_be_parsed() {
        for (ty, text) in [
            ("u16", "65536"),
            ("u8", "-1"),
            ("NonZeroU16", "0"),
            ("u32", ""),
            ("u32", "0x"),
            ("u32", "many"),
            ("u32", "08"),
            ("Duration", "5"),
            ("Duration", "5 minutes"),
            ("Duration", ""),
            ("Duration", "s"),
            ("Duration", "-1s"),
            ("bool", "on"),
            ("f32", "much"),
            ("IpAddr", "10.0.0.256"),
            ("SocketAddr", "localhost:80"),
        ] {
            assert!(!is_good(ty, text), "{ty} {text}");
        }
    }
}
