// SPDX-License-Identifier: Apache-2.0

//! What servers do for kinds of their own: services, leases, pods, definitions of custom resources.

use std::time::Duration;

use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Patch, Subresource};
use skep_k8s_types::Kind;

use super::{Space, code, options, value};

const LEASE: Kind = Kind::new("coordination.k8s.io", "v1", "Lease", "leases", true);
const DEFINITION: Kind = Kind::new(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    false,
);

pub(super) async fn status(space: &Space<'_>) {
    let service =
        json!({ "metadata": { "name": "s" }, "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] } });
    let mut made = space.create(&Kind::SERVICE, service).await.unwrap();
    made["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
    made["spec"]["sessionAffinity"] = "ClientIP".into();

    let updated = space
        .update_part(&Kind::SERVICE, Subresource::Status, made.clone())
        .await
        .unwrap();

    assert_eq!(updated["spec"]["sessionAffinity"], "None");
    let stale = space.update_part(&Kind::SERVICE, Subresource::Status, made).await;
    assert_eq!(code(stale), 409);
}

pub(super) async fn service_defaults(space: &Space<'_>) {
    let service =
        json!({ "metadata": { "name": "s" }, "spec": { "type": "NodePort", "ports": [{ "port": 80 }] } });
    let made = space.create(&Kind::SERVICE, service).await.unwrap();

    assert_eq!(made["spec"]["ports"][0]["protocol"], "TCP");
    assert_eq!(made["spec"]["ports"][0]["targetPort"], 80);
    assert!(made["spec"]["ports"][0]["nodePort"].as_u64().unwrap() >= 30000);
    assert!(made["spec"]["clusterIP"].as_str().unwrap().starts_with("10.96."));
    assert_eq!(made["spec"]["clusterIPs"][0], made["spec"]["clusterIP"]);
    assert_eq!(made["spec"]["ipFamilyPolicy"], "SingleStack");
    assert_eq!(made["spec"]["externalTrafficPolicy"], "Cluster");
    assert_eq!(made["spec"]["internalTrafficPolicy"], "Cluster");

    let headless = json!({
        "metadata": { "name": "h" },
        "spec": { "clusterIP": "None", "selector": { "a": "b" }, "ports": [{ "port": 80 }] },
    });
    let made = space.create(&Kind::SERVICE, headless).await.unwrap();
    assert_eq!(made["spec"]["clusterIPs"], json!(["None"]));

    let other_address =
        Patch::Merge(json!({ "spec": { "clusterIP": "10.96.250.250", "clusterIPs": ["10.96.250.250"] } }));
    assert_eq!(code(space.patch(&Kind::SERVICE, "s", other_address).await), 422);
    let plain = Patch::Merge(json!({ "spec": { "type": "ClusterIP" } }));
    let plain = space.patch(&Kind::SERVICE, "s", plain).await.unwrap();
    assert!(plain["spec"]["ports"][0].get("nodePort").is_none());
}

/// Service names are DNS labels of RFC 1123, as of feature gate RelaxedServiceNameValidation: there from 1.34 on, set by
/// default from 1.36 on.
pub(super) async fn service_names(space: &Space<'_>, is_real: bool) {
    let object = json!({ "metadata": { "name": "1a" }, "spec": { "ports": [{ "port": 80 }] } });

    match space.create(&Kind::SERVICE, object).await {
        Ok(made) => assert_eq!(made["metadata"]["name"], "1a"),
        refused => assert!(is_real && code(refused) == 422),
    }
}

pub(super) async fn leases(space: &Space<'_>) {
    let lease = json!({
        "metadata": { "name": "l" },
        "spec": {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    });
    let mut first = space.create(&LEASE, lease).await.unwrap();
    let mut second = first.clone();
    first["spec"]["holderIdentity"] = "b".into();
    second["spec"]["holderIdentity"] = "c".into();

    let won = space.update(&LEASE, first).await.unwrap();
    assert_eq!(won["spec"]["holderIdentity"], "b");
    assert_eq!(code(space.update(&LEASE, second).await), 409);
}

pub(super) async fn bindings(space: &Space<'_>, is_real: bool) {
    let pod =
        json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    space.create(&Kind::POD, pod).await.unwrap();
    let bind = async |node: &str| {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "p" },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let options = options();
        space
            .client
            .create(&Kind::BINDING, &space.name, binding, &options)
            .await
    };
    let refused = code(bind("").await);
    assert!(refused == 422 || is_real && refused == 500, "{refused}");
    bind("n1").await.unwrap();

    let bound = space.get(&Kind::POD, "p").await.unwrap();
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(code(bind("n2").await), 409);
    for spec in [json!({ "nodeName": "n2" }), json!({ "hostNetwork": true })] {
        let change = Patch::Merge(json!({ "spec": spec }));
        assert_eq!(code(space.patch(&Kind::POD, "p", change).await), 422);
    }
}

fn color_definition(group: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("colors.{group}") },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": { "plural": "colors", "singular": "color", "kind": "Color", "listKind": "ColorList" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "required": ["rgb"], "properties": {
                        "rgb": { "type": "string", "pattern": "^[0-9a-f]{6}$" },
                        "level": { "type": "integer", "default": 3 },
                    }, "x-kubernetes-validations": [
                        { "rule": "self.rgb != '000000' || self.level > 3", "message": "black needs a level" },
                        { "rule": "self.rgb == oldSelf.rgb", "message": "rgb is immutable" },
                    ] },
                    "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                } } },
            }],
        },
    })
}

