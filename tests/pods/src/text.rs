// SPDX-License-Identifier: Apache-2.0

//! Output of commands, in a form that is compared: rows in any order, without times and counters.

use std::{collections::BTreeSet, sync::LazyLock};

use regex::{Captures, Regex};
use serde_json::{Map, Value};

/// Members of JSON that differ in each run.
const VOLATILE: [&str; 17] = [
    "uuid",
    "uptime",
    "latency",
    "lastprobed",
    "currentflows",
    "seenflows",
    "packets",
    "bytes",
    "probeinterval",
    "interfaceindex",
    "netnscookie",
    "last1min",
    "last5min",
    "last15min",
    "clientid",
    "nummaptypes",
    "proxyport",
];
/// Counters, which are left out when they are zero.
const COUNTERS: [&str; 4] = [
    "successcount",
    "failurecount",
    "consecutivefailurecount",
    "refcount",
];
/// Titles of columns of counters.
const COLUMNS: [&str; 4] = ["BYTES", "PACKETS", "REFCOUNT", "Num entries"];
/// Beginnings of sections, which have rows below.
const SECTIONS: [&str; 2] = ["## ", "Endpoint ID: "];

macro_rules! regex {
    ($pattern:literal) => {{
        static REGEX: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new($pattern).ok());
        &*REGEX
    }};
}

