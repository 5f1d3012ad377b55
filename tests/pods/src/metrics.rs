// SPDX-License-Identifier: Apache-2.0

//! Names, types and labels of metrics in `health-*.json`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{Boxed, Report, bindings::Mismatch, cluster::request_url};

/// Where agents with recorded metrics serve them.
pub(crate) const ADDRESS: &str = "127.0.0.1:9962";

/// Compares the metrics that are recorded, and are here.
pub(crate) fn report(recording: &Value) -> Result<Option<Report>, Boxed> {
    let Some(series) = recording["prometheus_series"].as_array() else {
        return Ok(None);
    };
    let answer = request_url("GET", &format!("http://{ADDRESS}/metrics"), &[])?;
    let found = Metrics::of(&answer.unwrap_or_default().text);
    let mut differing = Vec::new();
    let mut compare = |name: &str, expected: Value, found: Value| {
        if expected != found {
            differing.push(Mismatch {
                place: format!("metrics/{name}"),
                expected,
                found,
            });
        }
    };
    for (name, kind) in recording["prometheus_types"].as_object().into_iter().flatten() {
        compare(name, kind.clone(), json!(found.types.get(name)));
    }
    for text in series.iter().filter_map(Value::as_str) {
        let (name, labels) = text.split_once('{').unwrap_or((text, ""));
        let labels = labels.trim_end_matches('}').replace('=', "");
        let here = found.labels.get(name);
        // Series come and go with what is counted.
        let is_same = here.is_some_and(|here| here.contains(&labels));
        compare(
            name,
            json!(labels),
            if is_same { json!(labels) } else { json!(here) },
        );
    }
    let file = recording["name"].as_str().unwrap_or_default();
    Ok(Some(Report::new(format!("{file}/metrics"), differing)))
}

#[derive(Debug, Default)]
struct Metrics {
    types: BTreeMap<String, String>,
    /// Names of labels of the series of a name, with commas.
    labels: BTreeMap<String, BTreeSet<String>>,
}

impl Metrics {
    fn of(text: &str) -> Self {
        let mut metrics = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["#", "TYPE", name, kind] => _ = metrics.types.insert(name.to_owned(), kind.to_owned()),
                ["#", ..] => {}
                _ => {
                    let (name, labels) = line.split_once(['{', ' ']).unwrap_or((line, ""));
                    let keys = labels.split("=\"").map(|part| {
                        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                        let start = part.rfind(|letter| !is_name(letter)).map_or(0, |at| at + 1);
                        &part[start..]
                    });
                    let mut keys: Vec<&str> = keys.collect();
                    // Behind the last one is its value.
                    keys.pop();
                    keys.sort_unstable();
                    let all = metrics.labels.entry(name.to_owned()).or_default();
                    all.insert(keys.join(","));
                }
            }
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_have_types_and_labels() {
        let metrics = Metrics::of("# TYPE a counter\na{y=\"1\",x=\"b c\"} 3\nb 4\n");

        assert_eq!(metrics.types["a"], "counter");
        assert_eq!(metrics.labels["a"], BTreeSet::from(["x,y".to_owned()]));
        assert_eq!(metrics.labels["b"], BTreeSet::from([String::new()]));
    }
}
