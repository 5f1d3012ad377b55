// SPDX-License-Identifier: Apache-2.0

//! `cli*.json` and the commands of `health-*.json`: output of commands beside an agent, cell by cell.

use std::{collections::BTreeMap, process::Command};

use serde_json::{Value, json};
use skep_bpf_sys::testing::Node;

use crate::{
    Boxed, Error, Options, Report,
    bindings::{Bindings, Mismatch},
    cluster::{Cluster, without_default_account},
    differences, metrics, program, rest, text,
};

/// Seconds that a command may take.
const PATIENCE: &str = "20";

pub(crate) fn run(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let file = recording["name"].as_str().unwrap_or_default().to_owned();
    let commands = ["commands", "commands_"].map(|key| recording[key].as_array().into_iter().flatten());
    let commands: Vec<&Value> = commands.into_iter().flatten().collect();
    let run = |node: &Node| -> Result<Vec<Report>, Boxed> {
        let mut cluster = Cluster::new(node, recording)?;
        cluster.start()?;
        if cluster.has_scene() {
            cluster.scene()?;
        }
        let mut bindings = Bindings::of(recording);
        cluster.bind(&mut bindings)?;
        cluster.wait_router()?;
        if recording["prometheus_series"].is_array() {
            cluster.wait_probed();
        }
        let names = Names::of(recording);
        let mut reports = Vec::new();
        for (index, command) in commands.iter().enumerate() {
            let text = command["command"].as_str().unwrap_or_default();
            let mut differing = Vec::new();
            compare(command, &names, &mut bindings, &mut differing)?;
            reports.push(Report::new(format!("{file}/{index} {text}"), differing));
        }
        reports.extend(rest::exchanges(recording, &mut bindings)?);
        reports.extend(metrics::report(recording)?);
        Ok(reports)
    };
    let mut reports = Node::run("cli", run).map_err(Error::Run)?;
    reports.retain(|report| report.scenario.contains(&options.only));
    Ok(reports)
}

fn compare(
    command: &Value,
    names: &Names,
    bindings: &mut Bindings,
    to: &mut Vec<Mismatch>,
) -> Result<(), Boxed> {
    let text = names.named(command["command"].as_str().unwrap_or_default());
    let (given, text) = (text.clone(), unnamed(&text, bindings));
    // Texts repeat the arguments.
    let replaced: Vec<(String, String)> = given
        .split(' ')
        .zip(text.split(' '))
        .filter(|(given, used)| given != used)
        .filter_map(|(given, used)| {
            let number = given.strip_prefix("${LOCAL_")?.strip_suffix('}')?;
            Some((number.to_owned(), used.to_owned()))
        })
        .collect();
    let text = bindings.fill_text(&text);
    let mut words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() {
        return Err("a record without a command".into());
    }
    if words.first() == Some(&"cilium-health") {
        words.insert(1, "health");
    }
    words.remove(0);
    let output = Command::new("timeout")
        .arg(PATIENCE)
        .arg(program("skep")?)
        .args(&words)
        .output()?;
    let place = words.join(" ");
    bindings.compare(
        &format!("{place} exit_code"),
        &command["exit_code"],
        &json!(output.status.code()),
        to,
    );
    for (stream, found) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let expected = command[stream].as_str().unwrap_or_default();
        let version = env!("CARGO_PKG_VERSION");
        let expected = expected.replace("\" (v-)\"", &format!("\"{version}\""));
        let expected = expected.replace("' (v-)'", &format!("'{version}'"));
        let expected = expected.replace("(v-)", version);
        let expected = replaced
            .iter()
            .fold(expected, |text, (number, used)| text.replace(number, used));
        let expected = expected
            .replace("cilium-health", "skep health")
            .replace("cilium-dbg", "skep");
        let found = String::from_utf8_lossy(found);
        let place = format!("{place} {stream}");
        let (expected, found) = match forms(&place, &expected, &found, names) {
            Some(forms) => forms,
            None => continue,
        };
        let (mut expected, mut found) = (
            without_default_account(&expected),
            without_default_account(&found),
        );
        if place.starts_with("map list ") {
            type Removal = fn(&mut Value, &mut Value) -> bool;
            let removals: [(_, Removal); 3] = [
                (differences::OTHER_MAPS, text::without_others),
                (differences::CACHES, text::without_caches),
                (differences::FLOWS, text::without_flows),
            ];
            for (name, remove) in removals {
                if remove(&mut expected, &mut found) {
                    to.push(Mismatch {
                        place: name.to_owned(),
                        expected: Value::Null,
                        found: Value::Null,
                    });
                }
            }
        }
        let (mut trial, mut differing) = (bindings.clone(), Vec::new());
        trial.compare(&place, &expected, &found, &mut differing);
        if !differing.is_empty()
            && ["lb ", "cilium_lb", "service "]
                .iter()
                .any(|part| place.contains(part))
        {
            // Slots are numbered in the order of addresses.
            let (mut other, mut left) = (bindings.clone(), Vec::new());
            other.compare(
                &place,
                &text::slotless(&expected),
                &text::slotless(&found),
                &mut left,
            );
            if left.is_empty() {
                trial = other;
                mark(&mut differing, differences::ADDRESS_ORDER);
            }
        }
        if place.starts_with("map ") {
            mark_renumbered(&mut differing, &trial);
        }
        if place.starts_with("map list ") {
            for mismatch in &mut differing {
                let texts =
                    [&mismatch.expected, &mismatch.found].map(|value| value.as_str().unwrap_or_default());
                if texts[0].ends_with(" 0 false") || is_cached_here(&expected, texts[1]) {
                    mismatch.place.insert_str(0, differences::CACHES);
                }
            }
        }
        *bindings = trial;
        to.extend(differing);
    }
    Ok(())
}

