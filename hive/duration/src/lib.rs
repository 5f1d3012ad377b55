// SPDX-License-Identifier: Apache-2.0

//! Durations in Go's form (`1h2m3.5s`), as settings and scripts have them, and in the short form for people (`2m27s`).

use std::fmt::Write;
use std::time::Duration;

/// Why a text is not a duration. The texts are those of Go's `time.ParseDuration`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not a number followed by a unit, or too large for 64 bits of nanoseconds.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// A number without a unit; write `5s`, not `5`.
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// A unit other than `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
    /// Less than zero where that makes no sense.
    #[error("negative duration {0:?}")]
    Negative(String),
}

/// A duration in Go's form.
///
/// ```
/// use skep_duration::format_duration;
/// use std::time::Duration;
///
/// assert_eq!(format_duration(Duration::from_millis(90_500)), "1m30.5s");
/// assert_eq!(format_duration(Duration::ZERO), "0s");
/// ```
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    format_duration_nanos(nanos(duration))
}

/// A signed number of nanoseconds in Go's form.
#[must_use]
pub fn format_duration_nanos(nanos: i64) -> String {
    let mut out = String::new();
    if nanos < 0 {
        out.push('-');
    }
    let value = nanos.unsigned_abs();
    match value {
        0 => out.push_str("0s"),
        1..1_000 => push_fraction(&mut out, value, 0, "ns"),
        1_000..1_000_000 => push_fraction(&mut out, value, 3, "µs"),
        1_000_000..1_000_000_000 => push_fraction(&mut out, value, 6, "ms"),
        _ => {
            let seconds = value / 1_000_000_000;
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            if hours > 0 {
                let _ = write!(out, "{hours}h");
            }
            if seconds >= 60 {
                let _ = write!(out, "{minutes}m");
            }
            push_fraction(&mut out, value % 60_000_000_000, 9, "s");
        }
    }
    out
}

/// Writes `value / 10^digits` without trailing zeroes, then the unit.
fn push_fraction(out: &mut String, value: u64, digits: usize, unit: &str) {
    let scale = 10_u64.pow(digits as u32);
    let _ = write!(out, "{}", value / scale);
    let rest = value % scale;
    if rest != 0 {
        let text = format!("{rest:0digits$}");
        out.push('.');
        out.push_str(text.trim_end_matches('0'));
    }
    out.push_str(unit);
}

/// Reads a duration of zero or more in Go's form: numbers with units `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`; `0` needs
/// none.
///
/// # Errors
/// [`DurationError`], which says what is wrong as Go does.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(skep_duration::parse_duration("1h2m3s"), Ok(Duration::from_secs(3723)));
/// assert!(skep_duration::parse_duration("5").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let nanos = parse_duration_nanos(text)?;
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| DurationError::Negative(text.to_owned()))
}

/// Reads a signed duration in Go's form, in nanoseconds.
///
/// # Errors
/// [`DurationError`], but for [`DurationError::Negative`].
pub fn parse_duration_nanos(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number_end = rest
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(invalid());
        }
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let scale: i128 = match unit {
            "" => return Err(DurationError::MissingUnit(text.to_owned())),
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            other => {
                return Err(DurationError::UnknownUnit {
                    unit: other.to_owned(),
                    text: text.to_owned(),
                });
            }
        };
        let whole: i128 = if whole.is_empty() {
            0
        } else {
            whole.parse().map_err(|_| invalid())?
        };
        total = whole
            .checked_mul(scale)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(invalid)?;
        let mut place = scale;
        // 18 digits are more than any unit can show in nanoseconds.
        for digit in fraction.bytes().take(18) {
            place /= 10;
            total += i128::from(digit - b'0') * place;
            if place == 0 {
                break;
            }
        }
        if total > i128::from(i64::MAX) + i128::from(negative) {
            return Err(invalid());
        }
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

/// A duration for people: the more time, the fewer details, as `kubectl` shows ages.
///
/// ```
/// use skep_duration::human_duration;
/// use std::time::Duration;
///
/// assert_eq!(human_duration(Duration::from_secs(147)), "2m27s");
/// assert_eq!(human_duration(Duration::from_secs(3 * 86_400)), "3d");
/// ```
#[must_use]
pub fn human_duration(duration: Duration) -> String {
    human_duration_nanos(nanos(duration))
}

/// [`human_duration`] of a signed number of nanoseconds: times that lie in the future by two seconds or more are
/// `<invalid>`.
#[must_use]
pub fn human_duration_nanos(nanos: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let seconds = nanos / 1_000_000_000;
    if nanos < 0 {
        return if seconds < -1 {
            "<invalid>".to_owned()
        } else {
            "0s".to_owned()
        };
    }
    let with_rest = |whole: i64, unit: char, rest: i64, rest_unit: char| {
        if rest == 0 {
            format!("{whole}{unit}")
        } else {
            format!("{whole}{unit}{rest}{rest_unit}")
        }
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => with_rest(seconds / MINUTE, 'm', seconds % MINUTE, 's'),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => with_rest(seconds / HOUR, 'h', seconds / MINUTE % 60, 'm'),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => with_rest(seconds / DAY, 'd', seconds / HOUR % 24, 'h'),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => with_rest(seconds / YEAR, 'y', seconds / DAY % 365, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// Nanoseconds, at most what 64 bits hold (292 years).
fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn formats_as_go_does() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (SECOND * 60, "1m0s"),
            (SECOND * 245 + 1_000_000, "4m5.001s"),
            (SECOND * 10_800, "3h0m0s"),
            (-SECOND * 90, "-1m30s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(format_duration_nanos(nanos), text);
            assert_eq!(parse_duration_nanos(text), Ok(nanos));
        }
    }

    #[test]
    fn parses_as_go_does() {
        assert_eq!(parse_duration_nanos("1.5h"), Ok(SECOND * 5400));
        assert_eq!(parse_duration_nanos(".5s"), Ok(SECOND / 2));
        assert_eq!(parse_duration_nanos("+5s"), Ok(SECOND * 5));
        assert_eq!(parse_duration_nanos("0"), Ok(0));
        assert_eq!(
            parse_duration_nanos("3000000h").map_err(|e| e.to_string()),
            Err(r#"time: invalid duration "3000000h""#.into())
        );
        assert_eq!(
            parse_duration_nanos("5").map_err(|e| e.to_string()),
            Err(r#"time: missing unit in duration "5""#.into())
        );
        assert_eq!(
            parse_duration_nanos("5d").map_err(|e| e.to_string()),
            Err(r#"time: unknown unit "d" in duration "5d""#.into())
        );
        for bad in [
            "",
            "-",
            ".",
            ".s",
            "s",
            "1..5s",
            "1.2.3s",
            "x5s",
            "1x",
            "1s2",
            "1 s",
            "99999999999999h",
        ] {
            assert!(parse_duration_nanos(bad).is_err(), "{bad}");
        }
        assert!(parse_duration("-5s").is_err());
    }

    #[test]
    fn human_form_loses_detail_with_time() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (147, "2m27s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
            (-1, "0s"),
            (-2, "<invalid>"),
        ] {
            assert_eq!(human_duration_nanos(seconds * SECOND), text, "{seconds}");
        }
        assert_eq!(human_duration_nanos(-1), "0s");
    }
}
