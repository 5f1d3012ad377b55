// SPDX-License-Identifier: Apache-2.0

//! Numbers as Go prints them.

/// Prefixes of units, from large to small, with the smallest number each is for.
const PREFIXES: [(f64, &str); 9] = [
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
    (1e-12, "p"),
];

/// Go's `%.4g` with a prefix of the unit; `s` behind it if `name` ends in `seconds`.
pub(crate) fn with_prefix(name: &str, value: f64) -> String {
    let unit = if name.ends_with("seconds") { "s" } else { "" };
    let (scale, prefix) = scale_of(value);
    format!("{}{prefix}{unit}", general(value / scale, 4))
}

/// The prefix of the unit for a value, and what the value is divided by; none for 0 and what is not finite.
pub(crate) fn scale_of(value: f64) -> (f64, &'static str) {
    let size = value.abs();
    if size == 0.0 || !size.is_finite() {
        return (1.0, "");
    }
    PREFIXES
        .into_iter()
        .find(|(scale, _)| size >= *scale)
        .unwrap_or(PREFIXES[8])
}

/// Go's `%.<digits>g`: so many significant digits, no trailing zeros, an exponent for very large and small numbers.
pub(crate) fn general(value: f64, digits: usize) -> String {
    if let Some(text) = not_finite(value) {
        return text;
    }
    let scientific = format!("{value:.*e}", digits.saturating_sub(1));
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= digits as i32 {
        return with_exponent(trim_zeros(mantissa), exponent);
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    trim_zeros(&format!("{value:.decimals$}")).to_owned()
}

/// The shortest text that is read back as the same number, as Prometheus writes it.
pub(crate) fn shortest(value: f64) -> String {
    if let Some(text) = not_finite(value) {
        return text;
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..21).contains(&exponent) {
        with_exponent(mantissa, exponent)
    } else {
        value.to_string()
    }
}

fn not_finite(value: f64) -> Option<String> {
    let text = if value.is_nan() {
        "NaN"
    } else if value == f64::INFINITY {
        "+Inf"
    } else if value == f64::NEG_INFINITY {
        "-Inf"
    } else {
        return None;
    };
    Some(text.to_owned())
}

fn with_exponent(mantissa: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_and_a_prefix() {
        for (value, text) in [
            (0.0, "0s"),
            (0.01, "10ms"),
            (0.9, "900ms"),
            (1.0, "1s"),
            (1234.5, "1.234ks"),
            (1.5e-6, "1.5µs"),
            (2.0e-9, "2ns"),
            (3.0e12, "3Ts"),
            (-0.5, "-500ms"),
            (1e-14, "0.01ps"),
        ] {
            assert_eq!(with_prefix("x_seconds", value), text);
        }
        assert_eq!(with_prefix("x", 12_345_678.0), "12.35M");
    }

    #[test]
    fn general_form_is_that_of_go() {
        for (value, text) in [
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (123_456.0, "1.235e+05"),
            (9999.5, "1e+04"),
            (1.25, "1.25"),
        ] {
            assert_eq!(general(value, 4), text);
        }
        assert_eq!(shortest(1e21), "1e+21");
        assert_eq!(shortest(0.1), "0.1");
        assert_eq!(shortest(f64::INFINITY), "+Inf");
    }
}