pub(super) async fn definitions(space: &Space<'_>) {
    // Definitions are of the cluster: the group is named after the case.
    let group = format!("{}.example.com", space.name);
    space.create(&DEFINITION, color_definition(&group)).await.unwrap();
    let color = Kind {
        group: group.as_str().into(),
        version: "v1".into(),
        kind: "Color".into(),
        plural: "colors".into(),
        namespaced: true,
    };
    let object = |rgb: &str| {
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "Color",
            "metadata": { "name": "c" }, "spec": { "rgb": rgb, "extra": true },
        })
    };

    // Real servers need a moment to serve it.
    let mut made = Err(ApiError::Disabled);
    for _ in 0..100 {
        made = space.create(&color, object("ff0000")).await;
        match &made {
            Err(error) if error.is_not_found() => tokio::time::sleep(Duration::from_millis(100)).await,
            _ => break,
        }
    }
    let made = made.unwrap();

    assert_eq!(made["spec"], json!({ "rgb": "ff0000", "level": 3 }));
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(code(space.create(&color, object("nope")).await), 422);
    let black = space.create(&color, object("000000")).await.unwrap_err();
    assert!(black.to_string().contains("black needs a level"), "{black}");
    let other = Patch::Merge(json!({ "spec": { "rgb": "00ff00" } }));
    let other = space.patch(&color, "c", other).await.unwrap_err();
    assert!(other.to_string().contains("rgb is immutable"), "{other}");
    let seen = Patch::Merge(json!({ "status": { "seen": true } }));
    let status = space
        .client
        .patch(&color, &space.name, "c", Subresource::Status, &seen, &options())
        .await
        .map(|object| value(&object))
        .unwrap();
    assert_eq!(
        (&status["status"]["seen"], &status["metadata"]["generation"]),
        (&json!(true), &json!(1))
    );
    let level = Patch::Merge(json!({ "spec": { "level": 4 } }));
    let spec = space.patch(&color, "c", level).await.unwrap();
    assert_eq!(spec["metadata"]["generation"], 2);
    assert_eq!(
        code(space.update(&color, object("00ff00")).await),
        422,
        "custom resources are replaced by version only"
    );
    space
        .delete(&DEFINITION, &format!("colors.{group}"))
        .await
        .unwrap();
}
