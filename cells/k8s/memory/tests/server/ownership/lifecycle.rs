// SPDX-License-Identifier: Apache-2.0

//! The life of a manifest: client-side apply, a patch by another manager, server-side apply with the migration that
//! kubectl does, and a manifest that drops a field.

use serde_json::{Value, json};
use skep_k8s_memory::{Gvr, Patch, Subresource, api_version};

use super::kinds::all;
use super::{NAME, Space, by};

const CSA: &str = "kubectl-client-side-apply";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

struct Life {
    gvr: Gvr,
    kind: &'static str,
    /// Without type and name.
    manifest: Value,
    /// What another manager patches in.
    patch: Value,
    /// What the manifest drops at last, as a JSON pointer.
    dropped: &'static str,
    /// What is there then, if the field has a default.
    default: Option<Value>,
}

impl Life {
    fn manifest(&self) -> Value {
        let mut manifest = self.manifest.clone();
        manifest["apiVersion"] = api_version(&self.gvr.group, &self.gvr.version).into();
        manifest["kind"] = self.kind.into();
        manifest["metadata"]["name"] = NAME.into();
        manifest["metadata"]["labels"] = json!({ "app": "x", "tier": "y" });
        manifest
    }

    fn space(&self) -> Space {
        let custom = all().into_iter().find(|kind| kind.gvr == self.gvr);
        Space::new(&self.gvr, custom.and_then(|kind| kind.definition).as_ref())
    }

    fn run(&self, migrate_first: bool) {
        let (space, manifest) = (self.space(), self.manifest());
        let mut sent = manifest.clone();
        sent["metadata"]["annotations"] = json!({ LAST_APPLIED: manifest.to_string() });
        space.create(CSA, &sent).unwrap();
        space
            .patch("other", &Patch::Merge(self.patch.clone()), false)
            .unwrap();
        let before = plain(space.live());

        if migrate_first {
            space.migrate(CSA).unwrap();
        } else {
            space.apply("kubectl", &manifest, false).unwrap();
            // kubectl saves the annotation with a manager of its own.
            let mut annotation = json!({ "metadata": { "name": NAME } });
            annotation["metadata"]["annotations"] = json!({ LAST_APPLIED: manifest.to_string() });
            space.apply("kubectl-last-applied", &annotation, true).unwrap();
            space.migrate(CSA).unwrap();
        }
        let moved = space.apply("kubectl", &manifest, false).unwrap();
        assert_eq!(
            plain(moved),
            before,
            "{}: the migration changes nothing",
            self.kind
        );

        let mut changed = manifest.clone();
        take(&mut changed, self.dropped);
        let after = space.apply("kubectl", &changed, false).unwrap();
        let mut expected = before;
        let was = take(&mut expected, self.dropped);
        match &self.default {
            Some(default) => {
                assert_ne!(&was, default);
                put(&mut expected, self.dropped, default);
            }
            None => assert!(!was.is_null(), "{}: {} was there", self.kind, self.dropped),
        }
        assert_eq!(
            plain(after.clone()),
            expected,
            "{}: only what was dropped goes",
            self.kind
        );

        let managers: Vec<(&str, &str)> = after["metadata"]["managedFields"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| {
                (
                    entry["manager"].as_str().unwrap(),
                    entry["operation"].as_str().unwrap(),
                )
            })
            .collect();
        assert!(managers.contains(&("kubectl", "Apply")) && managers.contains(&("other", "Update")));
        assert!(
            !managers.iter().any(|(manager, _)| *manager == CSA),
            "{managers:?}"
        );
        let kept = &after["metadata"]["annotations"][LAST_APPLIED];
        if !migrate_first {
            let kept: Value = serde_json::from_str(kept.as_str().unwrap()).unwrap();
            assert_eq!(kept, changed, "client-side apply can go on");
        }
    }
}

/// Removes what is at a JSON pointer. Returns it.
fn take(value: &mut Value, pointer: &str) -> Value {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    match value.pointer_mut(parent).unwrap() {
        Value::Object(map) => map.shift_remove(last).unwrap(),
        Value::Array(items) => items.remove(last.parse().unwrap()),
        other => panic!("{other} has no parts"),
    }
}

fn put(value: &mut Value, pointer: &str, new: &Value) {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap()[last] = new.clone();
}

/// Without what every write changes, and without the annotation of client-side apply.
fn plain(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for key in ["managedFields", "resourceVersion", "generation"] {
        metadata.shift_remove(key);
    }
    let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
    if annotations
        .is_some_and(|annotations| annotations.shift_remove(LAST_APPLIED).is_some() && annotations.is_empty())
    {
        metadata.shift_remove("annotations");
    }
    object
}

fn note() -> Value {
    json!({ "metadata": { "labels": { "other": "1" }, "annotations": { "other": "2" } } })
}

fn core(kind: &'static str, plural: &str, manifest: Value, dropped: &'static str) -> Life {
    Life {
        gvr: Gvr::new("", "v1", plural),
        kind,
        manifest,
        patch: note(),
        dropped,
        default: None,
    }
}

