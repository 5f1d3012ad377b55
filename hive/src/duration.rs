// SPDX-License-Identifier: Apache-2.0

//! Durations as operators of Kubernetes write them: `1h2m3.5s`.

use std::time::Duration;

/// Prints a duration in Go's form.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(hive::format_duration(Duration::from_secs(90)), "1m30s");
/// assert_eq!(hive::format_duration(Duration::from_micros(1500)), "1.5ms");
/// assert_eq!(hive::format_duration(Duration::ZERO), "0s");
/// ```
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".into();
    }
    if nanos < 1_000_000_000 {
        let (unit, size) = match nanos {
            0..1_000 => ("ns", 1),
            1_000..1_000_000 => ("µs", 1_000),
            _ => ("ms", 1_000_000),
        };
        return format!("{}{unit}", decimal(nanos, size));
    }
    let seconds = duration.as_secs();
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let seconds = decimal(nanos - u128::from(seconds / 60) * 60_000_000_000, 1_000_000_000);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `value / unit` with as many decimals as it has.
fn decimal(value: u128, unit: u128) -> String {
    let fraction = value % unit;
    if fraction == 0 {
        return (value / unit).to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{}.{}", value / unit, digits.trim_end_matches('0'))
}

/// Reads a duration in Go's form: numbers with units `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`; `0` needs none.
///
/// # Errors
///
/// Text that says what is expected.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(hive::parse_duration("1h2m3s"), Ok(Duration::from_secs(3723)));
/// assert_eq!(hive::parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
/// assert!(hive::parse_duration("5").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("`{text}` is not a duration such as 300ms, 5s, 1h30m");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.starts_with('-') {
        return Err(format!(
            "`{text}` is negative; a duration such as 300ms, 5s, 1h30m is expected"
        ));
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(bad)?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let size: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(bad()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return Err(bad());
        }
        let whole: u128 = if whole.is_empty() {
            0
        } else {
            whole.parse().map_err(|_| bad())?
        };
        let mut part = whole.checked_mul(size).ok_or_else(bad)?;
        let mut scale = size;
        for digit in fraction.bytes() {
            if !digit.is_ascii_digit() {
                return Err(bad());
            }
            scale /= 10;
            part += u128::from(digit - b'0') * scale;
        }
        nanos = nanos.checked_add(part).ok_or_else(bad)?;
        rest = tail;
    }
    if nanos > i64::MAX as u128 {
        return Err(format!("`{text}` is longer than 292 years"));
    }
    Ok(Duration::from_nanos(nanos as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_survive_a_round_trip() {
        for text in [
            "0s",
            "1ns",
            "1.5µs",
            "300ms",
            "1s",
            "1.25s",
            "5m0s",
            "1m0.5s",
            "1h0m0s",
            "26h3m4.000000005s",
        ] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
    }

    #[test]
    fn bad_durations_are_refused() {
        for text in [
            "",
            "5",
            "s",
            ".",
            ".s",
            "1x",
            "1s2",
            "-1s",
            "1.2.3s",
            "99999999999999h",
            "1 s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