/// Marks entries that differ in ids of backends alone: they are allocated in the order of random addresses.
fn mark_renumbered(differing: &mut [Mismatch], bindings: &Bindings) {
    let parent = |place: &str| place.rsplit_once('/').map(|(parent, _)| parent.to_owned());
    for at in 0..differing.len() {
        let one = &differing[at];
        if one.place.starts_with(differences::ADDRESS_ORDER) || one.expected.is_null() {
            continue;
        }
        let expected = one.expected.as_str().and_then(|text| bindings.known(text));
        let expected = expected.map(|text| text::slotless(&text.into()));
        let is_same = |found: &Value| {
            let form = text::slotless(found);
            form != *found && expected.as_ref() == Some(&form)
        };
        if is_same(&one.found) {
            mark(&mut differing[at..=at], differences::ADDRESS_ORDER);
            continue;
        }
        let is_other =
            |other: &Mismatch| other.expected.is_null() && parent(&other.place) == parent(&one.place);
        let with = differing
            .iter()
            .position(|other| is_other(other) && is_same(&other.found));
        if let Some(with) = with {
            mark(&mut differing[at..=at], differences::ADDRESS_ORDER);
            mark(&mut differing[with..=with], differences::ADDRESS_ORDER);
        }
    }
}

/// Whether a row is of a map that has no cache in the recording.
fn is_cached_here(expected: &Value, row: &str) -> bool {
    let name = row.split(' ').next().unwrap_or_default();
    let rows = expected
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let mut rows = rows.filter(|expected| expected.split(' ').next() == Some(name));
    row.ends_with(" 0 true") && rows.any(|expected| expected.ends_with(" 0 false"))
}

fn mark(differing: &mut [Mismatch], name: &str) {
    for mismatch in differing {
        mismatch.place.insert_str(0, name);
    }
}

/// A command with numbers of local identities: of those that no output had, one that there is not.
fn unnamed(command: &str, bindings: &Bindings) -> String {
    let words = command
        .split(' ')
        .map(|word| match word.strip_prefix("${LOCAL_") {
            Some(_) => bindings.known(word).unwrap_or_else(|| "16842000".to_owned()),
            None => word.to_owned(),
        });
    words.collect::<Vec<_>>().join(" ")
}

/// Both texts in the form in which they are compared; `None` if the recording has only a remark in place of a text.
fn forms(command: &str, expected: &str, found: &str, names: &Names) -> Option<(Value, Value)> {
    if expected.contains("not recorded") || expected.starts_with("(JSON of ") {
        return found.trim().is_empty().then(|| (expected.into(), Value::Null));
    }
    if command.contains("bpf ct list") || command.contains("bpf nat list") {
        // Of the entries of another machine, the kinds.
        let (expected, mut found) = (text::shapes(expected), text::shapes(found));
        found.retain(|shape| !expected.contains(shape));
        return (!found.is_empty()).then(|| (Value::Null, json!(found)));
    }
    let document = |text: &str| {
        let json = serde_json::from_str::<Value>(text).ok();
        let value = match command.contains("yaml") {
            true => json.or_else(|| serde_norway::from_str(text).ok()),
            false => json,
        };
        value.filter(|value| value.is_array() || value.is_object())
    };
    if let (Some(expected), Some(found)) = (document(expected), document(found)) {
        let key = if command.contains("nodeid") { "nodeid" } else { "" };
        return Some((names.json(key, &text::stable(&expected)), text::stable(&found)));
    }
    if command.contains("jsonpath=") {
        // Elements in the order of random ids.
        let words = |text: &str| text.split_whitespace().map(Value::from).collect::<Value>();
        return Some((words(&names.named(expected)), words(found)));
    }
    // The address beside an id is any of its node.
    let split = |text: &str| match command {
        _ if command.starts_with("nodeid list") => text::split_ids(text),
        _ if command.starts_with("policy selectors") => text::split_identities(text),
        _ => text.to_owned(),
    };
    let (expected, found) = (&*split(expected), &*split(found));
    let has_durations = text::has_durations(expected);
    let [expected, found] = [expected, found].map(|text| text::prepare(text, has_durations));
    Some((text::rows(&names.named(&expected)), text::rows(&found)))
}

