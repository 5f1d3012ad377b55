// SPDX-License-Identifier: Apache-2.0

//! `cli*.json` and the commands of `health-*.json`: output of commands beside an agent, cell by cell.

use std::{collections::BTreeMap, process::Command};

use serde_json::{Value, json};
use skep_bpf_sys::testing::Node;

use crate::{
    Boxed, Error, Options, Report,
    bindings::{Bindings, Mismatch},
    cluster::Cluster,
    program,
};

/// Seconds that a command may take.
const PATIENCE: &str = "20";

pub(crate) fn run(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let file = recording["name"].as_str().unwrap_or_default().to_owned();
    let profile = recording["agent_profile"].as_str().unwrap_or_default();
    let commands = ["commands", "commands_"].map(|key| recording[key].as_array().into_iter().flatten());
    let commands: Vec<&Value> = commands.into_iter().flatten().collect();
    let run = |node: &Node| -> Result<Vec<Report>, Boxed> {
        let mut cluster = Cluster::new(node, profile)?;
        cluster.start()?;
        if profile.starts_with('S') || profile.starts_with("CP") {
            cluster.scene()?;
        }
        let mut bindings = Bindings::of(recording);
        cluster.bind(&mut bindings)?;
        let names = Names::of(recording);
        let mut reports = Vec::new();
        for (index, command) in commands.iter().enumerate() {
            let text = command["command"].as_str().unwrap_or_default();
            let mut differing = Vec::new();
            compare(command, &names, &mut bindings, &mut differing)?;
            reports.push(Report::new(format!("{file}/{index} {text}"), differing));
        }
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
    bindings.compare(
        "exit_code",
        &command["exit_code"],
        &json!(output.status.code()),
        to,
    );
    for (stream, found) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let expected = names.named(command[stream].as_str().unwrap_or_default());
        let expected = expected.replace("(v-)", env!("CARGO_PKG_VERSION"));
        let found = String::from_utf8_lossy(found);
        let parsed = |text: &str| {
            serde_json::from_str::<Value>(text)
                .ok()
                .filter(|value| !value.is_number())
        };
        match (parsed(&expected), parsed(&found)) {
            (Some(expected), Some(found)) => bindings.compare(stream, &expected, &found, to),
            _ => bindings.compare(stream, &cells(&expected), &cells(&found), to),
        }
    }
    Ok(())
}

/// Lines as lists of cells: columns may be wider or narrower than recorded.
fn cells(text: &str) -> Value {
    let words = |line: &str| line.split_whitespace().map(Value::from).collect::<Value>();
    text.lines().map(words).collect()
}

/// Names of recorded values, which the texts of commands have in their place.
struct Names(BTreeMap<String, String>);

impl Names {
    fn of(recording: &Value) -> Self {
        let bound = recording["bindings"].as_object().into_iter().flatten();
        let named = bound.filter_map(|(name, value)| {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), ToOwned::to_owned);
            // Small numbers are of other things, too.
            (value.len() > 2).then(|| (value, format!("${{{name}}}")))
        });
        Self(named.collect())
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
            // Addresses may be followed by a port.
            let (value, rest) = match self.0.contains_key(&word) {
                true => (word.as_str(), ""),
                false => word
                    .rfind(':')
                    .map_or((word.as_str(), ""), |at| word.split_at(at)),
            };
            match self.0.get(value) {
                Some(name) => named.push_str(name),
                None => named.push_str(value),
            }
            named.push_str(rest);
            word.clear();
            named.push(letter);
        }
        named.pop();
        named
    }
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
