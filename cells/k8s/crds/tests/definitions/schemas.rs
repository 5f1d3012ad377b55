// SPDX-License-Identifier: Apache-2.0

//! Every field of every schema, with all that bounds it, against the list in `testdata/trees.txt`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use skep_k8s_crds::{Definition, definitions};

/// The patterns by the names that the list uses.
fn patterns() -> BTreeMap<String, String> {
    include_str!("../../testdata/patterns.txt")
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, pattern)| (name.to_owned(), pattern.to_owned()))
        .collect()
}

/// The schemas of the list: kind and version, with the lines of their fields.
fn listed() -> BTreeMap<String, BTreeSet<String>> {
    let mut shapes: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut shape, mut kind) = (String::new(), String::new());
    for line in include_str!("../../testdata/trees.txt").lines().skip(2) {
        if let Some(rest) = line.strip_prefix("= ") {
            let (name, bounds) = rest.split_once(' ').unwrap();
            shape = name.to_owned();
            shapes.insert(shape.clone(), (bounds.to_owned(), Vec::new()));
        } else if let Some(name) = line.strip_prefix("# ") {
            kind = name.to_owned();
            kinds.insert(kind.clone(), Vec::new());
        } else if line.starts_with('.') {
            shapes.get_mut(&shape).unwrap().1.push(line.to_owned());
        } else {
            kinds.get_mut(&kind).unwrap().push(line.to_owned());
        }
    }
    let expand = |lines: Vec<String>| {
        let mut out = BTreeSet::new();
        let mut queue = lines;
        while let Some(line) = queue.pop() {
            let (path, bounds) = line.split_once("  ").unwrap();
            let (ty, more) = bounds.trim().split_once(' ').unwrap_or((bounds.trim(), ""));
            match shapes.get(ty) {
                Some((own, fields)) => {
                    out.insert(normal(path, &format!("{own} {more}")));
                    let below = path.trim_end_matches('*');
                    queue.extend(fields.iter().map(|field| format!("{below}{field}")));
                }
                None => {
                    out.insert(normal(path, bounds));
                }
            }
        }
        out
    };
    kinds
        .into_iter()
        .map(|(name, lines)| (name, expand(lines)))
        .collect()
}

/// A line in the form of [`field`]: what bounds it sorted, the rules last.
fn normal(path: &str, bounds: &str) -> String {
    let (bounds, rules) = bounds
        .split_once(" cel[")
        .map_or((bounds, String::new()), |(bounds, rules)| {
            (bounds, format!(" cel[{rules}"))
        });
    // What has blanks inside is one word.
    let mut words: Vec<String> = Vec::new();
    let mut open = String::new();
    for part in bounds.split_whitespace() {
        let word = if open.is_empty() {
            part.to_owned()
        } else {
            format!("{open} {part}")
        };
        let is_open = word.matches('(').count() > word.matches(')').count();
        if is_open || word == "len" {
            open = word;
        } else {
            words.push(word);
            open = String::new();
        }
    }
    words[1..].sort();
    format!("{path}  {}{}", words.join(" "), rules.trim_end())
}

/// The lines of a schema below `path`.
fn lines(schema: &Value, path: &str, out: &mut BTreeSet<String>) {
    let properties = schema["properties"].as_object();
    for (name, below) in properties.into_iter().flatten() {
        if path.is_empty() && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        let required = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|key| key == name);
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        field(below, &path, if required { "*" } else { "" }, out);
    }
}

fn field(schema: &Value, path: &str, star: &str, out: &mut BTreeSet<String>) {
    let (value, list, path) = match schema["type"].as_str() {
        Some("array") => (&schema["items"], Some(schema), format!("{path}[]")),
        _ if schema["additionalProperties"].is_object() => {
            (&schema["additionalProperties"], None, format!("{path}{{}}"))
        }
        _ => (schema, None, path.to_owned()),
    };
    let mut words = Vec::new();
    if let Some(list) = list {
        let mut about = Vec::new();
        if let Some(ty) = list["x-kubernetes-list-type"].as_str() {
            let keys = list["x-kubernetes-list-map-keys"].as_array();
            let keys: Vec<&str> = keys
                .into_iter()
                .flatten()
                .map(|key| key.as_str().unwrap())
                .collect();
            about.push(if keys.is_empty() {
                ty.to_owned()
            } else {
                format!("{ty}:{}", keys.join(","))
            });
        }
        about.extend(range(list, "minItems", "maxItems"));
        about.extend(list.get("default").map(|default| format!("={default}")));
        if !about.is_empty() {
            words.push(format!("A({})", about.join(", ")));
        }
    }
    if value["x-kubernetes-map-type"] == "atomic" {
        words.push("map-type=atomic".to_owned());
    }
    if value["x-kubernetes-preserve-unknown-fields"] == true {
        words.push("keep-unknown".to_owned());
    }
    if let Some(allowed) = value["enum"].as_array() {
        let allowed: Vec<&str> = allowed.iter().map(|word| word.as_str().unwrap()).collect();
        words.push(format!("{{{}}}", allowed.join("|")));
    }
    words.extend(range(value, "minimum", "maximum"));
    words.extend(range(value, "minLength", "maxLength").map(|range| format!("len {range}")));
    if let Some(pattern) = value["pattern"].as_str() {
        let patterns = patterns();
        let known = patterns.iter().find(|(_, known)| *known == pattern);
        words.push(
            known
                .unwrap_or_else(|| panic!("{path}: unknown pattern {pattern}"))
                .0
                .clone(),
        );
    }
    if list.is_none() {
        words.extend(value.get("default").map(|default| format!("={default}")));
    }
    let is_pair = value["x-kubernetes-int-or-string"] == true;
    for key in ["oneOf", "anyOf"] {
        let branches = value[key].as_array().filter(|_| !is_pair);
        let names: Option<Vec<&str>> = branches.map(|all| {
            all.iter()
                .map(|branch| branch["required"][0].as_str().unwrap())
                .collect()
        });
        words.extend(names.map(|names| format!("{key}({})", names.join(" , "))));
    }
    words.sort();
    let ty = match (value["type"].as_str(), value["format"].as_str()) {
        _ if is_pair => "int|str".to_owned(),
        (Some("object"), None) => "obj".to_owned(),
        (Some("string"), None) => "str".to_owned(),
        (Some("string"), Some(format)) => format!("str:{format}"),
        (Some("integer"), None) => "int".to_owned(),
        (Some("integer"), Some(format)) => format.to_owned(),
        (Some("boolean"), None) => "bool".to_owned(),
        other => panic!("{path}: {other:?}"),
    };
    words.insert(0, ty);
    let mut line = format!("{path}{star}  {}", words.join(" "));
    for rule in value["x-kubernetes-validations"].as_array().into_iter().flatten() {
        line.push_str(&format!(
            " cel[{} ⇒ {}]",
            rule["rule"].as_str().unwrap(),
            rule["message"]
        ));
    }
    out.insert(line);
    if !value["additionalProperties"].is_object() {
        lines(value, &path, out);
    }
}

