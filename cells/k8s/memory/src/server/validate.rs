// SPDX-License-Identifier: Apache-2.0

//! Validation: names and labels of all objects, and the basics of the kinds that matter here.

mod metadata;
pub(super) mod service;

use std::net::IpAddr;

use serde_json::{Value, json};

use super::crd;
use super::schema::SchemaCompiler;
use crate::error::{ApiError, Fault};
use crate::kinds::Kind;
use crate::names;
use crate::object;

/// Refuses an object with faults.
pub(super) fn object(
    kind: &Kind,
    old: Option<&Value>,
    new: &Value,
    compiler: Option<&dyn SchemaCompiler>,
) -> Result<(), ApiError> {
    let mut faults = Vec::new();
    metadata::check(kind, old, new, &mut faults);
    match (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) {
        ("", "services") => service::check(old, new, &mut faults),
        ("", "configmaps" | "secrets") => config(kind, old, new, &mut faults),
        ("", "pods") => pod(old, new, &mut faults),
        ("discovery.k8s.io", "endpointslices") => slice(old, new, &mut faults),
        ("coordination.k8s.io", "leases") => lease(new, &mut faults),
        ("apps", _) => selector(kind, old, new, &mut faults),
        (crd::GROUP, crd::RESOURCE) => definition(new, compiler, &mut faults),
        _ => {}
    }
    if let Some(validator) = kind.custom.as_ref().and_then(|custom| custom.validator.as_ref()) {
        faults.extend(validator.validate(new, old));
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(
        &kind.gvr.group,
        &kind.kind,
        object::name(new),
        &faults,
    ))
}

fn port_range(field: String, value: Option<&Value>, faults: &mut Vec<Fault>) {
    let number = value.and_then(Value::as_i64).unwrap_or(0);
    if !(1..=65535).contains(&number) {
        faults.push(Fault::invalid(
            field,
            &number.into(),
            "must be between 1 and 65535, inclusive",
        ));
    }
}

fn one_of(new: &Value, path: &[&str], allowed: &[&str], faults: &mut Vec<Fault>) {
    let text = object::text(new, path);
    if !text.is_empty() && !allowed.contains(&text) {
        faults.push(Fault::not_supported(path.join("."), &text.into(), allowed));
    }
}

fn config(kind: &Kind, old: Option<&Value>, new: &Value, faults: &mut Vec<Fault>) {
    for part in ["data", "binaryData"] {
        for key in new
            .get(part)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
        {
            if let Some(problem) = names::config_key(key) {
                faults.push(Fault::invalid(
                    format!("{part}[{key}]"),
                    &key.as_str().into(),
                    &problem,
                ));
            }
        }
    }
    let Some(old) = old else { return };
    if old.get("immutable").and_then(Value::as_bool) == Some(true) {
        for part in ["data", "binaryData"] {
            if old.get(part) != new.get(part) {
                faults.push(Fault::forbidden(
                    part,
                    "field is immutable when `immutable` is set",
                ));
            }
        }
        if new.get("immutable").and_then(Value::as_bool) != Some(true) {
            faults.push(Fault::forbidden(
                "immutable",
                "field is immutable when `immutable` is set",
            ));
        }
    }
    if kind.gvr.resource == "secrets" && old.get("type") != new.get("type") {
        let value = new.get("type").cloned().unwrap_or_default();
        faults.push(Fault::invalid("type", &value, "field is immutable"));
    }
}