fn replace(text: &str, pattern: &Option<Regex>, with: impl Fn(&Captures<'_>) -> String) -> String {
    match pattern {
        Some(pattern) => pattern.replace_all(text, with).into_owned(),
        None => text.to_owned(),
    }
}

/// A text without times, durations and numbers of the kernel. Names are put in afterwards.
pub(crate) fn prepare(text: &str, has_durations: bool) -> String {
    let text = replace(
        text,
        regex!(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"),
        |_| "<time>".to_owned(),
    );
    let text = replace(
        &text,
        regex!(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
        |_| "<uuid>".to_owned(),
    );
    let text = replace(
        &text,
        regex!(r"\b(ifindex|MountID|ParentID)([:=]\s*)[1-9]\d*"),
        |found| format!("{}{}<n>", &found[1], &found[2]),
    );
    // Those of inputs are fixed, the others random; addresses of links are made from them.
    let text = replace(&text, regex!(r"\b(?i)([0-9a-f]{2}:){5}[0-9a-f]{2}\b"), |found| {
        let address = found[0].to_lowercase();
        match address.starts_with("02:40:") || address.starts_with("0a:58:") {
            true => address,
            false => "<mac>".to_owned(),
        }
    });
    let text = replace(&text, regex!(r"\bfe80::[0-9a-f:]+"), |found| {
        match found[0].starts_with("fe80::40:ff:") || !found[0].contains("ff:fe") {
            true => found[0].to_owned(),
            false => "<link-address>".to_owned(),
        }
    });
    let text = replace(
        &text,
        regex!(r"(cilium_(?:policy|calls)\w*?_)0+([1-9]\d*)\b"),
        |found| format!("{}{}", &found[1], &found[2]),
    );
    let text = redirects(&text);
    match has_durations {
        true => replace(
            &text,
            regex!(r"\b(\d+(\.\d+)?(ns|µs|ms|h|m|s))+\b|, x\d+\)|\b\d+/\d+ \(\d+\.\d+%\)|Flows/s: \d+\.\d+"),
            |_| "<d>".to_owned(),
        ),
        false => text,
    }
}

/// A text with redirects to proxies without the random ids of endpoints and ports.
pub(crate) fn redirects(text: &str) -> String {
    replace(
        text,
        regex!(r"\b\d+:((?:in|e)gress:\w+:\d+:)(\s+[1-9]\d*\b)?"),
        |found| format!("<id>:{}{}", &found[1], found.get(2).map_or("", |_| " <port>")),
    )
}

/// Whether a text has durations since an event.
pub(crate) fn has_durations(text: &str) -> bool {
    let marks = ["RTT=", "Probe interval", "uptime", " ago", "Flows/s", "Age"];
    marks.iter().any(|mark| text.contains(mark))
}

/// The form of a text that is no JSON: an array of rows, or of sections of rows.
pub(crate) fn rows(text: &str) -> Value {
    let (mut sections, mut titles): (Vec<Vec<Value>>, Vec<String>) = (vec![Vec::new()], Vec::new());
    let mut row: Vec<Value> = Vec::new();
    let end = |row: &mut Vec<Value>, sections: &mut Vec<Vec<Value>>| {
        let done = match row.len() {
            0 => return,
            1 => row.remove(0),
            _ => Value::Array(std::mem::take(row)),
        };
        if let Some(section) = sections.last_mut() {
            section.push(done);
        }
    };
    for line in text.lines() {
        let is_continued = line.starts_with([' ', '\t', '│', '├', '└']) && !row.is_empty();
        if !is_continued {
            end(&mut row, &mut sections);
        }
        if SECTIONS.iter().any(|start| line.starts_with(start)) {
            sections.push(Vec::new());
        }
        let cells: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        if COLUMNS.iter().any(|title| cells.contains(title)) {
            titles = cells.iter().map(|cell| (*cell).to_owned()).collect();
        }
        let cells = cells.iter().enumerate().map(|(at, cell)| {
            let is_counter = titles
                .get(at)
                .is_some_and(|title| COLUMNS.contains(&title.as_str()));
            let is_port = titles.get(at).is_some_and(|title| title == "PROXY PORT")
                && cell.parse::<u16>().is_ok_and(|port| port > 0);
            match is_counter && !COLUMNS.contains(cell) || is_port {
                true => "<n>",
                false => cell,
            }
        });
        let words: Vec<String> = cells
            .flat_map(str::split_whitespace)
            .map(ToOwned::to_owned)
            .collect();
        if !words.is_empty() {
            row.push(line_form(&words.join(" ")).into());
        }
    }
    end(&mut row, &mut sections);
    match sections.len() {
        1 => Value::Array(sections.remove(0)),
        _ => sections.into_iter().map(Value::Array).collect(),
    }
}

/// Lines of which only the beginning is the same in each run.
fn line_form(line: &str) -> String {
    for start in ["Node load:", "Kubernetes: Ok", "AgentLiveness", "UTimeOffset"] {
        if line.starts_with(start) {
            return format!("{start} <n>");
        }
    }
    let line = replace(
        line,
        regex!(r"^(\S+) \d+ (true|false) (device|veth|vxlan|dummy|bridge)\b"),
        |found| format!("{} <n> {} {}", &found[1], &found[2], &found[3]),
    );
    // The random port of a proxy.
    let line = replace(
        &line,
        regex!(r"^((?:In|E)gress: \S+ \S+) [1-9]\d* (\d+)$"),
        |found| format!("{} <port> {}", &found[1], &found[2]),
    );
    replace(&line, regex!(r"^(\w+_total \S.*) \d+\.\d{6}$"), |found| {
        format!("{} <n>", &found[1])
    })
}

/// JSON without what differs in each run. YAML has the same names in lower case, without hyphens.
pub(crate) fn stable(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(stable).collect(),
        Value::Object(object) => {
            let form = |key: &str| key.replace('-', "").to_lowercase();
            let kept = object
                .iter()
                .filter(|(key, _)| !COUNTERS.contains(&form(key).as_str()));
            let kept = kept.map(|(key, value)| {
                let name = form(key);
                let is_volatile = VOLATILE.contains(&name.as_str()) || name.ends_with("timestamp");
                let value = match value {
                    Value::String(text) if is_volatile && !text.is_empty() => "<any>".into(),
                    Value::Number(_) if is_volatile => 0.into(),
                    value => stable(value),
                };
                (key.clone(), value)
            });
            Value::Object(kept.collect::<Map<_, _>>())
        }
        // An entry of `cilium_lxc`.
        Value::String(text) if text.contains(" sec_id=") => {
            let text = prepare(text, false);
            text.split_whitespace().collect::<Vec<_>>().join(" ").into()
        }
        Value::String(text) => {
            let text = replace(text, regex!(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), |_| {
                "<time>".to_owned()
            });
            let text = replace(
                &text,
                regex!(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
                |_| "<uuid>".to_owned(),
            );
            redirects(&text).into()
        }
        other => other.clone(),
    }
}

/// A form without numbers of slots and backends of services.
pub(crate) fn slotless(value: &Value) -> Value {
    match value {
        Value::String(text) => {
            let text = replace(text, regex!(r"\((\d+)\) \(\d+\)"), |found| {
                format!("({}) (n)", &found[1])
            });
            let text = replace(
                &text,
                regex!(r"/(TCP|UDP|SCTP|ANY)(/i)? \(\d+\)( [^(]|$)"),
                |found| {
                    let scope = found.get(2).map_or("", |part| part.as_str());
                    format!("/{}{scope} (n){}", &found[1], &found[3])
                },
            );
            let text = replace(&text, regex!(r"^\d+ =>|^\d+ (TCP|UDP|SCTP)"), |_| "n ".to_owned());
            replace(&text, regex!(r"(^| )\d+ (0\[0\] )"), |found| {
                format!("{}n {}", &found[1], &found[2])
            })
            .into()
        }
        // A service has its first backend on its own line.
        Value::Array(list) => list
            .iter()
            .flat_map(
                |value| match value.as_str().and_then(|text| text.split_once(" => ")) {
                    Some((service, backend)) => {
                        let service = service.rsplit_once(' ').map_or("", |(service, _)| service);
                        vec![
                            slotless(&service.into()),
                            slotless(&format!("1 => {backend}").into()),
                        ]
                    }
                    None => vec![slotless(value)],
                },
            )
            .collect(),
        Value::Object(object) => {
            let pairs = object
                .iter()
                .map(|(key, value)| Value::Array(vec![slotless(&key.as_str().into()), slotless(value)]));
            pairs.collect()
        }
        other => other.clone(),
    }
}

/// Ids of nodes on lines of their own, in front of addresses.
pub(crate) fn split_ids(text: &str) -> String {
    replace(text, regex!(r"(?m)^(0x[0-9a-f]+)\s+(\S+)"), |found| {
        format!("{}\n   {}", &found[1], &found[2])
    })
}

/// Ids of the identities of a selector on lines of their own.
pub(crate) fn split_identities(text: &str) -> String {
    replace(text, regex!(r"(?m)^(\S.*\S)[ \t]+(\d+)[ \t]*$"), |found| {
        format!("{}\n   {}", &found[1], &found[2])
    })
}

/// Names of maps in rows, sections and objects.
pub(crate) fn maps(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => {
            let found = text
                .split([' ', '/'])
                .find(|word| word.starts_with("cilium_") || word.starts_with("skep_"));
            found.map(ToOwned::to_owned).into_iter().collect()
        }
        Value::Array(list) => match list.first() {
            // A section.
            Some(Value::String(text)) if text.starts_with("## ") => maps(&list[0]),
            _ => list.iter().flat_map(maps).collect(),
        },
        Value::Object(object) => match object.get("path").and_then(Value::as_str) {
            Some(path) => path
                .rsplit('/')
                .next()
                .map(ToOwned::to_owned)
                .into_iter()
                .collect(),
            None => object.values().flat_map(maps).collect(),
        },
        _ => Vec::new(),
    }
}

/// Kinds of lines: numbers, addresses and flags have no values. For entries of connections, which differ in each run.
pub(crate) fn shapes(text: &str) -> Vec<String> {
    let mut all: Vec<String> = text
        .lines()
        .map(|line| {
            let line = replace(line, regex!(r"\[ [^\]]*\]"), |_| "[]".to_owned());
            let line = replace(
                &line,
                regex!(r"(\[?[0-9a-f]*:[0-9a-f:]+\]?|\d+\.\d+\.\d+\.\d+|\[?\$\{\w+\}\]?):\d+"),
                |_| "<address>".to_owned(),
            );
            let line = replace(&line, regex!(r"=((0x)?[0-9a-f]+(sec)?\b|\$\{\w+\})"), |_| {
                "=<n>".to_owned()
            });
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        })
        .filter(|line| !line.is_empty())
        .collect();
    all.sort();
    all.dedup();
    all
}

/// Removes the entries of maps of flows from listings of maps, if those that were found are of the kinds that the
/// recording has: which flows there are differs.
pub(crate) fn without_flows(expected: &mut Value, found: &mut Value) -> bool {
    let mut removed = false;
    for map in maps(expected) {
        if !["cilium_ct", "cilium_snat_"]
            .iter()
            .any(|start| map.starts_with(start))
        {
            continue;
        }
        let (Some(expected), Some(found)) = (entries(expected, &map), entries(found, &map)) else {
            continue;
        };
        let [of_expected, of_found] = [&*expected, &*found].map(|entries| texts(entries));
        let kinds = kinds(&of_expected);
        let is_of_kinds = kinds.is_empty() || self::kinds(&of_found).is_subset(&kinds);
        if is_of_kinds && of_expected != of_found {
            expected.clear();
            found.clear();
            removed = true;
        }
    }
    removed
}

/// Forms of entries of flows: protocols and directions are numbers, too.
fn kinds(text: &str) -> BTreeSet<String> {
    let any_flow = |shape: &String| {
        replace(shape, regex!(r"> <address>, \d+, \d+"), |_| {
            "> <address>".to_owned()
        })
    };
    shapes(text).iter().map(any_flow).collect()
}

/// Removes the entries of maps that have no cache in the recording.
pub(crate) fn without_caches(expected: &mut Value, found: &mut Value) -> bool {
    let mut removed = false;
    for map in maps(expected) {
        let (Some(of_expected), Some(of_found)) = (part(expected, &map), part(found, &map)) else {
            continue;
        };
        let is_without = match &*of_expected {
            Value::Array(section) => section.get(1).is_some_and(|line| line == "Cache is disabled"),
            entry => entry["path"].is_string() && entry["cache"].is_null(),
        };
        if is_without && of_expected != of_found {
            *of_expected = Value::Null;
            *of_found = Value::Null;
            removed = true;
        }
    }
    removed
}

/// Removes maps that only one of the listings has; those of endpoints have other numbers.
pub(crate) fn without_others(expected: &mut Value, found: &mut Value) -> bool {
    let names = [&*found, &*expected].map(maps);
    let mut removed = false;
    for (listing, others) in [expected, found].into_iter().zip(names) {
        let Some(parts) = parts(listing) else { continue };
        let before = parts.len();
        parts.retain(|part| match maps(part).first() {
            Some(name) => name.starts_with("cilium_policy_v2_") || others.contains(name),
            None => true,
        });
        removed |= parts.len() < before;
    }
    removed
}

/// A list of maps as JSON, of sections or of rows.
fn parts(listing: &mut Value) -> Option<&mut Vec<Value>> {
    match listing {
        Value::Array(list) => Some(list),
        Value::Object(object) => object.get_mut("maps")?.as_array_mut(),
        _ => None,
    }
}

/// A map in a listing.
fn part<'a>(listing: &'a mut Value, map: &str) -> Option<&'a mut Value> {
    parts(listing)?.iter_mut().find(|part| maps(part) == [map])
}

