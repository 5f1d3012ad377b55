// SPDX-License-Identifier: Apache-2.0

//! Values of `${NAME}`, and comparison with what has them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use serde_json::{Map, Value};

/// A difference from the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Path of the value, from the step on: `3 ADD/stdout/ips/0`.
    pub(crate) place: String,
    pub(crate) expected: Value,
    pub(crate) found: Value,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}: expected {}, found {}",
            self.place, self.expected, self.found
        )
    }
}

/// Values of names.
#[derive(Debug, Default, Clone)]
pub(crate) struct Bindings {
    bound: BTreeMap<String, String>,
    recorded: BTreeMap<String, String>,
}

/// Names of values that are never the same.
fn is_any(name: &str) -> bool {
    name == "TIME"
}

/// Whether a name may have a value: numbers of identities and endpoints, addresses.
fn fits(name: &str, value: &str) -> bool {
    let number = || value.parse::<u64>();
    if name.starts_with("LOCAL_") {
        return number().is_ok_and(|number| number > 0xff_ffff);
    }
    if ["EP_", "ID_", "IFINDEX", "NETNSID", "COOKIE"]
        .iter()
        .any(|start| name.starts_with(start))
    {
        return number().is_ok();
    }
    let address = || value.parse::<IpAddr>();
    match name.split_once('_') {
        // Those of expirations are ids.
        Some((start, _)) if start.starts_with("EXPIRATION") => true,
        Some((_, "IPV4")) => address().is_ok_and(|address| address.is_ipv4()),
        Some((_, "IPV6")) => address().is_ok_and(|address| address.is_ipv6()),
        _ => true,
    }
}

