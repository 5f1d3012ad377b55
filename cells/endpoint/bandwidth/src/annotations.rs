// SPDX-License-Identifier: Apache-2.0

//! Values of annotations: quantities of Kubernetes, and priorities.

/// An annotation that is no rate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(crate) enum AnnotationError {
    #[error("`{0}` is not a quantity such as 10M")]
    Quantity(String),
    #[error("`{0}` is not a priority: besteffort, burstable, guaranteed, or a number")]
    Priority(String),
}

/// Priority of packets of guaranteed pods, and of the node.
pub(crate) const GUARANTEED: u32 = 6;

/// Bits a second.
pub(crate) fn bits(text: &str) -> Result<u64, AnnotationError> {
    quantity(text).ok_or_else(|| AnnotationError::Quantity(text.to_owned()))
}

/// Priority of packets.
pub(crate) fn priority(text: &str) -> Result<u32, AnnotationError> {
    let word = text.trim().to_lowercase().replace('-', "");
    match word.as_str() {
        "besteffort" => Ok(5),
        "burstable" => Ok(8),
        "guaranteed" => Ok(GUARANTEED),
        number => number
            .parse()
            .ok()
            // It is stored plus one.
            .filter(|number| *number < u32::MAX)
            .ok_or_else(|| AnnotationError::Priority(text.to_owned())),
    }
}

/// The integer that a quantity of Kubernetes is, rounded up.
fn quantity(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.len() > 20 || fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (binary, decimal): (u32, i32) = match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        exponent => (0, exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let scaled = digits.checked_mul(1 << binary)?;
    let exponent = decimal.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    let value = match exponent {
        0.. => scaled.checked_mul(power?)?,
        // Less than one is one.
        _ => power.map_or(u128::from(scaled > 0), |power| scaled.div_ceil(power)),
    };
    u64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_quantities() {
        for (text, expected) in [
            ("10M", 10_000_000),
            ("1Gi", 1_073_741_824),
            ("1.5k", 1500),
            ("0.1Ki", 103),
            ("1e6", 1_000_000),
            ("12E2", 1200),
            ("250m", 1),
            ("1e-9", 1),
            ("1e-99", 1),
            ("0", 0),
            ("+5", 5),
            ("1E", 1_000_000_000_000_000_000),
        ] {
            assert_eq!(bits(text), Ok(expected), "{text}");
        }
        for text in ["", "-1", "10Mb", "fast", "1.2.3", ".", "20E", "1e400", "k"] {
            let expected = AnnotationError::Quantity(text.to_owned());
            assert_eq!(bits(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn priorities_have_names_and_numbers() {
        let found = ["Best-Effort", "burstable", "GUARANTEED", "0", "17"].map(priority);
        assert_eq!(found, [Ok(5), Ok(8), Ok(6), Ok(0), Ok(17)]);
        assert!(priority("high").is_err() && priority("4294967295").is_err());
    }
}
