// SPDX-License-Identifier: Apache-2.0

//! What is in a network namespace, in the form of `ip -json`, and what changed.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use serde_json::{Map, Value, json};

use crate::bindings::{Bindings, Mismatch};

/// Links, routes and settings of a network namespace.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Snapshot {
    links: BTreeMap<String, Value>,
    /// By family: `route4`, `route6`, `rule4`, `rule6`.
    lists: BTreeMap<&'static str, Vec<Value>>,
    sysctl: BTreeMap<String, String>,
}

const LISTS: [(&str, &[&str]); 4] = [
    ("route4", &["-4", "route", "show", "table", "all"]),
    ("route6", &["-6", "route", "show", "table", "all"]),
    ("rule4", &["-4", "rule"]),
    ("rule6", &["-6", "rule"]),
];
/// What is compared of an entry; the kernel makes the rest of it.
const ROUTE: [&str; 9] = [
    "type", "dst", "gateway", "dev", "table", "metric", "metrics", "scope", "protocol",
];
const LINK: [&str; 5] = ["ifname", "mtu", "address", "altnames", "group"];
const ADDRESS: [&str; 4] = ["family", "local", "prefixlen", "scope"];

fn ip(arguments: &[&str]) -> Vec<Value> {
    let output = Command::new("ip").args(["-j", "-d"]).args(arguments).output();
    let output = output.map(|output| output.stdout).unwrap_or_default();
    serde_json::from_slice(&output).unwrap_or_default()
}

fn part(object: &Value, keys: &[&str]) -> Map<String, Value> {
    let present = keys.iter().filter(|key| !object[**key].is_null());
    present
        .map(|key| ((*key).to_owned(), object[*key].clone()))
        .collect()
}

fn link(object: &Value) -> Value {
    let mut found = part(object, &LINK);
    let addresses = object["addr_info"].as_array().into_iter().flatten();
    // The kernel makes link-local addresses, and checks them for a while.
    let global = addresses.filter(|address| address["scope"] != "link");
    let global: Value = global
        .map(|address| part(address, &ADDRESS))
        .map(Value::Object)
        .collect();
    found.insert("addr_info".to_owned(), global);
    found.insert("kind".to_owned(), object["linkinfo"]["info_kind"].clone());
    found.into()
}

/// A route that a program made, but for those of the agent's own interfaces.
fn entry(name: &str, object: &Value) -> Option<Value> {
    let is_of_agent = |object: &Value| {
        object["dev"]
            .as_str()
            .is_some_and(|dev| dev.starts_with("cilium_"))
    };
    match name.starts_with("route") {
        true if object["protocol"] == "kernel" || is_of_agent(object) => None,
        true => Some(part(object, &ROUTE).into()),
        false => Some(object.clone()),
    }
}

impl Snapshot {
    /// What is in the namespace of the calling thread.
    pub(crate) fn take() -> Self {
        let links = ip(&["addr"]);
        let name = |object: &Value| object["ifname"].as_str().unwrap_or_default().to_owned();
        let list = |(name, arguments): (&'static str, &[&str])| {
            let all = ip(arguments);
            (
                name,
                all.iter().filter_map(|object| entry(name, object)).collect(),
            )
        };
        let mut sysctl = BTreeMap::new();
        for family in ["ipv4", "ipv6"] {
            let folder = Path::new("/proc/sys/net").join(family);
            for file in fs::read_dir(folder).into_iter().flatten().flatten() {
                if let Ok(text) = fs::read_to_string(file.path()) {
                    let name = file.file_name().to_string_lossy().into_owned();
                    sysctl.insert(format!("net.{family}.{name}"), text.trim_end().to_owned());
                }
            }
        }
        Self {
            links: links.iter().map(|object| (name(object), link(object))).collect(),
            lists: LISTS.map(list).into(),
            sysctl,
        }
    }