/// Entries of a map in a listing.
fn entries<'a>(listing: &'a mut Value, map: &str) -> Option<&'a mut Vec<Value>> {
    match part(listing, map)? {
        Value::Array(section) => Some(section),
        part => part.get_mut("cache")?.as_array_mut(),
    }
}

fn texts(entries: &[Value]) -> String {
    let text = |value: &Value| match value.as_str().unwrap_or_default().trim() {
        text if ["## ", "Key ", "Cache "]
            .iter()
            .any(|start| text.starts_with(start)) =>
        {
            String::new()
        }
        text => text.to_owned(),
    };
    let lines = entries.iter().map(|entry| match entry {
        Value::Object(entry) => format!("{} {}\n", text(&entry["key"]), text(&entry["value"])),
        entry => text(entry) + "\n",
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn flows_of_recorded_kinds_are_left_out_of_listings() {
        let listing = |path: &str, key: &str| json!({"maps": [{"path": path, "cache": [{"key": key, "value": "expires=5 \n"}]}]});
        let path = "/sys/fs/bpf/tc/globals/cilium_ct4_global";
        let mut expected = listing(path, "${A_IPV4}:5 --> 10.0.0.2:6, 6, 1");
        let mut found = listing(path, "10.0.0.7:1 --> 10.0.0.3:2, 6, 1");
        let mut other = listing(path, "10.0.0.7:1 -> 10.0.0.3:2, 17, 1");

        assert!(!without_flows(&mut expected.clone(), &mut other));
        assert!(without_flows(&mut expected, &mut found));

        assert_eq!(expected["maps"][0]["cache"], json!([]));
        assert_eq!(found, expected);
    }

    #[test]
    fn maps_of_one_listing_and_without_a_cache_are_left_out() {
        let mut expected = json!([
            ["## Map: cilium_a", "Cache is disabled"],
            ["## Map: cilium_b", "Cache is empty"]
        ]);
        let mut found = json!([["## Map: cilium_a", "1 2"], ["## Map: cilium_c", "3 4"]]);

        assert!(without_others(&mut expected, &mut found));
        assert_eq!(found, json!([["## Map: cilium_a", "1 2"]]));
        assert!(without_caches(&mut expected, &mut found));

        assert_eq!(found, json!([null]));
        assert_eq!(found, expected);
    }

    #[test]
    fn rows_have_their_continuations_and_no_counters() {
        let text = "ID   LABELS   BYTES\n1    a        \n     b        \n2    c        17\n";

        assert_eq!(rows(text), json!(["ID LABELS BYTES", ["1 a", "b"], "2 c <n>"]));
        assert_eq!(
            rows("## Map: a\nKey   Value\n1   2\n\n## Map: b\n"),
            json!([[], ["## Map: a", "Key Value", "1 2"], ["## Map: b"]])
        );
    }

    #[test]
    fn times_and_counters_of_json_are_not_compared() {
        let found = stable(
            &json!({"success-count": 1, "lastSuccessTimestamp": "x", "log": "at 2026-06-25T12:00:00Z"}),
        );

        assert_eq!(
            found,
            json!({"lastSuccessTimestamp": "<any>", "log": "at <time>"})
        );
    }

    #[test]
    fn connections_of_the_same_kind_have_one_shape() {
        let text = "TCP OUT 10.0.0.1:5 -> 10.0.0.2:6 expires=50 Flags=0x0013 [ RxClosing ]\n\
                    TCP OUT [fd00::1]:5 -> [fd00::2]:6 expires=7 Flags=0x0010 [ SeenNonSyn ]\n";

        assert_eq!(
            shapes(text),
            ["TCP OUT <address> -> <address> expires=<n> Flags=<n> []"]
        );
    }
}