impl Bindings {
    /// The names of a recording.
    pub(crate) fn of(recording: &Value) -> Self {
        let recorded = recording["bindings"].as_object().into_iter().flatten();
        let text = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), ToOwned::to_owned)
        };
        Self {
            recorded: recorded
                .map(|(name, value)| (name.clone(), text(value)))
                .collect(),
            bound: BTreeMap::new(),
        }
    }

    /// The values that are bound.
    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        self.bound.values().map(String::as_str)
    }

    /// Binds a name, unless there is no value.
    pub(crate) fn bind(&mut self, name: &str, value: &Value) {
        let text = match value {
            Value::Null => return,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.bound.insert(name.to_owned(), text);
    }

    /// Takes what was bound in a comparison; after one that failed, but for ids, which stand in lists of any order.
    pub(crate) fn adopt(&mut self, compared: Self, is_equal: bool) {
        let kept = compared
            .bound
            .into_iter()
            .filter(|(name, _)| is_equal || !name.starts_with("UUID"));
        for (name, value) in kept {
            self.bound.entry(name).or_insert(value);
        }
    }

    /// A text with the values of its names, unless one has none yet.
    pub(crate) fn known(&self, text: &str) -> Option<String> {
        let mut text = text.to_owned();
        while let Some((name, at)) = first_name(&text) {
            let value = self.bound.get(&name)?;
            text.replace_range(at..at + name.len() + 3, value);
        }
        Some(text)
    }

    /// Replaces names by their values, by the recorded ones if they have no other.
    pub(crate) fn fill(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let filled = self.fill_text(text);
                // Numbers of the kernel and of the agent.
                let is_number = ["${IFI", "${EP_", "${ID_", "${COOKIE"]
                    .iter()
                    .any(|start| text.starts_with(start));
                match filled.parse::<u64>() {
                    Ok(number) if is_number => number.into(),
                    _ => filled.into(),
                }
            }
            Value::Array(list) => list.iter().map(|value| self.fill(value)).collect(),
            Value::Object(object) => {
                let all = object
                    .iter()
                    .map(|(key, value)| (self.fill_text(key), self.fill(value)));
                Value::Object(all.collect())
            }
            other => other.clone(),
        }
    }

    pub(crate) fn fill_text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        let mut from = 0;
        while let Some((name, at)) = first_name(&text[from..]) {
            let at = from + at;
            let value = match self.bound.get(&name).or_else(|| self.recorded.get(&name)) {
                Some(value) => value.clone(),
                None if is_any(&name) => "2026-06-25T12:00:00.000Z".to_owned(),
                None => String::new(),
            };
            if !is_any(&name) {
                self.bound.entry(name.clone()).or_insert_with(|| value.clone());
            }
            text.replace_range(at..at + name.len() + 3, &value);
            from = at + value.len();
        }
        text
    }

    /// Compares, and binds names that have no value. Lists may be in another order.
    pub(crate) fn compare(&mut self, place: &str, expected: &Value, found: &Value, to: &mut Vec<Mismatch>) {
        let differs = || Mismatch {
            place: place.to_owned(),
            expected: expected.clone(),
            found: found.clone(),
        };
        match (expected, found) {
            (Value::String(pattern), found) => {
                let text = found
                    .as_str()
                    .map_or_else(|| found.to_string(), ToOwned::to_owned);
                let mut trial = self.clone();
                if trial.matches_text(pattern, &text) {
                    *self = trial;
                    return;
                }
                // Texts of JSON, such as policies.
                match (document(pattern), document(&text)) {
                    (Some(expected), Some(found)) => self.compare(place, &expected, &found, to),
                    _ => to.push(differs()),
                }
            }
            (Value::Array(expected), Value::Array(found)) => self.compare_list(place, expected, found, to),
            (Value::Object(expected), Value::Object(found)) => {
                self.compare_object(place, expected, found, to)
            }
            (expected, found) if expected == found => {}
            _ => to.push(differs()),
        }
    }

    /// Whether it matches; names are bound only if it does.
    pub(crate) fn matches(&mut self, expected: &Value, found: &Value) -> bool {
        let (mut trial, mut differing) = (self.clone(), Vec::new());
        trial.compare("", expected, found, &mut differing);
        if differing.is_empty() {
            *self = trial;
        }
        differing.is_empty()
    }

    fn compare_list(&mut self, place: &str, expected: &[Value], found: &[Value], to: &mut Vec<Mismatch>) {
        let (mut trial, mut ordered) = (self.clone(), Vec::new());
        if expected.len() == found.len() {
            for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
                trial.compare(&format!("{place}/{index}"), expected, found, &mut ordered);
            }
            if ordered.is_empty() {
                *self = trial;
                return;
            }
        }
        let mut left: Vec<&Value> = found.iter().collect();
        let mut missing = Vec::new();
        for (index, expected) in expected.iter().enumerate() {
            match left.iter().position(|found| self.matches(expected, found)) {
                Some(at) => _ = left.remove(at),
                None => missing.push((index, expected)),
            }
        }
        self.compare_pairs(place, missing, left, to);
    }

    /// Compares the elements of a list that equal none: each with the one that differs least.
    fn compare_pairs(
        &mut self,
        place: &str,
        mut missing: Vec<(usize, &Value)>,
        mut left: Vec<&Value>,
        to: &mut Vec<Mismatch>,
    ) {
        let is_one = (missing.len(), left.len()) == (1, 1);
        while let Some((_, at, with)) = self.closest(&missing, &left, is_one) {
            let ((index, expected), found) = (missing.remove(at), left.remove(with));
            self.compare(&format!("{place}/{index}"), expected, found, to);
        }
        to.extend(missing.into_iter().map(|(index, expected)| Mismatch {
            place: format!("{place}/{index}"),
            expected: expected.clone(),
            found: Value::Null,
        }));
        to.extend(left.into_iter().map(|found| Mismatch {
            place: format!("{place}/+"),
            expected: Value::Null,
            found: found.clone(),
        }));
    }

    /// The two elements with the most values in common: a number that is least for them, and the places of both.
    fn closest(
        &self,
        missing: &[(usize, &Value)],
        left: &[&Value],
        is_one: bool,
    ) -> Option<(usize, usize, usize)> {
        let sets: Vec<BTreeSet<String>> = left.iter().map(|found| leaves(found)).collect();
        let pairs = missing.iter().enumerate().flat_map(|(at, (_, expected))| {
            let own = leaves(expected);
            let others = left.iter().zip(&sets).enumerate();
            let pairs = others.filter_map(move |(with, (found, set))| {
                let is_pair = is_one || self.clone().is_of_one(expected, found);
                is_pair.then(|| (usize::MAX - own.intersection(set).count(), at, with))
            });
            pairs.collect::<Vec<_>>()
        });
        pairs.min()
    }

    /// Whether two elements may be of one object: texts and numbers are not, nor objects with other names.
    fn is_of_one(&mut self, expected: &Value, found: &Value) -> bool {
        match (expected, found) {
            (Value::Object(expected), Value::Object(found)) => {
                let text =
                    |object: &Map<String, Value>, key| object.get(key)?.as_str().map(ToOwned::to_owned);
                let of_map = |object: &Map<String, Value>| {
                    let path = object.get("path").filter(|_| object.contains_key("cache"))?;
                    path.as_str()?.rsplit('/').next().map(ToOwned::to_owned)
                };
                if let (Some(expected), Some(found)) = (of_map(expected), of_map(found)) {
                    return self.matches_text(&expected, &found);
                }
                let mut names = ["name", "selector"].into_iter();
                names.all(|key| match (text(expected, key), text(found, key)) {
                    (Some(expected), Some(found)) => self.matches_text(&expected, &found),
                    _ => true,
                })
            }
            // Rows of a command, with further lines.
            (Value::Array(expected), Value::Array(found)) => match (expected.first(), found.first()) {
                (Some(Value::String(expected)), Some(Value::String(found))) => {
                    // Of a section the whole title.
                    let first = |text: &str| match text.starts_with("## ") {
                        true => text.to_owned(),
                        false => text.split(' ').next().unwrap_or_default().to_owned(),
                    };
                    self.matches_text(&first(expected), &first(found))
                }
                (Some(Value::Array(expected)), Some(Value::Array(found))) => {
                    expected.first() == found.first()
                }
                _ => true,
            },
            _ => false,
        }
    }

    fn compare_object(
        &mut self,
        place: &str,
        expected: &Map<String, Value>,
        found: &Map<String, Value>,
        to: &mut Vec<Mismatch>,
    ) {
        let mut left: Vec<&String> = found.keys().collect();
        // Keys without names first.
        let (named, plain): (Vec<_>, Vec<_>) = expected.iter().partition(|(key, _)| key.contains("${"));
        for (key, value) in plain.into_iter().chain(named) {
            let at = left.iter().position(|found| *found == key).or_else(|| {
                left.iter().position(|found| {
                    let mut trial = self.clone();
                    let is_match = trial.matches_text(key, found);
                    if is_match {
                        *self = trial;
                    }
                    is_match
                })
            });
            match at.map(|at| left.remove(at)) {
                Some(name) => self.compare(&format!("{place}/{name}"), value, &found[name], to),
                None => to.push(Mismatch {
                    place: format!("{place}/{key}"),
                    expected: value.clone(),
                    found: Value::Null,
                }),
            }
        }
        to.extend(left.into_iter().map(|name| Mismatch {
            place: format!("{place}/{name}"),
            expected: Value::Null,
            found: found[name].clone(),
        }));
    }

    pub(crate) fn matches_text(&mut self, pattern: &str, found: &str) -> bool {
        let Some((name, at)) = first_name(pattern) else {
            return pattern == found;
        };
        let Some(rest) = found.strip_prefix(&pattern[..at]) else {
            return false;
        };
        let behind = &pattern[at + name.len() + 3..];
        if let Some(value) = self.bound.get(&name).cloned() {
            return rest
                .strip_prefix(&value)
                .is_some_and(|rest| self.matches_text(behind, rest));
        }
        let end = behind.find("${").map_or(behind, |next| &behind[..next]);
        // The value may have what follows it, too.
        let mut ends: Vec<usize> = match end.is_empty() {
            true => vec![rest.len()],
            false => rest.match_indices(end).map(|(at, _)| at).collect(),
        };
        if is_any(&name) {
            ends.truncate(1);
        }
        ends.into_iter().any(|at| {
            let mut trial = self.clone();
            if !is_any(&name) {
                if !fits(&name, &rest[..at]) {
                    return false;
                }
                trial.bound.insert(name.clone(), rest[..at].to_owned());
            }
            let is_match = trial.matches_text(behind, &rest[at..]);
            if is_match {
                *self = trial;
            }
            is_match
        })
    }
}

