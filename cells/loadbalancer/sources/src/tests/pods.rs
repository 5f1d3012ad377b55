// SPDX-License-Identifier: Apache-2.0

//! Host ports of pods.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_types::slim::Pod;
use skep_loadbalancer_model::Writer;

use super::{backends, frontends, object, services, writer};
use crate::convert::Rules;
use crate::pods::HostPorts;

fn pod(name: &str, ip: &str, phase: &str, ports: Value) -> Arc<Pod> {
    object(json!({
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": phase, "podIPs": [{"ip": ip}]},
    }))
}

fn port(host: u16) -> Value {
    json!([{"hostPort": host, "containerPort": 80, "protocol": "TCP"}])
}

fn setup() -> (Writer, HostPorts) {
    let writer = writer();
    (
        writer.clone(),
        HostPorts::new(
            writer,
            Rules {
                replaces_kube_proxy: true,
                ..Rules::default()
            },
        ),
    )
}

fn put(pod: &Pod) -> (&str, &str, Option<&Pod>) {
    (
        pod.metadata.namespace.as_str(),
        pod.metadata.name.as_str(),
        Some(pod),
    )
}

#[test]
fn a_finished_pod_leaves_its_port_to_another() {
    let (writer, mut ports) = setup();
    let (old, new) = (
        pod("old", "10.1.0.1", "Running", port(4444)),
        pod("new", "10.1.0.2", "Running", port(4444)),
    );
    ports.write([put(&old)], None);
    assert_eq!(
        frontends(&writer),
        ["0.0.0.0:4444/TCP shop/old:host-port:4444:uid-old [10.1.0.1:80/TCP]"]
    );

    ports.write([put(&new)], None);
    assert_eq!(services(&writer), ["shop/old:host-port:4444:uid-old"]);
    assert!(
        ports
            .refusals()
            .unwrap()
            .to_string()
            .starts_with("shop/new:host-port:4444:uid-new: 0.0.0.0:4444/TCP: ")
    );

    let finished = pod("old", "10.1.0.1", "Succeeded", port(4444));
    ports.write([put(&finished)], None);
    assert_eq!(
        frontends(&writer),
        ["0.0.0.0:4444/TCP shop/new:host-port:4444:uid-new [10.1.0.2:80/TCP]"]
    );
    assert!(ports.refusals().is_none());
}

#[test]
fn a_takeover_in_one_batch_needs_no_order() {
    let (writer, mut ports) = setup();
    let (old, new) = (
        pod("old", "10.1.0.1", "Running", port(4444)),
        pod("new", "10.1.0.2", "Running", port(4444)),
    );
    ports.write([put(&old)], None);

    ports.write([put(&new), ("shop", "old", None)], None);

    assert_eq!(services(&writer), ["shop/new:host-port:4444:uid-new"]);
    assert_eq!(
        backends(&writer),
        ["shop/new:host-port:4444:uid-new 10.1.0.2:80/TCP"]
    );
}

#[test]
fn ports_no_longer_asked_for_go() {
    let (writer, mut ports) = setup();
    ports.write([put(&pod("web", "10.1.0.1", "Running", port(4444)))], None);
    ports.write([put(&pod("web-2", "10.1.0.2", "Running", port(5555)))], None);

    ports.write([put(&pod("web", "10.1.0.1", "Running", port(4445)))], None);

    assert_eq!(
        services(&writer),
        [
            "shop/web-2:host-port:5555:uid-web-2",
            "shop/web:host-port:4445:uid-web"
        ]
    );
}

#[test]
fn ports_of_unknown_pods_go() {
    let (writer, mut ports) = setup();
    ports.write(
        [
            put(&pod("a", "10.1.0.1", "Running", port(1))),
            put(&pod("b", "10.1.0.2", "Running", port(2))),
        ],
        None,
    );

    ports.keep_only(&HashSet::from(["shop/b".to_owned()]));

    assert_eq!(services(&writer), ["shop/b:host-port:2:uid-b"]);
    assert_eq!(backends(&writer), ["shop/b:host-port:2:uid-b 10.1.0.2:80/TCP"]);
}

#[test]
fn completion_is_reported_with_the_first_batch() {
    let (writer, mut ports) = setup();
    let done = writer.register_initializer("k8s-pods").unwrap();
    ports.write([], Some(&done));
    assert!(writer.frontends().is_initialized(&writer.db().read()));
}
