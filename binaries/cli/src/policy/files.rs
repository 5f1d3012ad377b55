// SPDX-License-Identifier: Apache-2.0

//! `skep policy validate` and `diff`: policies of files.

use std::{collections::BTreeMap, error::Error, path::PathBuf};

use clap::Args;
use serde::de::Deserialize as _;
use serde_json::Value;
use skep_base_api_client::Client;
use skep_policy_model::{
    Content, Context, ObjectError, PolicyObject, PolicySettings, document, object::Service,
    validate as validate_objects,
};

use super::{ObjectName, object_name, rules};
use crate::{
    failure::{Failure, fatal},
    print::{self, Format},
};

/// Files, and the settings that rules depend on.
#[derive(Debug, Args)]
pub(crate) struct FileOptions {
    /// Files with objects in YAML or JSON; `-` for the standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Name of the cluster.
    #[arg(long, default_value = "default")]
    cluster_name: String,
    /// Accept CiliumNetworkPolicies with all protocols (`enable-extended-ip-protocols`).
    #[arg(long)]
    extended_protocols: bool,
    /// Accept node selectors in rules (`enable-node-selector-labels`).
    #[arg(long)]
    node_selector_labels: bool,
    /// Accept what Cilium accepts (`policy-fail-open-corners`).
    #[arg(long)]
    fail_open_corners: bool,
}

impl FileOptions {
    fn settings(&self) -> PolicySettings {
        PolicySettings {
            cluster: self.cluster_name.as_str().into(),
            extended_protocols: self.extended_protocols,
            node_selector_labels: self.node_selector_labels,
            fail_open: self.fail_open_corners,
            dual_stack: true,
            ..PolicySettings::default()
        }
    }

    /// The objects of the files; of lists their items.
    fn objects(&self) -> Result<Vec<(String, Value)>, Box<dyn Error>> {
        let mut objects = Vec::new();
        for path in &self.files {
            let file = path.display().to_string();
            let failed = |error: &dyn Error| fatal(format!("cannot read {file}: {error}"));
            let text = match file.as_str() {
                "-" => std::io::read_to_string(std::io::stdin()),
                _ => std::fs::read_to_string(path),
            };
            let text = text.map_err(|error| failed(&error))?;
            for document in serde_norway::Deserializer::from_str(&text) {
                let mut object = Value::deserialize(document).map_err(|error| failed(&error))?;
                match object.get_mut("items").map(Value::take) {
                    Some(Value::Array(items)) => {
                        objects.extend(items.into_iter().map(|item| (file.clone(), item)));
                    }
                    // A document without content.
                    _ if object.is_null() => {}
                    _ => objects.push((file.clone(), object)),
                }
            }
        }
        Ok(objects)
    }
}

/// `Kind namespace/name`.
fn title([kind, namespace, name]: &ObjectName) -> String {
    match namespace.is_empty() {
        true => format!("{kind} {name}"),
        false => format!("{kind} {namespace}/{name}"),
    }
}

fn name_of(object: &PolicyObject) -> ObjectName {
    [
        object.kind.name().to_owned(),
        object.namespace.clone(),
        object.name.clone(),
    ]
}

