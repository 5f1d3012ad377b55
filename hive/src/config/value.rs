// SPDX-License-Identifier: Apache-2.0

//! Types that a setting can have.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::{NonZeroU8, NonZeroU16, NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use skep_duration::{DurationError, format_duration, parse_duration};

/// A value as it came from a source, before its type is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Raw {
    /// Flags, environment, files of a directory, scalars of a file.
    Text(String),
    /// A list of a file.
    List(Vec<Raw>),
    /// A map of a file.
    Map(Vec<(String, Raw)>),
}

impl Raw {
    /// As one line, for messages.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::List(items) => items.iter().map(Self::to_text).collect::<Vec<_>>().join(","),
            Self::Map(items) => items
                .iter()
                .map(|(key, value)| format!("{key}={}", value.to_text()))
                .collect::<Vec<_>>()
                .join(","),
        }
    }
}

/// A type that a field of a [`Config`](crate::Config) struct can have.
///
/// For types with [`FromStr`](std::str::FromStr) and [`Display`](std::fmt::Display) use
/// [`config_value!`](crate::config_value).
///
/// ```
/// use hive::config::ConfigValue;
/// assert_eq!(Vec::<u16>::parse("80, 443"), Ok(vec![80, 443]));
/// assert_eq!(bool::parse("true"), Ok(true));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the value of a setting",
    label = "hive does not know how to read this from a flag",
    note = "use `hive::config_value!({Self})` if it has `FromStr` and `Display`, or implement `ConfigValue`"
)]
pub trait ConfigValue: Sized {
    /// Shown in help and errors: `duration`.
    const KIND: &'static str;
    /// Whether the flag may stand without a value.
    const IS_BOOL: bool = false;
    /// Whether repeated flags add up.
    const IS_MANY: bool = false;

    /// Reads the text of a flag, variable or file.
    ///
    /// # Errors
    ///
    /// A sentence part that names the text and the accepted form.
    fn parse(text: &str) -> Result<Self, String>;

    /// As a user would write it.
    fn render(&self) -> String;

    /// Reads a value of a structured file.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    fn from_raw(raw: &Raw) -> Result<Self, String> {
        match raw {
            Raw::Text(text) => Self::parse(text),
            Raw::List(_) => Err(format!("expected {}, found a list", Self::KIND)),
            Raw::Map(_) => Err(format!("expected {}, found a map", Self::KIND)),
        }
    }
}

/// Makes a type with `FromStr` and `Display` usable in [`Config`](crate::Config) structs.
///
/// ```
/// #[derive(Clone, Default, PartialEq, Debug)]
/// enum Mode { #[default] Tunnel, Native }
///
/// impl std::str::FromStr for Mode {
///     type Err = String;
///     fn from_str(text: &str) -> Result<Self, String> {
///         match text {
///             "tunnel" => Ok(Mode::Tunnel),
///             "native" => Ok(Mode::Native),
///             _ => Err(format!("`{text}` is neither tunnel nor native")),
///         }
///     }
/// }
///
/// impl std::fmt::Display for Mode {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         f.write_str(match self { Mode::Tunnel => "tunnel", Mode::Native => "native" })
///     }
/// }
///
/// hive::config_value!(Mode, "tunnel|native");
///
/// /// Routing.
/// #[derive(Clone, hive::Config)]
/// struct Routing {
///     /// How packets reach other nodes.
///     #[config(default = "native")]
///     routing_mode: Mode,
/// }
/// # assert_eq!(<Routing as hive::Config>::defaults().unwrap().routing_mode, Mode::Native);
/// ```
#[macro_export]
macro_rules! config_value {
    ($type:ty) => {
        $crate::config_value!($type, "value");
    };
    ($type:ty, $kind:literal) => {
        impl $crate::config::ConfigValue for $type {
            const KIND: &'static str = $kind;

            fn parse(text: &str) -> ::core::result::Result<Self, ::std::string::String> {
                <$type as ::core::str::FromStr>::from_str(text).map_err(|error| ::std::format!("{error}"))
            }

            fn render(&self) -> ::std::string::String {
                ::std::string::ToString::to_string(self)
            }
        }
    };
}

impl ConfigValue for bool {
    const KIND: &'static str = "bool";
    const IS_BOOL: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            _ => Err(format!("`{text}` is neither true nor false")),
        }
    }

    fn render(&self) -> String {
        self.to_string()
    }
}