#[track_caller]
fn check(life: &Life) {
    life.run(false);
    life.run(true);
}

#[test]
fn config_maps_move_to_server_side_apply() {
    let manifest = json!({ "data": { "a": "1", "b": "2" } });
    let patch = json!({ "data": { "z": "9" } });
    check(&Life {
        patch,
        ..core("ConfigMap", "configmaps", manifest.clone(), "/data/b")
    });
    check(&core(
        "ConfigMap",
        "configmaps",
        manifest,
        "/metadata/labels/tier",
    ));
}

#[test]
fn services_move_to_server_side_apply() {
    let manifest = json!({ "spec": {
        "type": "NodePort",
        "selector": { "app": "x" },
        "sessionAffinity": "ClientIP",
        "ports": [
            { "name": "http", "port": 80, "targetPort": 8080 },
            { "name": "dns", "port": 53, "protocol": "UDP" },
        ],
    } });
    let service = |dropped| core("Service", "services", manifest.clone(), dropped);
    check(&service("/metadata/labels/tier"));
    check(&service("/spec/ports/1"));
    check(&service("/spec/selector"));
    check(&Life {
        default: Some(8080.into()),
        ..core(
            "Service",
            "services",
            json!({ "spec": { "ports": [{ "port": 8080, "targetPort": 80 }] } }),
            "/spec/ports/0/targetPort",
        )
    });
}

#[test]
fn pods_move_to_server_side_apply() {
    let manifest = json!({ "spec": { "containers": [{
        "name": "c",
        "image": "x:1",
        "ports": [{ "containerPort": 80 }, { "containerPort": 81, "name": "b" }],
    }] } });
    check(&core("Pod", "pods", manifest, "/metadata/labels/tier"));
}

#[test]
fn deployments_move_to_server_side_apply() {
    let container = json!({
        "name": "c",
        "image": "x:1",
        "ports": [{ "containerPort": 80 }],
        "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
    });
    let manifest = json!({ "spec": {
        "minReadySeconds": 5,
        "strategy": { "type": "RollingUpdate" },
        "revisionHistoryLimit": 3,
        "selector": { "matchLabels": { "app": "x" } },
        "template": {
            "metadata": { "labels": { "app": "x" } },
            "spec": { "containers": [container] },
        },
    } });
    let deployment = |dropped| Life {
        gvr: Gvr::new("apps", "v1", "deployments"),
        patch: json!({ "spec": { "replicas": 3, "template": { "metadata": { "annotations": { "at": "now" } } } } }),
        ..core("Deployment", "deployments", manifest.clone(), dropped)
    };
    check(&deployment("/metadata/labels/tier"));
    check(&deployment("/spec/minReadySeconds"));
    check(&deployment("/spec/template/spec/containers/0/env/1"));
    check(&Life {
        default: Some(10.into()),
        ..deployment("/spec/revisionHistoryLimit")
    });
}

#[test]
fn endpoint_slices_move_to_server_side_apply() {
    let manifest = json!({
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["192.0.2.1"] }],
        "ports": [{ "name": "p", "port": 80, "protocol": "TCP" }],
    });
    let slice = |dropped| Life {
        gvr: Gvr::new("discovery.k8s.io", "v1", "endpointslices"),
        ..core("EndpointSlice", "endpointslices", manifest.clone(), dropped)
    };
    check(&slice("/metadata/labels/tier"));
    check(&slice("/ports"));
}

#[test]
fn custom_objects_move_to_server_side_apply() {
    let custom = |kind, plural, spec: Value, dropped| Life {
        gvr: Gvr::new("example.com", "v1", plural),
        ..core(kind, plural, json!({ "spec": spec }), dropped)
    };
    // The zone of an item has a default.
    let spec = json!({
        "single": "1",
        "map": { "a": "1", "b": "2" },
        "pair": { "x": "1", "y": "2" },
        "set": ["a", "b"],
        "items": [{ "name": "a", "v": "1" }, { "name": "b", "v": "2" }],
    });
    for dropped in [
        "/metadata/labels/tier",
        "/spec/map/a",
        "/spec/pair",
        "/spec/set/1",
        "/spec/items/0",
    ] {
        check(&custom("Typed", "typeds", spec.clone(), dropped));
    }
    check(&Life {
        patch: json!({ "spec": { "map": { "c": "3" }, "pair": null } }),
        ..custom(
            "Typed",
            "typeds",
            json!({ "spec": { "map": { "a": "1", "b": "2" } } })["spec"].clone(),
            "/spec/map/a",
        )
    });
    let spec = json!({ "frontend": { "ip": "192.0.2.1", "ports": [{ "port": "80" }] }, "skip": true });
    for dropped in ["/metadata/labels/tier", "/spec/skip", "/spec/frontend"] {
        check(&custom("Untyped", "untypeds", spec.clone(), dropped));
    }
}

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