fn pod(old: Option<&Value>, new: &Value, faults: &mut Vec<Fault>) {
    let containers = object::items(new, &["spec", "containers"]);
    if containers.is_empty() {
        faults.push(Fault::required("spec.containers", ""));
    }
    one_of(
        new,
        &["spec", "restartPolicy"],
        &["Always", "OnFailure", "Never"],
        faults,
    );
    let mut seen = std::collections::HashSet::new();
    for (index, container) in containers.iter().enumerate() {
        let path = |key: &str| format!("spec.containers[{index}].{key}");
        let name = object::text(container, &["name"]);
        if name.is_empty() {
            faults.push(Fault::required(path("name"), ""));
        } else if let Some(problem) = names::label(name) {
            faults.push(Fault::invalid(path("name"), &name.into(), &problem));
        } else if !seen.insert(name) {
            faults.push(Fault::duplicate(path("name"), &name.into()));
        }
        if object::text(container, &["image"]).is_empty() {
            faults.push(Fault::required(path("image"), ""));
        }
        for (at, port) in object::items(container, &["ports"]).iter().enumerate() {
            port_range(
                path(&format!("ports[{at}].containerPort")),
                port.get("containerPort"),
                faults,
            );
            if port.get("hostPort").and_then(Value::as_i64).unwrap_or(0) != 0 {
                port_range(
                    path(&format!("ports[{at}].hostPort")),
                    port.get("hostPort"),
                    faults,
                );
            }
            let protocol = object::text(port, &["protocol"]);
            if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
                let field = path(&format!("ports[{at}].protocol"));
                faults.push(Fault::not_supported(
                    field,
                    &protocol.into(),
                    &["SCTP", "TCP", "UDP"],
                ));
            }
        }
    }
    if let Some(old) = old
        && unchangeable(old) != unchangeable(new)
    {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        faults.push(Fault::forbidden("spec", detail));
    }
}

/// What of a pod's specification can never change.
fn unchangeable(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    let Some(fields) = spec.as_object_mut() else {
        return spec;
    };
    for field in [
        "activeDeadlineSeconds",
        "terminationGracePeriodSeconds",
        "tolerations",
        "schedulingGates",
    ] {
        fields.shift_remove(field);
    }
    for list in ["containers", "initContainers"] {
        for container in fields
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(container) = container.as_object_mut() {
                container.shift_remove("image");
            }
        }
    }
    spec
}