fn chain(error: &ObjectError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

pub(super) fn validate(options: &FileOptions, format: Format) -> Result<String, Box<dyn Error>> {
    let mut objects = options.objects()?;
    objects.retain(|(_, object)| !is_about_service(object));
    let parsed = validate_objects(objects.iter().map(|(_, object)| object), &options.settings());
    let is_valid = parsed.iter().all(Result::is_ok);
    let mut lines = Vec::new();
    let mut documents = Vec::new();
    for ((file, _), result) in objects.iter().zip(&parsed) {
        let (name, rules, warnings) = match result {
            Ok(object) => match &object.content {
                Content::Rules(set) => (title(&name_of(object)), set.rules.len(), set.warnings.clone()),
                Content::CidrGroup(group) => {
                    let invalid = group.invalid.iter().map(|text| format!("`{text}` is no network"));
                    (title(&name_of(object)), 0, invalid.collect())
                }
            },
            Err(error) => {
                lines.push(format!("{file}: invalid: {}", chain(error)));
                documents.push(serde_json::json!({ "file": file, "valid": false, "error": chain(error) }));
                continue;
            }
        };
        lines.push(format!("{file}: {name}: valid, {rules} rules"));
        lines.extend(
            warnings
                .iter()
                .map(|warning| format!("{file}: {name}: warning: {warning}")),
        );
        documents.push(serde_json::json!({
            "file": file, "object": name, "valid": true, "rules": rules, "warnings": warnings,
        }));
    }
    let text = match format {
        Format::Text => lines.join("\n") + "\n",
        _ => print::value(&documents.into(), format),
    };
    match is_valid {
        true => Ok(text),
        false => Err(Failure::Printed(text.trim_end().to_owned()).into()),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn namespace_of(object: &Value) -> String {
    match text(&object["metadata"]["namespace"]) {
        namespace if namespace.is_empty() => "default".to_owned(),
        namespace => namespace,
    }
}

/// An object that policies of the files may refer to.
fn is_about_service(object: &Value) -> bool {
    ["Service", "EndpointSlice"]
        .iter()
        .any(|kind| object["kind"] == *kind)
}

/// Services among the objects, which `toServices` is about, with the endpoints of their EndpointSlices.
fn services(objects: &[(String, Value)]) -> Vec<Service> {
    let map = |value: &Value| -> BTreeMap<String, String> {
        let fields = value.as_object().into_iter().flatten();
        fields.map(|(key, value)| (key.clone(), text(value))).collect()
    };
    let of_kind = |kind: &'static str| {
        let objects = objects.iter().map(|(_, object)| object);
        objects.filter(move |object| object["kind"] == kind)
    };
    let services = of_kind("Service").map(|service| {
        let (namespace, name) = (namespace_of(service), text(&service["metadata"]["name"]));
        let slices = of_kind("EndpointSlice").filter(|slice| {
            let of = &slice["metadata"]["labels"]["kubernetes.io/service-name"];
            *of == *name && namespace_of(slice) == namespace
        });
        let endpoints = slices.filter_map(|slice| slice["endpoints"].as_array()).flatten();
        let addresses = endpoints
            .filter_map(|endpoint| endpoint["addresses"].as_array())
            .flatten();
        Service {
            labels: map(&service["metadata"]["labels"]),
            selector: map(&service["spec"]["selector"]),
            backends: addresses
                .filter_map(|address| address.as_str()?.parse().ok())
                .collect(),
            namespace,
            name,
        }
    });
    services.collect()
}

/// Rules of an object without what only the API server knows.
type Rules = BTreeMap<ObjectName, Vec<String>>;

fn add(rules: &mut Rules, name: ObjectName, mut rule: Value) {
    if let Some(labels) = rule["Labels"].as_array_mut() {
        labels.retain(|label| label["key"] != "io.cilium.k8s.policy.uid");
    }
    rules.entry(name).or_default().push(rule.to_string());
}

pub(super) fn diff(agent: &Client, options: &FileOptions) -> Result<String, Box<dyn Error>> {
    let mut wanted = Rules::new();
    let objects = options.objects()?;
    let (settings, services) = (options.settings(), services(&objects));
    let context = Context {
        settings: &settings,
        services: &services,
    };
    for (file, object) in objects.iter().filter(|(_, object)| !is_about_service(object)) {
        let parsed = PolicyObject::parse(object, &context);
        let parsed = parsed.map_err(|error| fatal(format!("{file}: {}", chain(&error))))?;
        let Content::Rules(set) = &parsed.content else {
            continue;
        };
        wanted.entry(name_of(&parsed)).or_default();
        for rule in &set.rules {
            let rule = serde_json::to_value(document::entry(rule, Some(object)))?;
            add(&mut wanted, name_of(&parsed), rule);
        }
    }
    let mut found = Rules::new();
    for rule in rules(agent)? {
        add(&mut found, object_name(&rule), rule);
    }
    let mut out = String::new();
    for (name, rules) in &wanted {
        let known = found.get(name).map(Vec::as_slice).unwrap_or_default();
        let gone = known
            .iter()
            .filter(|rule| !rules.contains(rule))
            .map(|rule| format!("- {rule}\n"));
        let new = rules
            .iter()
            .filter(|rule| !known.contains(rule))
            .map(|rule| format!("+ {rule}\n"));
        let lines: String = gone.chain(new).collect();
        if !lines.is_empty() {
            out.push_str(&format!("{}\n{lines}", title(name)));
        }
    }
    match out.is_empty() {
        true => Ok(out),
        false => Err(Failure::Printed(out.trim_end().to_owned()).into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(text: &str) -> (tempfile::NamedTempFile, FileOptions) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let options = FileOptions {
            files: vec![file.path().to_owned()],
            cluster_name: "default".to_owned(),
            extended_protocols: false,
            node_selector_labels: false,
            fail_open_corners: false,
        };
        (file, options)
    }

    #[test]
    fn files_are_validated_without_an_agent() {
        let valid = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: np, namespace: shop}\nspec: {podSelector: {}}\n";
        let (file, options) = options(&format!("---\n{valid}"));
        let file = file.path().display();
        assert_eq!(
            validate(&options, Format::Text).unwrap(),
            format!("{file}: NetworkPolicy shop/np: valid, 1 rules\n")
        );
        assert_eq!(options.objects().unwrap()[0].1["kind"], json!("NetworkPolicy"));

        let invalid = "kind: CiliumNetworkPolicy\nmetadata: {name: p, namespace: shop}\nspec: {endpointSelector: {}, ingress: [{fromCIDR: [10.0.0.0/33]}]}\n";
        let (_file, options) = self::options(&format!("{valid}---\n{invalid}"));
        let error = validate(&options, Format::Text).unwrap_err().to_string();
        assert!(error.contains(": valid, 1 rules\n"), "{error}");
        assert!(error.contains("spec.ingress[0].fromCIDR[0]"), "{error}");
    }
    #[test]
    fn services_of_files_have_their_selectors_or_endpoints() {
        let text = "kind: Service\nmetadata: {name: db, labels: {a: b}}\nspec: {selector: {app: db}}\n---\n\
                    kind: Service\nmetadata: {name: legacy, namespace: shop}\n---\n\
                    kind: EndpointSlice\nmetadata: {namespace: shop, labels: {kubernetes.io/service-name: legacy}}\n\
                    endpoints: [{addresses: [192.0.2.1]}]\n";
        let (_file, options) = options(text);

        let found = services(&options.objects().unwrap());

        assert_eq!(
            (&*found[0].namespace, &*found[0].selector["app"]),
            ("default", "db")
        );
        assert_eq!(
            found[1].backends,
            ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]
        );
        assert_eq!(validate(&options, Format::Text).unwrap().trim(), "");
    }
}
