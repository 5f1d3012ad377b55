// SPDX-License-Identifier: Apache-2.0

//! Prints the reference of custom resources: `tests/hack/generate.sh` writes it to `docs/reference/crds.md`.

use serde_json::Value;
use skep_k8s_crds::definitions;

fn main() {
    for definition in definitions::cilium().iter().chain(&definitions::multi_cluster()) {
        let scope = match definition.namespaced {
            true => "namespaced",
            false => "of the cluster",
        };
        println!("\n## {}\n", definition.kind);
        print!("`{}.{}`, {scope}", definition.plural, definition.group);
        if !definition.short_names.is_empty() {
            print!("; short: `{}`", definition.short_names.join("`, `"));
        }
        println!(".");
        for version in &definition.versions {
            let deprecated = if version.deprecated { " (deprecated)" } else { "" };
            println!("\n### {}{deprecated}\n", version.name);
            println!("| field | type | meaning |\n|---|---|---|");
            let parts = version.schema["properties"].as_object().into_iter().flatten();
            for (part, schema) in parts {
                if !["apiVersion", "kind", "metadata"].contains(&part.as_str()) {
                    field(part, schema);
                }
            }
        }
    }
}

/// A line for a field and each that it has.
fn field(path: &str, schema: &Value) {
    let text = |key: &str| schema[key].as_str().unwrap_or_default();
    let mut kind = match schema["x-kubernetes-int-or-string"].as_bool() {
        Some(true) => "integer or string".to_owned(),
        _ => text("type").to_owned(),
    };
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        kind = values.join(", ");
    }
    let meaning = text("description").replace('\n', " ").replace('|', "\\|");
    println!("| `{path}` | {kind} | {meaning} |");
    if let Some(properties) = schema["properties"].as_object() {
        for (name, of_field) in properties {
            field(&format!("{path}.{name}"), of_field);
        }
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(inner) = schema.get(key).filter(|inner| inner["properties"].is_object()) {
            for (name, of_field) in inner["properties"].as_object().into_iter().flatten() {
                field(&format!("{path}{suffix}.{name}"), of_field);
            }
        }
    }
}
