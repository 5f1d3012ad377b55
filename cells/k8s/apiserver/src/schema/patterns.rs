// SPDX-License-Identifier: Apache-2.0

//! Patterns of schemas. RE2 is read as the crate `regex` does: `\d` and `\w` also match other scripts.

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

/// Compiles a pattern once: definitions repeat theirs in many places and versions, and compiling one takes milliseconds.
pub(super) fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    static KNOWN: Mutex<BTreeMap<String, Regex>> = Mutex::new(BTreeMap::new());
    if let Some(known) = KNOWN.lock().get(pattern) {
        return Ok(known.clone());
    }
    let regex = Regex::new(pattern)?;
    KNOWN.lock().insert(pattern.to_owned(), regex.clone());
    Ok(regex)
}
