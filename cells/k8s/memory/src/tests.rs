// SPDX-License-Identifier: Apache-2.0

//! The API as a library.

mod definitions;
mod services;

use serde_json::{Value, json};
use statedb::Db;

use crate::*;

pub(crate) fn server() -> ApiServer {
    server_with(Settings::default())
}

pub(crate) fn server_with(settings: Settings) -> ApiServer {
    let rows = Rows::new(&Db::new()).unwrap();
    ApiServer::new(
        Tracker::new(rows, 1000, false),
        Registry::builtin(),
        Mode::Real(settings),
    )
}

fn services() -> Gvr {
    Gvr::new("", "v1", "services")
}

fn service(name: &str, port: u16) -> Value {
    json!({ "metadata": { "name": name, "labels": { "app": name } }, "spec": { "ports": [{ "port": port }] } })
}

/// Creates a service.
fn create(server: &ApiServer, service: Value) -> std::sync::Arc<Value> {
    let created = server.create(&services(), "default", service, &by("t"));
    created.unwrap().object
}

/// Patches the service `name`.
fn patch(server: &ApiServer, name: &str, part: Subresource, change: Value) -> Result<Written, ApiError> {
    let change = Patch::Merge(change);
    server.patch(&services(), "default", name, part, &change, &by("t"))
}

fn by(manager: &str) -> WriteOptions {
    WriteOptions {
        field_manager: manager.to_owned(),
        ..WriteOptions::default()
    }
}

#[test]
fn gives_addresses_and_ports_back() {
    let settings = Settings {
        service_networks: vec!["10.0.0.0/30".parse().unwrap()],
        node_ports: 30000..=30000,
        ..Settings::default()
    };
    let server = server_with(settings);
    let node_port = |name: &str| {
        let mut service = service(name, 80);
        service["spec"]["type"] = "NodePort".into();
        service
    };

    let first = create(&server, node_port("a"));
    assert_eq!(first["spec"]["ports"][0]["nodePort"], 30000);
    let error = server
        .create(&services(), "default", node_port("b"), &by("t"))
        .unwrap_err();
    assert!(error.message.contains("range is full"), "{error}");
    server
        .delete(&services(), "default", "a", &DeleteOptions::default())
        .unwrap();

    let second = create(&server, node_port("b"));
    assert_eq!(second["spec"]["ports"][0]["nodePort"], 30000);
}

#[test]
fn dual_stack_services_get_both_families() {
    let settings = Settings {
        service_networks: vec!["10.0.0.0/24".parse().unwrap(), "fd00::/112".parse().unwrap()],
        ..Settings::default()
    };
    let server = server_with(settings);
    let mut dual = service("dual", 80);
    dual["spec"]["ipFamilyPolicy"] = "PreferDualStack".into();

    let created = create(&server, dual);

    assert_eq!(created["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert!(
        created["spec"]["clusterIPs"][1]
            .as_str()
            .unwrap()
            .starts_with("fd00::")
    );
}

#[test]
fn updates_without_change_keep_the_version() {
    let server = server();
    let created = create(&server, service("web", 80));

    let again = server
        .update(
            &services(),
            "default",
            "web",
            Subresource::None,
            (*created).clone(),
            &by("t"),
        )
        .unwrap()
        .object;

    assert_eq!(
        again["metadata"]["resourceVersion"],
        created["metadata"]["resourceVersion"]
    );
}

#[test]
fn structs_have_all_their_required_single_values() {
    let server = server();
    let nodes = Gvr::new("", "v1", "nodes");
    let node = json!({ "metadata": { "name": "n" }, "status": { "nodeInfo": { "kubeletVersion": "v1" } } });
    server.create(&nodes, "", node, &by("t")).unwrap();

    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    let patched = server
        .patch(
            &nodes,
            "",
            "n",
            Subresource::Status,
            &Patch::Merge(status),
            &by("t"),
        )
        .unwrap()
        .object;

    let info = &patched["status"]["nodeInfo"];
    assert_eq!(info["kubeletVersion"], "v1");
    assert_eq!(info["architecture"], "");
    assert_eq!(info.as_object().unwrap().len(), 10, "{info}");
    assert_eq!(patched["spec"].get("podCIDR"), None, "not required");
}

#[test]
fn only_load_balancers_have_addresses_of_one() {
    let server = server();
    let mut web = service("web", 80);
    web["spec"]["type"] = "LoadBalancer".into();
    create(&server, web);
    let patch = |part, change| patch(&server, "web", part, change);
    let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "1.2.3.4" }] } } });
    patch(Subresource::Status, status.clone()).unwrap();
    let others = json!({ "status": { "loadBalancer": { "ingress": [
        { "ip": "1.2.3.4" }, { "ip": "1.2.3.5", "ipMode": "Proxy" }, { "hostname": "web.example" }
    ] } } });
    let with_modes = patch(Subresource::Status, others).unwrap();
    assert_eq!(
        with_modes.object["status"]["loadBalancer"]["ingress"],
        json!([
            { "ip": "1.2.3.4", "ipMode": "VIP" }, { "ip": "1.2.3.5", "ipMode": "Proxy" }, { "hostname": "web.example" }
        ])
    );

    let plain = patch(Subresource::None, json!({ "spec": { "type": "ClusterIP" } })).unwrap();
    assert_eq!(plain.object["status"], json!({ "loadBalancer": {} }));

    let error = patch(Subresource::Status, status).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("may only be used when `spec.type` is \"LoadBalancer\""),
        "{error}"
    );
}

