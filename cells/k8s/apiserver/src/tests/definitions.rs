// SPDX-License-Identifier: Apache-2.0

//! Definitions of custom resources.

use super::*;

fn definitions() -> Gvr {
    Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

fn definition(plural: &str, kind: &str, schema: Value) -> Value {
    json!({
        "metadata": { "name": format!("{plural}.example.com") },
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": { "plural": plural, "kind": kind },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    })
}

#[test]
fn definitions_are_served_at_once() {
    let server = server();
    let definitions = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let definition = json!({
        "metadata": { "name": "colors.example.com" },
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": { "plural": "colors", "kind": "Color" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "properties": { "rgb": { "type": "string", "default": "000" } } },
                } } },
            }],
        },
    });

    let mut with_conversion = definition.clone();
    with_conversion["spec"]["conversion"] = json!({ "strategy": "Webhook" });
    let dry = WriteOptions {
        dry_run: true,
        ..by("t")
    };
    let warnings = server
        .create(&definitions, "", with_conversion, &dry)
        .unwrap()
        .warnings;
    assert_eq!(
        warnings,
        ["spec.conversion: this server calls no webhooks, versions are not converted"]
    );

    let created = server
        .create(&definitions, "", definition, &by("t"))
        .unwrap()
        .object;
    assert_eq!(created["status"]["conditions"][1]["type"], "Established");
    assert_eq!(created["spec"]["names"]["listKind"], "ColorList");

    let colors = Gvr::new("example.com", "v1", "colors");
    let color = json!({ "metadata": { "name": "red" }, "spec": { "extra": 1 } });
    let created = server.create(&colors, "default", color, &by("t")).unwrap();
    assert_eq!(created.object["spec"], json!({ "rgb": "000" }));
    assert_eq!(created.warnings, ["unknown field \"spec.extra\""]);

    server
        .delete(&definitions, "", "colors.example.com", &DeleteOptions::default())
        .unwrap();
    assert!(
        server
            .list(&colors, None, &ListOptions::default())
            .unwrap_err()
            .is_not_found()
    );
}

#[test]
fn rules_are_judged_when_objects_are_written() {
    let server = server();
    let schema = json!({ "type": "object", "properties": { "spec": {
        "type": "object",
        "properties": { "size": { "type": "integer", "maximum": 9 }, "name": { "type": "string", "maxLength": 3 } },
        "x-kubernetes-validations": [
            { "rule": "!has(self.size) || self.size >= 1", "message": "size is too small" },
            { "rule": "!has(oldSelf.size) || self.size >= oldSelf.size", "message": "size must not shrink" },
        ],
    } }, "x-kubernetes-validations": [{ "rule": "self.metadata.name != 'bad'" }] });
    server
        .create(&definitions(), "", definition("boxes", "Box", schema), &by("t"))
        .unwrap();
    let boxes = Gvr::new("example.com", "v1", "boxes");
    let write = |name: &str, spec: Value| {
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        server.create(&boxes, "default", object, &by("t"))
    };

    write("a", json!({ "size": 5 })).unwrap();
    let error = write("b", json!({ "size": 0 })).unwrap_err();
    assert_eq!(
        error.message,
        "Box.example.com \"b\" is invalid: spec: Invalid value: \"object\": size is too small"
    );
    let error = write("bad", json!({})).unwrap_err();
    assert_eq!(
        error.message,
        "Box.example.com \"bad\" is invalid: <nil>: Invalid value: \"object\": failed rule: self.metadata.name != 'bad'"
    );
    let error = write("c", json!({ "name": "long" })).unwrap_err();
    assert_eq!(
        error.message,
        "Box.example.com \"c\" is invalid: [spec.name: Too long: may not be more than 3 bytes, <nil>: Invalid value: \"null\": \
         some validation rules were not checked because the object was invalid; correct the existing errors to complete \
         validation]"
    );
    let shrink = Patch::Merge(json!({ "spec": { "size": 4 } }));
    let error = server
        .patch(&boxes, "default", "a", Subresource::None, &shrink, &by("t"))
        .unwrap_err();
    assert!(error.message.ends_with("size must not shrink"), "{error}");
}

#[test]
fn refuses_definitions_whose_rules_make_no_sense() {
    let schema = json!({ "type": "object", "properties": { "spec": {
        "type": "object", "properties": {}, "x-kubernetes-validations": [{ "rule": "self.size > 1" }],
    } } });

    let error = server()
        .create(&definitions(), "", definition("boxes", "Box", schema), &by("t"))
        .unwrap_err();

    let field = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule";
    assert!(error.message.contains(field), "{error}");
    assert!(error.message.contains("undefined field 'size'"), "{error}");
}

#[test]
fn a_definition_waits_for_names_that_another_one_has() {
    let server = server();
    let schema = json!({ "type": "object" });
    let first = definition("boxes", "Box", schema.clone());
    let second = definition("crates", "Box", schema);
    server.create(&definitions(), "", first, &by("t")).unwrap();

    let created = server
        .create(&definitions(), "", second, &by("t"))
        .unwrap()
        .object;

    let conditions = &created["status"]["conditions"];
    assert_eq!(conditions[0]["reason"], "SingularConflict");
    assert_eq!(conditions[0]["message"], "\"box\" is already in use");
    assert_eq!(
        (&conditions[1]["status"], &conditions[1]["reason"]),
        (&json!("False"), &json!("NotAccepted"))
    );
    let crates = Gvr::new("example.com", "v1", "crates");
    assert!(
        server
            .list(&crates, None, &ListOptions::default())
            .unwrap_err()
            .is_not_found()
    );

    server
        .delete(&definitions(), "", "boxes.example.com", &DeleteOptions::default())
        .unwrap();

    server.list(&crates, None, &ListOptions::default()).unwrap();
}
