// SPDX-License-Identifier: Apache-2.0

//! Owners of what the server itself writes.

use serde_json::{Value, json};
use skep_k8s_memory::{Gvr, Patch, Subresource};

use super::{NAME, Space, by};

#[test]
fn the_status_has_owners_of_its_own() {
    let gvr = Gvr::new("", "v1", "pods");
    let space = Space::new(&gvr, None);
    let image = |image: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": NAME },
            "spec": { "containers": [{ "name": "c", "image": image }] },
            "status": { "phase": "Running" },
        })
    };
    let status = |phase: &str| json!({ "metadata": { "name": NAME }, "status": { "phase": phase } });
    let owners = |object: &Value| -> Vec<Value> {
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let show = |entry: &Value| {
            json!([
                entry["manager"],
                entry["subresource"],
                entry["fieldsV1"]["f:status"]
            ])
        };
        entries.iter().map(show).collect()
    };

    let created = space.apply("user", &image("x:1"), false).unwrap();
    assert_eq!(created["status"]["phase"], "Pending");
    let patch = |phase: &str| {
        let options = by("kubelet");
        let patch = Patch::Apply(status(phase));
        let written = space
            .api
            .patch(&space.gvr, "default", NAME, Subresource::Status, &patch, &options);
        (*written.unwrap().object).clone()
    };
    patch("Running");
    let again = space.apply("user", &image("x:2"), false).unwrap();

    assert_eq!(again["status"]["phase"], "Running");
    assert_eq!(
        owners(&again),
        [
            json!(["kubelet", "status", { "f:phase": {} }]),
            json!(["user", null, null]),
        ]
    );
}

#[test]
fn what_the_server_allocates_has_no_owner() {
    let space = Space::new(&Gvr::new("", "v1", "services"), None);
    let spec = json!({ "type": "NodePort", "ports": [{ "port": 80 }] });
    let owned = |object: &Value, manager: &str| -> Vec<String> {
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["manager"] == manager).unwrap();
        entry["fieldsV1"]["f:spec"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };

    let created = space
        .create("user", &json!({ "metadata": { "name": NAME }, "spec": spec }))
        .unwrap();
    // Defaults belong to who created the service, addresses and node ports do not.
    let mut fields = owned(&created, "user");
    fields.sort();
    let expected = [
        "f:externalTrafficPolicy",
        "f:internalTrafficPolicy",
        "f:ports",
        "f:sessionAffinity",
        "f:type",
    ];
    assert_eq!(fields, expected);
    assert!(created["spec"]["ports"][0]["nodePort"].is_number());
    let entry = created["metadata"]["managedFields"][0].to_string();
    assert!(!entry.contains("nodePort"), "{entry}");

    // Who asks for the address owns it, also after an update that leaves it out and does not change it.
    let address =
        json!({ "metadata": { "name": NAME }, "spec": { "clusterIP": created["spec"]["clusterIP"] } });
    space.apply("owner", &address, false).unwrap();
    let mut without = space.live();
    without["metadata"]
        .as_object_mut()
        .unwrap()
        .shift_remove("managedFields");
    without["spec"] = spec;
    let updated = space.put("user", &without).unwrap();
    assert_eq!(updated["spec"]["clusterIP"], created["spec"]["clusterIP"]);
    assert_eq!(owned(&updated, "owner"), ["f:clusterIP"]);
}