#[test]
fn pages_count_what_is_left_and_lack_what_was_not_there() {
    let server = server();
    // In bytes `a-b/` is before `a/`.
    for name in ["a", "a-b", "b"] {
        let namespace = json!({ "metadata": { "name": name } });
        server
            .create(&Gvr::new("", "v1", "namespaces"), "", namespace, &by("t"))
            .unwrap();
    }
    for (namespace, name) in [("a", "x"), ("a", "z"), ("a-b", "x"), ("a-b", "y"), ("b", "x")] {
        server
            .create(&services(), namespace, service(name, 80), &by("t"))
            .unwrap();
    }
    let page = |token: &str| {
        let options = ListOptions {
            limit: 2,
            continue_token: token.to_owned(),
            ..ListOptions::default()
        };
        let list = server.list(&services(), None, &options).unwrap();
        let places = list.items.iter().map(|object| object::place(object));
        (places.collect::<Vec<_>>(), list.remaining, list.continue_token)
    };

    let (first, left, token) = page("");
    assert_eq!((first, left), (vec!["a-b/x".into(), "a-b/y".into()], Some(3)));

    let delete = DeleteOptions::default();
    server.delete(&services(), "a", "z", &delete).unwrap();
    server.delete(&services(), "b", "x", &delete).unwrap();
    for name in ["y", "z"] {
        server
            .create(&services(), "a", service(name, 80), &by("t"))
            .unwrap();
    }
    let (second, left, token) = page(&token);
    assert_eq!((second, left), (vec!["a/x".into(), "a/z".into()], Some(1)));
    let (third, left, token) = page(&token);
    assert_eq!((third, left, token), (vec!["b/x".into()], None, String::new()));
}

#[test]
fn lists_old_versions_exactly() {
    let server = server();
    create(&server, service("a", 80));
    let version = server
        .list(&services(), None, &ListOptions::default())
        .unwrap()
        .resource_version;
    create(&server, service("b", 80));
    let exact = |version| ListOptions {
        resource_version: Some(version),
        version_match: Some(VersionMatch::Exact),
        ..ListOptions::default()
    };

    assert_eq!(
        server
            .list(&services(), None, &exact(version))
            .unwrap()
            .items
            .len(),
        1
    );
    assert_eq!(
        server
            .list(&services(), None, &exact(version + 1))
            .unwrap()
            .items
            .len(),
        2
    );
    let error = server.list(&services(), None, &exact(version + 99)).unwrap_err();
    assert_eq!(error.code, 504);
    assert!(error.message.contains("Too large resource version"));
}

