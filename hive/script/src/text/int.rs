// SPDX-License-Identifier: Apache-2.0

//! Whole numbers as Go reads them.

/// Why a text is no whole number. The texts are those of Go's `strconv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IntError {
    /// Not digits of the base.
    #[error("invalid syntax")]
    Syntax,
    /// More than 64 bits hold.
    #[error("value out of range")]
    Range,
}

/// A whole number with the prefixes `0x`, `0o`, `0b` and `0`; single underscores may stand between digits.
///
/// ```
/// use hive_script::text::parse_int;
///
/// assert_eq!(parse_int("0644"), Ok(420));
/// assert_eq!(parse_int("-0x_1f"), Ok(-31));
/// assert_eq!(parse_int("1__0").unwrap_err().to_string(), "invalid syntax");
/// ```
pub fn parse_int(text: &str) -> Result<i64, IntError> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = if let Some(hex) = lower.strip_prefix("0x") {
        (16, hex.strip_prefix('_').unwrap_or(hex))
    } else if let Some(octal) = lower.strip_prefix("0o") {
        (8, octal.strip_prefix('_').unwrap_or(octal))
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (2, binary.strip_prefix('_').unwrap_or(binary))
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, lower[1..].strip_prefix('_').unwrap_or(&lower[1..]))
    } else {
        (10, lower.as_str())
    };
    let is_digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_digit(base));
    if !digits.split('_').all(is_digits) {
        return Err(IntError::Syntax);
    }
    let value = i128::from_str_radix(&digits.replace('_', ""), base).map_err(|_| IntError::Range)?;
    i64::try_from(if negative { -value } else { value }).map_err(|_| IntError::Range)
}