/// Reads a whole number as Go does: `0x`, `0o` and `0b` prefixes, a leading zero for octal, underscores between
/// digits.
fn whole_number(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits, prefixed) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..], true),
        Some("0o" | "0O") => (8, &digits[2..], true),
        Some("0b" | "0B") => (2, &digits[2..], true),
        Some(_) if digits.starts_with('0') => (8, &digits[1..], true),
        _ => (10, digits, false),
    };
    let plain = digits.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let misplaced = digits.ends_with('_') || digits.contains("__") || (digits.starts_with('_') && !prefixed);
    if !plain || misplaced {
        return None;
    }
    i128::from_str_radix(&digits.replace('_', ""), radix)
        .ok()
        .map(|number| sign * number)
}

fn no_whole_number(text: &str, least: impl std::fmt::Display, most: impl std::fmt::Display) -> String {
    let digits = text.trim_start_matches(['+', '-']);
    let octal = digits.len() > 1 && digits.starts_with('0') && digits.chars().all(|c| c.is_ascii_digit());
    let hint = if octal {
        " (a leading zero means octal)"
    } else {
        ""
    };
    format!("`{text}` is not a whole number from {least} to {most}{hint}")
}

macro_rules! integers {
    ($($type:ty, $kind:literal;)*) => {$(
        impl ConfigValue for $type {
            const KIND: &'static str = $kind;

            fn parse(text: &str) -> Result<Self, String> {
                whole_number(text)
                    .and_then(|number| Self::try_from(number).ok())
                    .ok_or_else(|| no_whole_number(text, Self::MIN, Self::MAX))
            }

            fn render(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

integers! {
    u8, "uint"; u16, "uint"; u32, "uint"; u64, "uint"; usize, "uint";
    i8, "int"; i16, "int"; i32, "int"; i64, "int"; isize, "int";
}

macro_rules! nonzero_integers {
    ($($type:ty, $inner:ty;)*) => {$(
        impl ConfigValue for $type {
            const KIND: &'static str = "uint";

            fn parse(text: &str) -> Result<Self, String> {
                whole_number(text)
                    .and_then(|number| <$inner>::try_from(number).ok())
                    .and_then(Self::new)
                    .ok_or_else(|| no_whole_number(text, Self::MIN, Self::MAX))
            }

            fn render(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

nonzero_integers! {
    NonZeroU8, u8; NonZeroU16, u16; NonZeroU32, u32; NonZeroU64, u64; NonZeroUsize, usize;
}

impl ConfigValue for f64 {
    const KIND: &'static str = "float";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("`{text}` is not a number"))
    }

    fn render(&self) -> String {
        self.to_string()
    }
}

impl ConfigValue for f32 {
    const KIND: &'static str = "float";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("`{text}` is not a number"))
    }

    fn render(&self) -> String {
        self.to_string()
    }
}

impl ConfigValue for String {
    const KIND: &'static str = "string";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn render(&self) -> String {
        self.clone()
    }
}

impl ConfigValue for Arc<str> {
    const KIND: &'static str = "string";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self::from(text))
    }

    fn render(&self) -> String {
        self.to_string()
    }
}

impl ConfigValue for PathBuf {
    const KIND: &'static str = "path";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self::from(text))
    }

    fn render(&self) -> String {
        self.display().to_string()
    }
}

impl ConfigValue for Duration {
    const KIND: &'static str = "duration";

    fn parse(text: &str) -> Result<Self, String> {
        parse_duration(text).map_err(|error| match error {
            DurationError::Negative(_) => {
                format!("`{text}` is negative; a duration such as 300ms, 5s, 1h30m is expected")
            }
            _ => format!("`{text}` is not a duration such as 300ms, 5s, 1h30m"),
        })
    }

    fn render(&self) -> String {
        format_duration(*self)
    }
}

macro_rules! from_str {
    ($($type:ty, $kind:literal, $form:literal;)*) => {$(
        impl ConfigValue for $type {
            const KIND: &'static str = $kind;

            fn parse(text: &str) -> Result<Self, String> {
                text.trim().parse().map_err(|_| format!("`{text}` is not {}", $form))
            }

            fn render(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

from_str! {
    IpAddr, "ip", "an IP address";
    Ipv4Addr, "ip", "an IPv4 address";
    Ipv6Addr, "ip", "an IPv6 address";
    SocketAddr, "address", "an address with port, such as 127.0.0.1:80 or [::1]:80";
}

from_str! {
    ipnet::IpNet, "cidr", "an IP prefix such as 10.0.0.0/8 or fd00::/64";
    ipnet::Ipv4Net, "cidr", "an IPv4 prefix such as 10.0.0.0/8";
    ipnet::Ipv6Net, "cidr", "an IPv6 prefix such as fd00::/64";
}

/// Empty text is `None`.
impl<T: ConfigValue> ConfigValue for Option<T> {
    const KIND: &'static str = T::KIND;
    const IS_BOOL: bool = T::IS_BOOL;
    const IS_MANY: bool = T::IS_MANY;

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            Ok(None)
        } else {
            T::parse(text).map(Some)
        }
    }

    fn render(&self) -> String {
        self.as_ref().map(ConfigValue::render).unwrap_or_default()
    }

    fn from_raw(raw: &Raw) -> Result<Self, String> {
        match raw {
            Raw::Text(text) => Self::parse(text),
            _ => T::from_raw(raw).map(Some),
        }
    }
}

/// Splits at commas; text without commas at white space. So flags, variables and files agree. What stands in
/// double quotes is kept together.
fn split(text: &str) -> Vec<Cow<'_, str>> {
    let text = text.trim();
    if let Some(parts) = split_quoted(text) {
        return parts.into_iter().map(Cow::Owned).collect();
    }
    if text.contains(',') {
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(Cow::Borrowed)
            .collect()
    } else {
        text.split_whitespace().map(Cow::Borrowed).collect()
    }
}

/// Splits a line of comma-separated values of which some are in double quotes, doubled inside. `None` if none
/// is, or the quotes do not match: then they are ordinary characters.
fn split_quoted(text: &str) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let mut rest = text;
    let mut quoted = false;
    loop {
        let Some(mut inner) = rest.trim_start().strip_prefix('"') else {
            let end = rest.find(',').unwrap_or(rest.len());
            parts.push(rest[..end].trim().to_owned());
            match rest[end..].strip_prefix(',') {
                Some(next) => rest = next,
                None => break,
            }
            continue;
        };
        quoted = true;
        let mut part = String::new();
        let after = loop {
            let end = inner.find('"')?;
            part.push_str(&inner[..end]);
            inner = &inner[end + 1..];
            match inner.strip_prefix('"') {
                Some(next) => {
                    part.push('"');
                    inner = next;
                }
                None => break inner.trim_start(),
            }
        };
        parts.push(part);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() => break,
            None => return None,
        }
    }
    quoted.then_some(parts)
}

fn items<T: ConfigValue>(raw: &Raw) -> Result<Vec<T>, String> {
    match raw {
        Raw::Text(text) => split(text).iter().map(|part| T::parse(part)).collect(),
        Raw::List(list) => list.iter().map(T::from_raw).collect(),
        Raw::Map(_) => Err(format!("expected a list of {}, found a map", T::KIND)),
    }
}

macro_rules! lists {
    ($($type:ident [$($bound:ident),*];)*) => {$(
        /// Commas separate; without commas, white space does.
        impl<T: ConfigValue $(+ $bound)*> ConfigValue for $type<T> {
            const KIND: &'static str = "strings";
            const IS_MANY: bool = true;

            fn parse(text: &str) -> Result<Self, String> {
                split(text).iter().map(|part| T::parse(part)).collect()
            }

            fn render(&self) -> String {
                self.iter().map(ConfigValue::render).collect::<Vec<_>>().join(",")
            }

            fn from_raw(raw: &Raw) -> Result<Self, String> {
                items::<T>(raw).map(|items| items.into_iter().collect())
            }
        }
    )*};
}

lists! {
    Vec [];
    BTreeSet [Ord];
    HashSet [Hash, Eq];
}

/// Reads `k=v,k2=v2`; a comma not followed by `key=` belongs to the value. Also a JSON object of strings.
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    if text.starts_with('{') {
        return crate::json::object_of_strings(text)
            .ok_or_else(|| format!("`{text}` is not a JSON object with strings as values"));
    }
    if let Some(parts) = split_quoted(text) {
        let pair = |part: String| {
            part.split_once('=')
                .map(|(key, value)| (key.trim().to_owned(), value.to_owned()))
        };
        return parts
            .into_iter()
            .map(pair)
            .collect::<Option<_>>()
            .ok_or_else(|| format!("`{text}` is not of the form key=value,key2=value2"));
    }
    let mut pairs: Vec<(String, String)> = Vec::new();
    for part in text.split(',') {
        match (part.split_once('='), pairs.last_mut()) {
            (Some((key, value)), _) => pairs.push((key.trim().to_owned(), value.to_owned())),
            (None, Some((_, value))) => {
                value.push(',');
                value.push_str(part);
            }
            (None, None) => return Err(format!("`{text}` is not of the form key=value,key2=value2")),
        }
    }
    Ok(pairs)
}

macro_rules! maps {
    ($($type:ident [$($bound:ident),*];)*) => {$(
        /// `key=value,key2=value2` or a JSON object; values may contain commas.
        impl<K: ConfigValue $(+ $bound)*, V: ConfigValue> ConfigValue for $type<K, V> {
            const KIND: &'static str = "map";
            const IS_MANY: bool = true;

            fn parse(text: &str) -> Result<Self, String> {
                pairs(text)?.into_iter().map(|(key, value)| Ok((K::parse(&key)?, V::parse(&value)?))).collect()
            }

            fn render(&self) -> String {
                let mut pairs: Vec<String> =
                    self.iter().map(|(key, value)| format!("{}={}", key.render(), value.render())).collect();
                pairs.sort();
                pairs.join(",")
            }

            fn from_raw(raw: &Raw) -> Result<Self, String> {
                match raw {
                    Raw::Text(text) => Self::parse(text),
                    Raw::Map(pairs) => {
                        pairs.iter().map(|(key, value)| Ok((K::parse(key)?, V::from_raw(value)?))).collect()
                    }
                    Raw::List(_) => Err("expected a map, found a list".into()),
                }
            }
        }
    )*};
}

maps! {
    BTreeMap [Ord];
    HashMap [Hash, Eq];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_alike_from_every_source() {
        let expected = vec!["a".to_owned(), "b".to_owned()];
        for text in ["a,b", "a, b", "a b", " a  b ", "a,b,"] {
            assert_eq!(Vec::<String>::parse(text), Ok(expected.clone()), "{text:?}");
        }
        let list = Raw::List(vec![Raw::Text("a".into()), Raw::Text("b".into())]);
        assert_eq!(Vec::<String>::from_raw(&list), Ok(expected));
        assert_eq!(Vec::<String>::parse(""), Ok(vec![]));
        assert_eq!(Vec::<String>::parse("a b,c"), Ok(vec!["a b".into(), "c".into()]));
    }

    #[test]
    fn reads_maps_whose_values_contain_commas() {
        let map = BTreeMap::<String, String>::parse("a=1,2,b=3").unwrap();
        assert_eq!(map["a"], "1,2");
        assert_eq!(map["b"], "3");
        let map = BTreeMap::<String, String>::parse(r#"{"a": "1,2", "b\n": "\u00e9"}"#).unwrap();
        assert_eq!(map["a"], "1,2");
        assert_eq!(map["b\n"], "é");
        assert!(BTreeMap::<String, String>::parse("nonsense").is_err());
    }

    #[test]
    fn reads_numbers_in_every_usual_notation() {
        assert_eq!(u16::parse("0x10"), Ok(16));
        assert_eq!(i32::parse("-0b11"), Ok(-3));
        assert_eq!(u64::parse("1_000"), Ok(1000));
        assert_eq!(
            u8::parse("256"),
            Err("`256` is not a whole number from 0 to 255".into())
        );
        assert_eq!(u32::parse("0600"), Ok(0o600));
        assert_eq!(u32::parse("0x_ff"), Ok(255));
        assert_eq!(u32::parse("0"), Ok(0));
        assert_eq!(
            u8::parse("08"),
            Err("`08` is not a whole number from 0 to 255 (a leading zero means octal)".into())
        );
        assert_eq!(
            NonZeroU16::parse("0"),
            Err("`0` is not a whole number from 1 to 65535".into())
        );
        let bad = [
            "", "-", "--1", "+-1", "0x-1", "0x_-1", "1.5", "é", "0é", "_1", "1_", "1__0", "0x", " 1",
        ];
        for text in bad {
            assert!(i64::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keeps_together_what_is_quoted() {
        let parse = |text| Vec::<String>::parse(text).unwrap();
        assert_eq!(parse(r#""a,b",c"#), ["a,b", "c"]);
        assert_eq!(parse(r#"x, "say ""hi""" "#), ["x", r#"say "hi""#]);
        assert_eq!(
            parse(r#"a"b,c"#),
            [r#"a"b"#, "c"],
            "a quote inside is a character"
        );
        assert_eq!(parse(r#""a,b"#), [r#""a"#, "b"], "an open quote is a character");
        assert_eq!(
            parse(r#""a"b,c"#),
            [r#""a"b"#, "c"],
            "so is one that ends too early"
        );
        let map = BTreeMap::<String, String>::parse(r#""a=1,b=2",c=3"#).unwrap();
        assert_eq!((map["a"].as_str(), map["c"].as_str()), ("1,b=2", "3"));
    }

    #[test]
    fn blanks_around_addresses_do_not_matter() {
        assert_eq!(IpAddr::parse(" 10.0.0.1\n"), Ok(IpAddr::from([10, 0, 0, 1])));
        assert!(IpAddr::parse("10.0.0.01").is_err());
    }
}