/// The value of a text that is a JSON document with members. Debug lines in JSON are compared as a whole.
fn document(text: &str) -> Option<Value> {
    let is_debug = text.contains(r#""level":"debug""#);
    let is_document = text.starts_with(['{', '[']) && !text.starts_with("${") && !is_debug;
    is_document.then(|| serde_json::from_str(text).ok()).flatten()
}

/// All texts and numbers below a value.
fn leaves(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Array(list) => list.iter().flat_map(leaves).collect(),
        Value::Object(object) => object
            .iter()
            .flat_map(|(key, value)| leaves(value).into_iter().map(move |leaf| format!("{key}/{leaf}")))
            .collect(),
        Value::String(text) => BTreeSet::from([text.clone()]),
        other => BTreeSet::from([other.to_string()]),
    }
}

/// The first name of a text, and where it begins.
fn first_name(text: &str) -> Option<(String, usize)> {
    let at = text.find("${")?;
    let (name, _) = text[at + 2..].split_once('}')?;
    Some((name.to_owned(), at))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_bound_once_and_lists_may_be_in_another_order() {
        let mut bindings = Bindings::of(&json!({"bindings": {"A": "1"}}));
        let mut found = Vec::new();

        bindings.compare(
            "",
            &json!([{"id": "${EP_1}", "name": "a"}, {"id": "${EP_2}", "name": "b"}, "at ${TIME}", "on ${TIME}"]),
            &json!(["on 2", {"id": 7, "name": "b"}, {"id": 3, "name": "a"}, "at 1"]),
            &mut found,
        );

        assert_eq!(found, []);
        assert_eq!(bindings.fill(&json!("${EP_2}")), 7);
        bindings.compare("x", &json!({"${EP_1}": 1}), &json!({"4": 1}), &mut found);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn elements_of_lists_are_compared_with_the_closest_one() {
        let (mut bindings, mut found) = (Bindings::of(&json!({})), Vec::new());

        bindings.compare(
            "",
            &json!([{"name": "a", "x": 1, "y": 1}, {"name": "b"}, "text"]),
            &json!([{"name": "c"}, "text", {"name": "a", "x": 1, "y": 2}]),
            &mut found,
        );

        let places: Vec<&str> = found.iter().map(|mismatch| mismatch.place.as_str()).collect();
        assert_eq!(places, ["/0/y", "/1", "/+"]);
    }
}