fn range(schema: &Value, least: &str, most: &str) -> Option<String> {
    let text = |key: &str| schema.get(key).map(ToString::to_string);
    let (least, most) = (text(least), text(most));
    (least.is_some() || most.is_some())
        .then(|| format!("{}..{}", least.unwrap_or_default(), most.unwrap_or_default()))
}

fn all() -> Vec<Definition> {
    let mut all = definitions::cilium();
    all.extend(definitions::multi_cluster());
    all
}

#[test]
fn every_field_is_as_the_api_has_it() {
    let mut listed = listed();

    for definition in all() {
        for version in &definition.versions {
            let name = format!("{} {}", definition.kind, version.name);
            let expected = listed
                .remove(&name)
                .unwrap_or_else(|| panic!("{name} is not listed"));
            let mut found = BTreeSet::new();
            lines(&version.schema, "", &mut found);

            let missing: Vec<_> = expected.difference(&found).collect();
            let extra: Vec<_> = found.difference(&expected).collect();
            assert!(
                missing.is_empty() && extra.is_empty(),
                "{name}:\nlisted only: {missing:#?}\nin the schema only: {extra:#?}"
            );
        }
    }
    assert_eq!(listed.into_keys().collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn nothing_but_what_api_servers_know_is_in_a_schema() {
    fn check(schema: &Value, path: &str) {
        const KNOWN: &[&str] = &[
            "additionalProperties",
            "anyOf",
            "default",
            "description",
            "enum",
            "format",
            "items",
            "maxItems",
            "maxLength",
            "maximum",
            "minItems",
            "minLength",
            "minimum",
            "oneOf",
            "pattern",
            "properties",
            "required",
            "type",
            "x-kubernetes-int-or-string",
            "x-kubernetes-list-map-keys",
            "x-kubernetes-list-type",
            "x-kubernetes-map-type",
            "x-kubernetes-preserve-unknown-fields",
            "x-kubernetes-validations",
        ];
        for key in schema.as_object().unwrap().keys() {
            assert!(KNOWN.contains(&key.as_str()), "{path}: {key}");
        }
        if path != "metadata"
            && !path.ends_with(".metadata")
            && schema.get("x-kubernetes-int-or-string").is_none()
        {
            assert!(schema["type"].is_string(), "{path} has no type");
        }
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            check(below, &format!("{path}.{name}"));
        }
        for key in ["items", "additionalProperties"] {
            if let Some(below) = schema.get(key) {
                check(below, &format!("{path}.{key}"));
            }
        }
    }
    for definition in all() {
        for version in &definition.versions {
            check(&version.schema, &definition.kind);
        }
    }
}

#[test]
fn rules_of_whole_objects_and_metadata_are_there() {
    for definition in all() {
        for version in &definition.versions {
            let required = version.schema["required"].as_array().into_iter().flatten();
            let wants_metadata = !matches!(
                definition.kind.as_str(),
                "CiliumNodeConfig"
                    | "CiliumPodIPPool"
                    | "CiliumCIDRGroup"
                    | "CiliumDatapathPlugin"
                    | "ServiceExport"
                    | "ServiceImport"
            );
            assert_eq!(
                required.clone().any(|name| name == "metadata"),
                wants_metadata,
                "{}",
                definition.kind
            );
            let rules = version.schema["x-kubernetes-validations"]
                .as_array()
                .map_or(0, Vec::len);
            assert_eq!(
                rules == 1,
                definition.kind.ends_with("NetworkPolicy"),
                "{}",
                definition.kind
            );
        }
    }
    let policy = definitions::cilium_network_policy();
    assert_eq!(
        policy.versions[0].schema["x-kubernetes-validations"][0],
        serde_json::json!({ "rule": "has(self.spec) || has(self.specs)", "message": "spec or specs must be provided" })
    );
}
