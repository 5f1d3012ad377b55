// SPDX-License-Identifier: Apache-2.0

//! Patterns, which are Go's regular expressions (RE2).

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use regex::Regex;
use serde_json::Value;

/// The patterns of a schema, compiled.
#[derive(Debug, Default)]
pub(super) struct Patterns(HashMap<String, Regex>);

impl Patterns {
    pub(super) fn of(schema: &Value) -> Self {
        let mut patterns = Patterns::default();
        patterns.gather(schema);
        patterns
    }

    fn gather(&mut self, schema: &Value) {
        match schema {
            Value::Object(map) => {
                if let Some(pattern) = map.get("pattern").and_then(Value::as_str)
                    && !self.0.contains_key(pattern)
                    && let Ok(regex) = compile(pattern)
                {
                    self.0.insert(pattern.to_owned(), regex);
                }
                map.values().for_each(|below| self.gather(below));
            }
            Value::Array(items) => items.iter().for_each(|below| self.gather(below)),
            _ => {}
        }
    }

    /// Whether a text matches a pattern of the schema.
    pub(super) fn matches(&self, pattern: &str, text: &str) -> bool {
        self.0.get(pattern).is_none_or(|regex| regex.is_match(text))
    }
}

/// Patterns to remember: definitions repeat theirs in many places and versions, and compiling one takes milliseconds.
const REMEMBERED: usize = 1000;

/// Compiles a pattern of a schema.
pub(in crate::server) fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    static KNOWN: Mutex<BTreeMap<String, Regex>> = Mutex::new(BTreeMap::new());
    if let Some(known) = KNOWN.lock().get(pattern) {
        return Ok(known.clone());
    }
    let regex = compile_once(pattern)?;
    let mut known = KNOWN.lock();
    if known.len() >= REMEMBERED {
        known.clear();
    }
    known.insert(pattern.to_owned(), regex.clone());
    Ok(regex)
}

/// Compiles a pattern that is not met again.
pub(super) fn compile_once(pattern: &str) -> Result<Regex, regex::Error> {
    Regex::new(&translate(pattern))
}

/// Writes RE2 as the crate reads it: `\d`, `\s`, `\w` are ASCII in Go, and a `[` in a class is a bracket.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut in_class = false;
    let mut first_in_class = false;
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        let was_first = std::mem::take(&mut first_in_class);
        match c {
            '\\' => match chars.next() {
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('s') => out.push_str(r"[\t\n\f\r ]"),
                Some('S') => out.push_str(r"[^\t\n\f\r ]"),
                Some('w') => out.push_str("[0-9A-Za-z_]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('b') if !in_class => out.push_str(r"(?-u:\b)"),
                Some('/') => out.push('/'),
                Some(other) => {
                    out.push('\\');
                    out.push(other);
                }
                None => out.push('\\'),
            },
            '[' if in_class && chars.peek() != Some(&':') => out.push_str(r"\["),
            '[' if !in_class => {
                in_class = true;
                first_in_class = true;
                out.push('[');
                if chars.peek() == Some(&'^') {
                    chars.next();
                    out.push('^');
                }
            }
            '[' => {
                // A named class such as `[:alpha:]`.
                out.push('[');
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            // The first bracket of a class is part of it.
            ']' if was_first => out.push_str(r"\]"),
            ']' => {
                in_class = false;
                out.push(']');
            }
            // Sets of classes are not RE2.
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_expressions() {
        let cases = [
            (r"^\d+$", "42", true),
            (r"^\d+$", "٤٢", false),
            (r"^[\d.]+$", "4.2", true),
            (r"^\s$", "\u{a0}", false),
            (r"^[[]$", "[", true),
            (r"^[]a]$", "]", true),
            (r"^[^]]$", "]", false),
            (r"^[[:alpha:]]$", "a", true),
            (r"^\PC*$", "fröhlich 🐝", true),
            (r"^\PC*$", "a\u{7}", false),
            (r"^[a-z&&]$", "&", true),
            (r"^a\/b$", "a/b", true),
        ];
        for (pattern, text, matches) in cases {
            let regex = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert_eq!(regex.is_match(text), matches, "{pattern} {text:?}");
        }
        assert!(compile("(").is_err());
    }
}
