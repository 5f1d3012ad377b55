// SPDX-License-Identifier: Apache-2.0

//! Times as Go's API writes and reads them.

use jiff::Timestamp;

/// The two types of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// `Time`: written in whole seconds; a fraction is read, and dropped.
    Seconds,
    /// `MicroTime`: read and written with six digits, neither more nor less.
    Micros,
}

impl Precision {
    /// The layout in Go's words, for messages.
    fn layout(self) -> &'static str {
        match self {
            Precision::Seconds => "2006-01-02T15:04:05Z07:00",
            Precision::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// A time in its only form: UTC, with as many digits as its type has.
pub fn text(time: Timestamp, precision: Precision) -> String {
    match precision {
        Precision::Seconds => format!("{time:.0}"),
        Precision::Micros => format!("{time:.6}"),
    }
}

/// Brings a time of a client to its only form; the error is Go's.
pub fn normalize(sent: &str, precision: Precision) -> Result<String, String> {
    match parse(sent, precision) {
        Some(time) => Ok(text(time, precision)),
        None => {
            let layout = precision.layout();
            Err(format!(
                "parsing time {sent:?} as {layout:?}: cannot parse {sent:?} as {layout:?}"
            ))
        }
    }
}

/// Reads RFC 3339 as Go does, which takes less than other parsers.
fn parse(sent: &str, precision: Precision) -> Option<Timestamp> {
    let (whole, rest) = sent.split_at_checked("2006-01-02T15:04:05".len())?;
    let has_form = |text: &str, form: &str| {
        let mut pairs = text.bytes().zip(form.bytes());
        let fits = |(found, wanted): (u8, u8)| match wanted {
            b'0' => found.is_ascii_digit(),
            other => found == other,
        };
        text.len() == form.len() && pairs.all(fits)
    };
    // A leap second is no time in Go.
    if !has_form(whole, "0000-00-00T00:00:00") || whole.ends_with(":60") {
        return None;
    }
    let (digits, zone) = match rest.strip_prefix(['.', ',']) {
        Some(fraction) => {
            let end = fraction.find(|c: char| !c.is_ascii_digit())?;
            fraction.split_at(end)
        }
        None => ("", rest),
    };
    let has_digits = match precision {
        Precision::Seconds => digits.is_empty() == (zone.len() == rest.len()),
        Precision::Micros => digits.len() == 6,
    };
    let has_zone = zone == "Z" || has_form(zone, "+00:00") || has_form(zone, "-00:00");
    if !has_digits || !has_zone {
        return None;
    }
    let nanos = &digits[..digits.len().min(9)];
    let separator = if nanos.is_empty() { "" } else { "." };
    format!("{whole}{separator}{nanos}{zone}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_seconds_in_utc() {
        let read = |text: &str| normalize(text, Precision::Seconds);
        for (sent, stored) in [
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05.999999999Z", "2026-01-02T03:04:05Z"),
            ("1969-12-31T23:59:58.5Z", "1969-12-31T23:59:58Z"),
            ("2026-01-02T03:04:05+02:00", "2026-01-02T01:04:05Z"),
            ("2026-01-02T03:04:05,5-01:30", "2026-01-02T04:34:05Z"),
        ] {
            assert_eq!(read(sent).as_deref(), Ok(stored), "{sent}");
        }
        for bad in [
            "",
            "2026-01-02",
            "2026-01-02T03:04Z",
            "2026-01-02 03:04:05Z",
            "2026-01-02t03:04:05z",
            "2026-01-02T03:04:05",
            "2026-01-02T03:04:05.Z",
            "2026-01-02T03:04:60Z",
            "2026-13-02T03:04:05Z",
            "2026-01-02T03:04:05Z[UTC]",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn micro_times_have_six_digits() {
        let read = |text: &str| normalize(text, Precision::Micros);
        for (sent, stored) in [
            ("2026-01-02T03:04:05.830800Z", "2026-01-02T03:04:05.830800Z"),
            ("2026-01-02T03:04:05.000000+02:00", "2026-01-02T01:04:05.000000Z"),
        ] {
            assert_eq!(read(sent).as_deref(), Ok(stored));
        }
        for bad in [
            "2026-01-02T03:04:05Z",
            "2026-01-02T03:04:05.8308Z",
            "2026-01-02T03:04:05.830800123Z",
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.starts_with(&format!("parsing time {bad:?}")), "{error}");
        }
    }
}