fn slice(old: Option<&Value>, new: &Value, faults: &mut Vec<Fault>) {
    let family = object::text(new, &["addressType"]);
    if family.is_empty() {
        faults.push(Fault::required("addressType", ""));
        return;
    }
    if !matches!(family, "IPv4" | "IPv6" | "FQDN") {
        faults.push(Fault::not_supported(
            "addressType",
            &family.into(),
            &["FQDN", "IPv4", "IPv6"],
        ));
        return;
    }
    if let Some(old) = old
        && object::text(old, &["addressType"]) != family
    {
        faults.push(Fault::invalid(
            "addressType",
            &family.into(),
            "field is immutable",
        ));
    }
    let endpoints = object::items(new, &["endpoints"]);
    if endpoints.len() > 1000 {
        faults.push(Fault {
            field: "endpoints".to_owned(),
            reason: "FieldValueTooMany",
            detail: format!("Too many: {}: must have at most 1000 items", endpoints.len()),
        });
        return;
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let addresses = object::items(endpoint, &["addresses"]);
        let path = format!("endpoints[{index}].addresses");
        if addresses.is_empty() {
            faults.push(Fault::required(path.clone(), "must contain at least 1 address"));
        }
        for (at, address) in addresses.iter().enumerate() {
            let parsed = address.as_str().and_then(|a| a.parse::<IpAddr>().ok());
            let fits = match family {
                "IPv4" => parsed.is_some_and(|a| a.is_ipv4()),
                "IPv6" => parsed.is_some_and(|a| a.is_ipv6()),
                _ => address.as_str().is_some_and(|a| names::subdomain(a).is_none()),
            };
            if !fits {
                let detail = format!("must be a valid {family} address");
                faults.push(Fault::invalid(format!("{path}[{at}]"), address, &detail));
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    for (index, port) in object::items(new, &["ports"]).iter().enumerate() {
        let name = object::text(port, &["name"]);
        if !seen.insert(name) {
            faults.push(Fault::duplicate(format!("ports[{index}].name"), &name.into()));
        }
        let protocol = object::text(port, &["protocol"]);
        if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
            let field = format!("ports[{index}].protocol");
            faults.push(Fault::not_supported(
                field,
                &protocol.into(),
                &["SCTP", "TCP", "UDP"],
            ));
        }
    }
}

fn lease(new: &Value, faults: &mut Vec<Fault>) {
    for key in ["leaseDurationSeconds", "leaseTransitions"] {
        let least = if key == "leaseDurationSeconds" { 1 } else { 0 };
        if let Some(number) = object::at(new, &["spec", key]).and_then(Value::as_i64)
            && number < least
        {
            let detail = if least == 1 {
                "must be greater than 0"
            } else {
                "must be greater than or equal to 0"
            };
            faults.push(Fault::invalid(format!("spec.{key}"), &number.into(), detail));
        }
    }
}

fn selector(kind: &Kind, old: Option<&Value>, new: &Value, faults: &mut Vec<Fault>) {
    if kind.gvr.resource == "controllerrevisions" {
        return;
    }
    let selector = object::at(new, &["spec", "selector"]);
    let Some(selector) = selector else {
        faults.push(Fault::required("spec.selector", ""));
        return;
    };
    if let Some(template) = object::at(new, &["spec", "template"])
        && !crate::selector::LabelSelector::of_object(selector).matches(template)
    {
        let labels = object::at(template, &["metadata", "labels"])
            .cloned()
            .unwrap_or_default();
        let detail = "`selector` does not match template `labels`";
        faults.push(Fault::invalid("spec.template.metadata.labels", &labels, detail));
    }
    if let Some(old) = old
        && object::at(old, &["spec", "selector"]) != Some(selector)
    {
        faults.push(Fault::invalid("spec.selector", selector, "field is immutable"));
    }
}

fn definition(new: &Value, compiler: Option<&dyn SchemaCompiler>, faults: &mut Vec<Fault>) {
    let text = |path: &[&str]| object::text(new, path);
    let (group, plural) = (text(&["spec", "group"]), text(&["spec", "names", "plural"]));
    for path in [
        &["spec", "group"][..],
        &["spec", "names", "plural"],
        &["spec", "names", "kind"],
        &["spec", "scope"],
    ] {
        if text(path).is_empty() {
            faults.push(Fault::required(path.join("."), ""));
        }
    }
    if !group.is_empty() && group.split('.').count() < 2 {
        faults.push(Fault::invalid(
            "spec.group",
            &group.into(),
            "should be a domain with at least one dot",
        ));
    }
    one_of(new, &["spec", "scope"], &["Cluster", "Namespaced"], faults);
    let name = format!("{plural}.{group}");
    if object::name(new) != name {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        faults.push(Fault::invalid("metadata.name", &object::name(new).into(), detail));
    }
    let versions = object::items(new, &["spec", "versions"]);
    if versions.is_empty() {
        faults.push(Fault::required(
            "spec.versions",
            "must have exactly one version marked as storage version",
        ));
        return;
    }
    let stored = versions
        .iter()
        .filter(|v| v.get("storage").and_then(Value::as_bool) == Some(true))
        .count();
    if stored != 1 {
        let value = json!(
            versions
                .iter()
                .map(|v| object::text(v, &["name"]))
                .collect::<Vec<_>>()
        );
        let detail = "must have exactly one version marked as storage version";
        faults.push(Fault::invalid("spec.versions", &value, detail));
    }
    for (index, version) in versions.iter().enumerate() {
        if let Some(problem) = names::label_1035(object::text(version, &["name"])) {
            faults.push(Fault::invalid(
                format!("spec.versions[{index}].name"),
                &version["name"],
                &problem,
            ));
        }
        if object::at(version, &["schema", "openAPIV3Schema"]).is_none() {
            let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
            faults.push(Fault::required(field, "schemas are required"));
        }
    }
    if let Some(compiler) = compiler {
        faults.extend(compiler.check(versions));
    }
}