/// Names of recorded values, which the texts of commands have in their place.
struct Names(BTreeMap<String, String>);

impl Names {
    fn of(recording: &Value) -> Self {
        let bound = recording["bindings"].as_object().into_iter().flatten();
        let named = bound.map(|(name, value)| {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), ToOwned::to_owned);
            (value, format!("${{{name}}}"))
        });
        Self(named.collect())
    }

    /// The name of a whole word.
    fn name(&self, word: &str) -> Option<String> {
        // Identities of networks and nodes are numbered in the order of their use.
        let is_local = |word: &str| {
            let number = word.parse::<u64>();
            number.is_ok_and(|number| matches!(number >> 16, 0x100 | 0x200))
        };
        let named = self.0.get(word).cloned();
        named.or_else(|| is_local(word).then(|| format!("${{LOCAL_{word}}}")))
    }

    /// JSON with names in place of recorded values; `key` is that of the value.
    fn json(&self, key: &str, value: &Value) -> Value {
        match value {
            Value::String(text) => self.named(text).into(),
            Value::Number(number) => {
                let number = number.to_string();
                match key {
                    "nodeid" => format!("${{NODE_{number}}}").into(),
                    _ if number.len() < 3 && !key.to_lowercase().ends_with("id") => value.clone(),
                    _ => self.name(&number).map_or_else(|| value.clone(), Value::from),
                }
            }
            Value::Array(list) => list.iter().map(|value| self.json(key, value)).collect(),
            Value::Object(object) => {
                let of = |name: &str| match key {
                    "nodeid" if name == "id" => "nodeid".to_owned(),
                    "nodeid" => String::new(),
                    _ => name.to_owned(),
                };
                let all = object.iter();
                Value::Object(
                    all.map(|(name, value)| (self.named(name), self.json(&of(name), value)))
                        .collect(),
                )
            }
            other => other.clone(),
        }
    }

    /// A text with names in place of whole recorded values.
    fn named(&self, text: &str) -> String {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | ':' | '-');
        let (mut named, mut word) = (String::new(), String::new());
        for letter in text.chars().chain(['\n']) {
            if is_part(letter) {
                word.push(letter);
                continue;
            }
            named.push_str(&self.word(
                &word,
                named.ends_with("id=")
                    || named.ends_with("_v2_")
                    || named.ends_with("ID: ")
                    || is_first(&named),
            ));
            word.clear();
            named.push(letter);
        }
        named.pop();
        named
    }

    /// A word with names in place of its parts. Small numbers are of other things, too, except where an id stands.
    fn word(&self, word: &str, is_id: bool) -> String {
        if let Some(name) = self.name(word).filter(|_| word.len() > 2 || is_id) {
            return name;
        }
        if let Some(id) = word.strip_prefix("0x").filter(|_| is_id) {
            return format!("${{NODE_{id}}}");
        }
        // Addresses may be followed by a port.
        if let Some((value, rest)) = word.rfind(':').map(|at| word.split_at(at))
            && let Some(name) = self.0.get(value).filter(|_| value.len() > 2)
        {
            return format!("{name}{rest}");
        }
        // Names of jobs have ids of endpoints.
        let parts = word.split('-').map(|part| match self.0.get(part) {
            Some(name) if name.starts_with("${EP_") && part.len() > 2 => name,
            _ => part,
        });
        parts.collect::<Vec<_>>().join("-")
    }
}

/// Whether what follows is the first word of a line.
fn is_first(text: &str) -> bool {
    let line = text.rsplit('\n').next().unwrap_or_default();
    line.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_values_of_commands_are_named() {
        let names = Names::of(&json!({"bindings": {"EP_1": "1178", "A": "fd00::1", "B": "10.0.0.7"}}));

        let text = names.named("endpoint get 1178\n11780 fd00::1 10.0.0.7:80 fd00::17");

        assert_eq!(text, "endpoint get ${EP_1}\n11780 ${A} ${B}:80 fd00::17");
    }
}
