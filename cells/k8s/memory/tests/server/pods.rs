// SPDX-License-Identifier: Apache-2.0

//! What every namespace has, and what pods get.

use serde_json::{Value, json};
use skep_k8s_memory::testing::{api_server, api_server_with};
use skep_k8s_memory::{DeleteOptions, Patch, Settings, Subresource, WriteOptions};

use super::support::{core, create, delete, names, pod};

const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn with_authority() -> Settings {
    Settings {
        root_ca: Some("CERTIFICATE".to_owned()),
        ..Settings::default()
    }
}

#[test]
fn every_namespace_has_an_account_and_the_certificate() {
    let api = api_server_with(with_authority());
    create(&api, "namespaces", json!({ "metadata": { "name": "shop" } })).unwrap();

    for namespace in ["default", "kube-system", "shop"] {
        assert_eq!(
            names(&api, "serviceaccounts", namespace),
            ["default"],
            "{namespace}"
        );
        assert_eq!(names(&api, "configmaps", namespace), ["kube-root-ca.crt"]);
    }
    let config = api.get(&core("configmaps"), "shop", "kube-root-ca.crt").unwrap();
    assert_eq!(config["data"], json!({ "ca.crt": "CERTIFICATE" }));
    // Without a certificate there is nothing to hand out.
    assert!(names(&api_server(), "configmaps", "default").is_empty());
}

#[test]
fn what_every_namespace_has_comes_back_when_deleted() {
    let api = api_server_with(with_authority());
    let before = api.get(&core("serviceaccounts"), "default", "default").unwrap();

    delete(&api, "serviceaccounts", "default");
    delete(&api, "configmaps", "kube-root-ca.crt");

    let after = api.get(&core("serviceaccounts"), "default", "default").unwrap();
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(names(&api, "configmaps", "default"), ["kube-root-ca.crt"]);
    // Others stay away, and so does everything in a namespace that goes.
    create(
        &api,
        "serviceaccounts",
        json!({ "metadata": { "name": "robot" } }),
    )
    .unwrap();
    delete(&api, "serviceaccounts", "robot");
    assert_eq!(names(&api, "serviceaccounts", "default"), ["default"]);
    create(&api, "namespaces", json!({ "metadata": { "name": "shop" } })).unwrap();
    api.delete(&core("namespaces"), "", "shop", &DeleteOptions::default())
        .unwrap();
    api.delete(
        &core("serviceaccounts"),
        "shop",
        "default",
        &DeleteOptions::default(),
    )
    .unwrap();
    assert!(names(&api, "serviceaccounts", "shop").is_empty());
}

#[test]
fn pods_get_the_default_account_and_its_token() {
    let api = api_server();
    let init = json!([{ "name": "init", "image": "i" }]);

    let made = create(&api, "pods", pod("p", json!({ "initContainers": init }))).unwrap();

    let spec = &made["spec"];
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["serviceAccount"], "default");
    let volume = &spec["volumes"][0];
    let name = volume["name"].as_str().unwrap();
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    assert_eq!(volume["projected"]["defaultMode"], 420);
    assert_eq!(
        volume["projected"]["sources"],
        json!([
            { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
            { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } }] } },
        ])
    );
    let mount = json!([{ "name": name, "readOnly": true, "mountPath": MOUNT }]);
    assert_eq!(spec["containers"][0]["volumeMounts"], mount);
    assert_eq!(spec["initContainers"][0]["volumeMounts"], mount);
}

#[test]
fn a_pod_of_an_account_that_does_not_exist_is_refused() {
    let api = api_server();

    let error = create(&api, "pods", pod("p", json!({ "serviceAccountName": "robot" }))).unwrap_err();

    assert_eq!(error.code, 403);
    assert_eq!(
        error.message,
        "pods \"p\" is forbidden: error looking up service account default/robot: serviceaccount \"robot\" not found"
    );
    create(
        &api,
        "serviceaccounts",
        json!({ "metadata": { "name": "robot" } }),
    )
    .unwrap();
    // The old name of the field counts, too.
    let made = create(&api, "pods", pod("p", json!({ "serviceAccount": "robot" }))).unwrap();
    assert_eq!(made["spec"]["serviceAccountName"], "robot");
}

#[test]
fn accounts_and_pods_say_whether_the_token_is_mounted() {
    let api = api_server();
    let quiet = json!({
        "metadata": { "name": "quiet" }, "automountServiceAccountToken": false,
        "imagePullSecrets": [{ "name": "registry" }],
    });
    create(&api, "serviceaccounts", quiet).unwrap();
    let volumes = |name: &str, spec: Value| {
        let made = create(&api, "pods", pod(name, spec)).unwrap();
        (
            made["spec"]["volumes"].as_array().map_or(0, Vec::len),
            made["spec"]["imagePullSecrets"].clone(),
        )
    };
    let registry = json!([{ "name": "registry" }]);

    assert_eq!(
        volumes("a", json!({ "serviceAccountName": "quiet" })),
        (0, registry.clone())
    );
    let both = json!({ "serviceAccountName": "quiet", "automountServiceAccountToken": true });
    assert_eq!(volumes("b", both), (1, registry));
    let none = json!({ "automountServiceAccountToken": false });
    assert_eq!(volumes("c", none), (0, Value::Null));
}

/// A manifest that is applied again does not have what the server added.
#[test]
fn applying_a_pod_again_keeps_its_token() {
    let api = api_server();
    let mut manifest = pod("p", json!({}));
    manifest["apiVersion"] = "v1".into();
    manifest["kind"] = "Pod".into();
    let options = WriteOptions {
        field_manager: "kubectl".to_owned(),
        ..WriteOptions::default()
    };
    let apply = || {
        let patch = Patch::Apply(manifest.clone());
        let applied = api.patch(&core("pods"), "default", "p", Subresource::None, &patch, &options);
        applied.unwrap().object
    };

    let (first, second) = (apply(), apply());

    assert_eq!(first["spec"], second["spec"]);
    assert_eq!(second["spec"]["volumes"].as_array().unwrap().len(), 1);
}
