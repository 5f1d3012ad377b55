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
