// SPDX-License-Identifier: Apache-2.0

use super::*;

const SERVICE: Shape = Shape::Named("core.v1.Service");

fn by(name: &str) -> Manager<'_> {
    Manager {
        name,
        api_version: "v1",
        subresource: "",
        status_apart: true,
    }
}

#[track_caller]
fn applies(live: Option<&Value>, config: Value, manager: &str, force: bool) -> Value {
    let (mut new, ownership) = apply(&SERVICE, live, &config, &by(manager), force).unwrap();
    ownership.finish(&SERVICE, live, &mut new, &by(manager));
    new
}

#[track_caller]
fn refused(live: &Value, config: Value, manager: &str) -> String {
    match apply(&SERVICE, Some(live), &config, &by(manager), false) {
        Ok((new, _)) => panic!("applied: {new}"),
        Err(error) => error.message,
    }
}

fn updates(old: Option<&Value>, mut new: Value, manager: &str) -> Value {
    let ownership = Ownership::update(&SERVICE, old, &new, &by(manager));
    ownership.finish(&SERVICE, old, &mut new, &by(manager));
    new
}

/// Managers, operations and fields.
fn owners(object: &Value) -> Value {
    object::items(object, &["metadata", "managedFields"])
        .iter()
        .map(|entry| json!([entry["manager"], entry["operation"], entry["fieldsV1"]]))
        .collect()
}

#[test]
fn one_manager_has_an_entry_for_each_version_it_updates() {
    let first = updates(None, json!({ "spec": { "type": "NodePort" } }), "a");
    let mut new = first.clone();
    new["spec"]["clusterIP"] = "x".into();
    let later = Manager {
        api_version: "v2",
        ..by("a")
    };
    Ownership::update(&SERVICE, Some(&first), &new, &later).finish(&SERVICE, Some(&first), &mut new, &later);

    assert_eq!(
        owners(&new),
        json!([
            ["a", "Update", { "f:spec": { "f:type": {} } }],
            ["a", "Update", { "f:spec": { "f:clusterIP": {} } }],
        ])
    );
}

#[test]
fn an_object_without_managers_gets_one_before_its_first_apply() {
    let live = json!({ "metadata": { "name": "x" }, "spec": { "type": "NodePort", "clusterIP": "x" } });
    let config = json!({ "spec": { "type": "NodePort" } });

    assert_eq!(
        refused(&live, json!({ "spec": { "clusterIP": "y" } }), "a"),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .spec.clusterIP"
    );
    let first = applies(Some(&live), config, "a", false);
    let second = applies(Some(&first), json!({ "spec": {} }), "a", false);

    assert_eq!(second["spec"], live["spec"]);
}

#[test]
fn clients_set_and_reset_managers() {
    let live = applies(None, json!({ "spec": { "type": "NodePort" } }), "a", false);
    let with = |managers: Value| {
        let mut sent = live.clone();
        sent["metadata"]["managedFields"] = managers;
        owners(&updates(Some(&live), sent, "b"))
    };
    let entry = |operation: &str| {
        let fields = json!({ "f:spec": { "f:clusterIP": {} } });
        json!([{ "manager": "c", "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields }])
    };

    assert_eq!(with(json!([{}])), json!([]));
    assert_eq!(
        with(entry("Apply")),
        json!([["c", "Apply", { "f:spec": { "f:clusterIP": {} } }]])
    );
    // Clients that do not know the field change nothing, and neither do those that get it wrong.
    for ignored in [json!([]), Value::Null, entry("Nonsense")] {
        assert_eq!(with(ignored), owners(&live));
    }
}