#[tokio::test]
async fn watches_see_objects_enter_and_leave_selectors() {
    let server = server();
    let options = ListOptions {
        labels: LabelSelector::parse("app=a").unwrap(),
        ..ListOptions::default()
    };
    let mut watch = server.watch(&services(), None, &options).unwrap();
    create(&server, service("a", 80));
    let relabel = |label: &str| json!({ "metadata": { "labels": { "app": label } } });

    patch(&server, "a", Subresource::None, relabel("b")).unwrap();
    patch(&server, "a", Subresource::None, relabel("a")).unwrap();

    let mut kinds = Vec::new();
    for _ in 0..3 {
        kinds.push(watch.next().await.unwrap().kind);
    }
    assert_eq!(kinds, [WatchKind::Added, WatchKind::Deleted, WatchKind::Added]);
}

#[test]
fn running_pods_end_gracefully() {
    let server = server();
    let pods = Gvr::new("", "v1", "pods");
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "nodeName": "n", "containers": [{ "name": "c", "image": "i" }] } });
    server.create(&pods, "default", pod, &by("t")).unwrap();

    assert!(matches!(
        server
            .delete(&pods, "default", "p", &DeleteOptions::default())
            .unwrap(),
        Deleted::Terminating(_)
    ));
    let terminating = server.get(&pods, "default", "p").unwrap();
    assert_eq!(terminating["metadata"]["deletionGracePeriodSeconds"], 30);

    let now = DeleteOptions {
        grace_seconds: Some(0),
        ..DeleteOptions::default()
    };
    assert!(matches!(
        server.delete(&pods, "default", "p", &now).unwrap(),
        Deleted::Gone(_)
    ));
}

#[test]
fn namespaces_must_exist_and_not_terminate() {
    let server = server();
    let error = server
        .create(&services(), "nowhere", service("a", 80), &by("t"))
        .unwrap_err();
    assert_eq!(error.message, "namespaces \"nowhere\" not found");

    let namespaces = Gvr::new("", "v1", "namespaces");
    server
        .create(
            &namespaces,
            "",
            json!({ "metadata": { "name": "shop" } }),
            &by("t"),
        )
        .unwrap();
    let deleted = server
        .delete(&namespaces, "", "shop", &DeleteOptions::default())
        .unwrap();
    assert_eq!(deleted.object()["status"]["phase"], "Terminating");
    let error = server
        .create(&services(), "shop", service("a", 80), &by("t"))
        .unwrap_err();
    assert_eq!(
        error.message,
        "services \"a\" is forbidden: unable to create new content in namespace shop because it is being terminated"
    );
    let done = json!({ "metadata": { "name": "shop" }, "spec": { "finalizers": [] } });
    server
        .update(&namespaces, "", "shop", Subresource::Finalize, done, &by("t"))
        .unwrap();
    assert!(server.get(&namespaces, "", "shop").unwrap_err().is_not_found());
}

#[test]
fn generates_names() {
    let server = server();
    let config = json!({ "metadata": { "generateName": "web-" } });

    let created = server
        .create(&Gvr::new("", "v1", "configmaps"), "default", config, &by("t"))
        .unwrap()
        .object;

    let name = created["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
}

#[test]
fn refuses_a_node_port_twice_for_one_protocol() {
    let server = server();
    let of = |second: &str| {
        let ports = json!([
            { "name": "a", "port": 80, "nodePort": 30080 },
            { "name": "b", "port": 81, "nodePort": 30080, "protocol": second },
        ]);
        json!({ "metadata": { "name": "web" }, "spec": { "type": "NodePort", "ports": ports } })
    };

    let error = server
        .create(&services(), "default", of("TCP"), &by("t"))
        .unwrap_err();
    assert!(
        error
            .message
            .contains("spec.ports[1].nodePort: Duplicate value: 30080"),
        "{}",
        error.message
    );
    create(&server, of("UDP"));
}