    /// Compares what changed since `before` with the recorded changes.
    pub(crate) fn compare(
        &self,
        before: &Self,
        recorded: &Value,
        bindings: &mut Bindings,
        place: &str,
        to: &mut Vec<Mismatch>,
    ) {
        let mismatch = |place: String, expected: Value, found: Value| Mismatch {
            place,
            expected,
            found,
        };
        let listed =
            |name: &str, change: &str| recorded[name][change].as_array().cloned().unwrap_or_default();
        let mut named = Vec::new();
        for expected in listed("link", "added") {
            let name = bindings.fill_text(expected["ifname"].as_str().unwrap_or_default());
            let found = self.links.get(&name).cloned().unwrap_or_default();
            bindings.compare(&format!("{place}/{name}"), &link(&expected), &found, to);
            named.push(name);
        }
        // Changed links are not recorded.
        let added = self
            .links
            .iter()
            .filter(|(name, _)| !before.links.contains_key(*name));
        for (name, found) in added.filter(|(name, _)| !named.contains(name)) {
            to.push(mismatch(format!("{place}/{name}"), Value::Null, found.clone()));
        }
        let removed: Vec<String> = listed("link", "removed")
            .iter()
            .map(|name| bindings.fill_text(name.as_str().unwrap_or_default()))
            .collect();
        let gone = before.links.keys().filter(|name| !self.links.contains_key(*name));
        for name in gone.filter(|name| !removed.contains(name)) {
            to.push(mismatch(
                format!("{place}/{name}"),
                json!("there"),
                json!("removed"),
            ));
        }
        let left = removed
            .iter()
            .filter(|name| self.links.contains_key(*name) && !named.contains(name));
        for name in left {
            to.push(mismatch(
                format!("{place}/{name}"),
                json!("removed"),
                json!("there"),
            ));
        }
        for (name, _) in LISTS {
            self.compare_list(before, name, recorded, bindings, place, to);
        }
        let changed = self.sysctl.iter().filter_map(|(name, value)| {
            let old = before.sysctl.get(name).filter(|old| *old != value)?;
            Some((name.clone(), json!([old, value])))
        });
        let mut changed: Map<String, Value> = changed.collect();
        for (name, expected) in recorded["sysctl"].as_object().into_iter().flatten() {
            let found = changed.remove(name);
            // Another invocation in this namespace may have made the change.
            if found.as_ref() != Some(expected) && json!(self.sysctl.get(name)) != expected[1] {
                to.push(mismatch(
                    format!("{place}/{name}"),
                    expected.clone(),
                    found.unwrap_or_default(),
                ));
            }
        }
        let left = changed.into_iter();
        to.extend(left.map(|(name, found)| mismatch(format!("{place}/{name}"), Value::Null, found)));
    }

    fn compare_list(
        &self,
        before: &Self,
        name: &'static str,
        recorded: &Value,
        bindings: &mut Bindings,
        place: &str,
        to: &mut Vec<Mismatch>,
    ) {
        let place = format!("{place}/{name}");
        let listed = |change: &str| {
            let list = recorded[name][change].as_array();
            let entries = list
                .into_iter()
                .flatten()
                .filter_map(|object| entry(name, object));
            entries.collect::<Vec<_>>()
        };
        // Flags of a route whose link is down change.
        let (added_there, removed_there) = (listed("added"), listed("removed"));
        let without = |list: &[Value], other: &[Value]| {
            let left = list.iter().filter(|entry| !other.contains(entry));
            left.cloned().collect::<Vec<_>>()
        };
        let empty = Vec::new();
        let (now, then) = (
            self.lists.get(name).unwrap_or(&empty),
            before.lists.get(name).unwrap_or(&empty),
        );
        let mut added: Vec<&Value> = now.iter().filter(|entry| !then.contains(entry)).collect();
        for expected in without(&added_there, &removed_there) {
            match added.iter().position(|found| bindings.matches(&expected, found)) {
                Some(at) => _ = added.remove(at),
                None if now.iter().any(|found| bindings.matches(&expected, found)) => {}
                None => to.push(Mismatch {
                    place: place.clone(),
                    expected: bindings.fill(&expected),
                    found: added.iter().map(|found| (*found).clone()).collect(),
                }),
            }
        }
        to.extend(added.into_iter().map(|found| Mismatch {
            place: place.clone(),
            expected: Value::Null,
            found: found.clone(),
        }));
        for expected in without(&removed_there, &added_there) {
            if let Some(found) = now.iter().find(|found| bindings.matches(&expected, found)) {
                to.push(Mismatch {
                    place: format!("{place}/removed"),
                    expected: Value::Null,
                    found: found.clone(),
                });
            }
        }
    }
}
