// SPDX-License-Identifier: Apache-2.0

//! Batches of services and slices.

use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_client::ObjectEvent;
use skep_k8s_types::slim::{EndpointSlice, Labels, Service};
use skep_k8s_types::{ObjectKey, RawObject};
use skep_loadbalancer_model::{ServiceName, Source, Writer};

use super::{backends, frontends, object, service_json, services, slice_json, writer};
use crate::convert::Rules;
use crate::{Batch, Event, ServiceReflector};

struct Fixture {
    writer: Writer,
    reflector: ServiceReflector,
}

impl Fixture {
    fn new() -> Self {
        let writer = writer();
        Self {
            reflector: ServiceReflector::new(writer.clone(), Rules::default()),
            writer,
        }
    }

    fn write(&mut self, changes: impl IntoIterator<Item = Event>) {
        let mut batch = Batch::default();
        changes.into_iter().for_each(|event| batch.push(event));
        self.reflector.write(&mut batch);
    }

    fn fault(&self) -> String {
        self.reflector.invalid_objects().to_string()
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn put(value: Value) -> Event {
    let service = object::<Service>(value);
    Event::Service(ObjectEvent::Applied(service))
}

fn service(name: &str, ip: &str) -> Event {
    put(service_json(name, ip))
}

fn no_service(name: &str) -> Event {
    Event::Service(ObjectEvent::Deleted(key(name), None))
}

fn slice(name: &str, of: &str, addresses: &[&str]) -> Event {
    Event::Slice(ObjectEvent::Applied(object::<EndpointSlice>(slice_json(
        name, of, addresses,
    ))))
}

fn no_slice(name: &str) -> Event {
    Event::Slice(ObjectEvent::Deleted(key(name), None))
}

fn undecodable(value: Value) -> skep_k8s_types::DecodeError {
    RawObject::from_value(Arc::new(value))
        .decode::<Service>()
        .unwrap_err()
}

#[test]
fn services_and_slices_come_in_either_order_and_go() {
    for service_first in [true, false] {
        let mut fixture = Fixture::new();
        let mut changes = [
            service("web", "10.96.0.1"),
            slice("web-1", "web", &["10.1.0.1", "10.1.0.2"]),
        ];
        if !service_first {
            changes.reverse();
        }
        changes.into_iter().for_each(|changed| fixture.write([changed]));
        assert_eq!(
            frontends(&fixture.writer),
            ["10.96.0.1:80/TCP shop/web [10.1.0.1:8080/TCP 10.1.0.2:8080/TCP]"]
        );

        fixture.write([slice("web-1", "web", &["10.1.0.2"])]);
        assert_eq!(
            frontends(&fixture.writer),
            ["10.96.0.1:80/TCP shop/web [10.1.0.2:8080/TCP]"]
        );

        fixture.write([no_slice("web-1"), no_service("web")]);
        assert_eq!(
            (services(&fixture.writer).len(), backends(&fixture.writer).len()),
            (0, 0)
        );
    }
}

// Cilium loses this update until the service's next event (reference, defect 1).
#[test]
fn an_address_given_up_in_a_batch_can_be_taken_in_it() {
    let mut fixture = Fixture::new();
    fixture.write([service("a", "10.96.0.1"), service("b", "10.96.0.2")]);

    fixture.write([service("a", "10.96.0.2"), no_service("b")]);

    assert_eq!(frontends(&fixture.writer), ["10.96.0.2:80/TCP shop/a []"]);
    assert!(fixture.reflector.invalid_objects().is_empty());
}

#[test]
fn services_can_exchange_addresses_in_a_batch() {
    let mut fixture = Fixture::new();
    fixture.write([
        service("a", "10.96.0.1"),
        service("b", "10.96.0.2"),
        service("c", "10.96.0.3"),
    ]);

    fixture.write([
        service("a", "10.96.0.2"),
        service("b", "10.96.0.3"),
        service("c", "10.96.0.1"),
    ]);

    assert_eq!(
        frontends(&fixture.writer),
        [
            "10.96.0.1:80/TCP shop/c []",
            "10.96.0.2:80/TCP shop/a []",
            "10.96.0.3:80/TCP shop/b []"
        ]
    );
    assert!(fixture.reflector.invalid_objects().is_empty());
}

#[test]
fn a_service_waits_for_an_address_that_another_has() {
    let mut fixture = Fixture::new();
    fixture.write([service("b", "10.96.0.2")]);
    fixture.write([service("a", "10.96.0.2")]);
    assert_eq!(frontends(&fixture.writer), ["10.96.0.2:80/TCP shop/b []"]);
    assert!(
        fixture
            .fault()
            .contains("service shop/a: 10.96.0.2:80/TCP: frontend already owned by another service")
    );

    fixture.write([no_service("b")]);

    assert_eq!(frontends(&fixture.writer), ["10.96.0.2:80/TCP shop/a []"]);
    assert!(fixture.reflector.invalid_objects().is_empty());
}

#[test]
fn a_refused_service_keeps_what_it_had_unless_it_gave_it_up() {
    let mut fixture = Fixture::new();
    fixture.write([service("a", "10.96.0.1"), service("b", "10.96.0.2")]);
    let mut both = service_json("a", "10.96.0.1");
    both["spec"]["externalIPs"] = json!(["10.96.0.2"]);

    fixture.write([put(both)]);

    assert_eq!(
        frontends(&fixture.writer),
        ["10.96.0.1:80/TCP shop/a []", "10.96.0.2:80/TCP shop/b []"]
    );
}

#[test]
fn a_backend_moves_between_slices_in_one_batch() {
    let mut fixture = Fixture::new();
    fixture.write([
        service("web", "10.96.0.1"),
        slice("web-1", "web", &["10.1.0.1", "10.1.0.2"]),
        slice("web-2", "web", &["10.1.0.3"]),
    ]);
    let addresses =
        ["10.1.0.1:8080/TCP", "10.1.0.2:8080/TCP", "10.1.0.3:8080/TCP"].map(|text| text.parse().unwrap());
    let mut txn = fixture.writer.write();
    for address in &addresses {
        let name = ServiceName::new("shop", "web");
        fixture
            .writer
            .set_backend_health(&mut txn, &name, address, false)
            .unwrap();
    }
    txn.commit();

    for (first, second) in [("web-1", "web-2"), ("web-2", "web-1")] {
        fixture.write([
            slice(first, "web", &["10.1.0.1"]),
            slice(second, "web", &["10.1.0.2", "10.1.0.3"]),
        ]);
        let (txn, table) = (fixture.writer.db().read(), fixture.writer.backends());
        let unhealthy = table.all(&txn).filter(|row| row.unhealthy).count();
        assert_eq!(unhealthy, 3, "no backend is removed");
    }
}

#[test]
fn a_backend_stays_as_long_as_any_slice_has_it() {
    let mut fixture = Fixture::new();
    fixture.write([
        slice("web-1", "web", &["10.1.0.1"]),
        slice("web-2", "web", &["10.1.0.1"]),
    ]);
    fixture.write([no_slice("web-1")]);
    assert_eq!(backends(&fixture.writer), ["shop/web 10.1.0.1:8080/TCP"]);

    fixture.write([slice("web-2", "other", &["10.1.0.1"])]);
    assert_eq!(backends(&fixture.writer), ["shop/other 10.1.0.1:8080/TCP"]);
}

#[test]
fn equal_slice_names_in_two_namespaces_are_two_slices() {
    let mut fixture = Fixture::new();
    let mut other = slice_json("web-1", "web", &["10.1.0.2"]);
    other["metadata"]["namespace"] = json!("prod");
    fixture.write([
        slice("web-1", "web", &["10.1.0.1"]),
        Event::Slice(ObjectEvent::Applied(object::<EndpointSlice>(other))),
    ]);
    assert_eq!(
        backends(&fixture.writer),
        ["prod/web 10.1.0.2:8080/TCP", "shop/web 10.1.0.1:8080/TCP"]
    );

    fixture.write([no_slice("web-1")]);
    assert_eq!(backends(&fixture.writer), ["prod/web 10.1.0.2:8080/TCP"]);
}

#[test]
fn a_list_replaces_everything_but_pseudo_services() {
    let mut fixture = Fixture::new();
    fixture.write([
        service("a", "10.96.0.1"),
        service("b", "10.96.0.2"),
        slice("a-1", "a", &["10.1.0.1"]),
        slice("b-1", "b", &["10.1.0.2"]),
    ]);
    let mut txn = fixture.writer.write();
    for (name, source) in [
        ("web-0:host-port:80:u", Source::Kubernetes),
        ("file", Source::Api),
    ] {
        fixture
            .writer
            .upsert_service(
                &mut txn,
                skep_loadbalancer_model::Service::new(ServiceName::new("shop", name), source),
            )
            .unwrap();
    }
    txn.commit();

    fixture.reflector.replace_services(
        vec![
            object(service_json("b", "10.96.0.2")),
            object(service_json("c", "10.96.0.1")),
        ],
        vec![],
        None,
    );
    fixture
        .reflector
        .replace_slices(vec![object(slice_json("b-1", "b", &["10.1.0.3"]))], vec![], None);

    assert_eq!(
        services(&fixture.writer),
        ["shop/b", "shop/c", "shop/file", "shop/web-0:host-port:80:u"]
    );
    assert_eq!(
        frontends(&fixture.writer),
        [
            "10.96.0.1:80/TCP shop/c []",
            "10.96.0.2:80/TCP shop/b [10.1.0.3:8080/TCP]"
        ]
    );
    assert_eq!(backends(&fixture.writer), ["shop/b 10.1.0.3:8080/TCP"]);
}

#[test]
fn a_list_is_one_transaction_that_completes_the_source() {
    let mut fixture = Fixture::new();
    let done = fixture.writer.register_initializer("k8s-services").unwrap();
    let table = fixture.writer.frontends();
    assert!(!table.is_initialized(&fixture.writer.db().read()));

    fixture
        .reflector
        .replace_services(vec![object(service_json("a", "10.96.0.1"))], vec![], Some(&done));

    assert!(table.is_initialized(&fixture.writer.db().read()));
}

#[test]
fn what_cannot_be_decoded_stays_and_is_named() {
    let mut fixture = Fixture::new();
    fixture.write([service("a", "10.96.0.1"), service("b", "10.96.0.2")]);
    let broken =
        || undecodable(json!({"metadata": {"namespace": "shop", "name": "a"}, "spec": {"ports": 5}}));

    fixture.write([Event::Service(ObjectEvent::Invalid(broken()))]);
    assert!(
        fixture.fault().contains("Service shop/a: spec.ports"),
        "{}",
        fixture.fault()
    );
    fixture.reflector.replace_services(vec![], vec![broken()], None);
    assert_eq!(services(&fixture.writer), ["shop/a"]);

    fixture.write([no_service("a")]);
    assert!(fixture.reflector.invalid_objects().is_empty());
    assert_eq!(services(&fixture.writer), Vec::<String>::new());
}

#[test]
fn a_malformed_update_keeps_the_last_good_state() {
    let mut fixture = Fixture::new();
    fixture.write([service("a", "10.96.0.1")]);
    let mut nameless = service_json("a", "10.96.0.9");
    nameless["spec"]["ports"][0]["protocol"] = json!("");

    fixture.write([put(nameless)]);
    assert_eq!(
        fixture.fault(),
        "service shop/a: invalid L4 protocol \"\": unknown protocol ''"
    );
    assert_eq!(frontends(&fixture.writer), ["10.96.0.1:80/TCP shop/a []"]);

    fixture.write([service("a", "10.96.0.9")]);
    assert!(fixture.reflector.invalid_objects().is_empty());
    assert_eq!(frontends(&fixture.writer), ["10.96.0.9:80/TCP shop/a []"]);
}

// Cilium looks at node annotations only when the service changes (reference, defect 8).
#[test]
fn services_come_and_go_with_the_labels_of_the_node() {
    let mut fixture = Fixture::new();
    let mut edge = service_json("edge", "10.96.0.1");
    edge["metadata"]["annotations"] = json!({"service.cilium.io/node": "edge"});
    fixture.write([put(edge), service("any", "10.96.0.2")]);
    assert_eq!(services(&fixture.writer), ["shop/any"]);

    let labelled = Labels::from_iter([("service.cilium.io/node", "edge")]);
    assert!(fixture.reflector.set_node_labels(&labelled));
    assert!(!fixture.reflector.set_node_labels(&labelled));
    fixture.reflector.reevaluate_node_placement();
    assert_eq!(services(&fixture.writer), ["shop/any", "shop/edge"]);
    assert!(fixture.reflector.set_node_labels(&Labels::default()));
    fixture.reflector.reevaluate_node_placement();
    assert_eq!(services(&fixture.writer), ["shop/any"]);

    fixture.write([no_service("edge")]);
    fixture.reflector.set_node_labels(&labelled);
    fixture.reflector.reevaluate_node_placement();
    assert_eq!(services(&fixture.writer), ["shop/any"]);
}

/// Addresses of frontends in the order of their changes, which decides about numbers, and the revision of the table.
fn order(writer: &Writer) -> (Vec<String>, u64) {
    let txn = writer.db().read();
    let table = writer.frontends();
    let rows = table.by_revision(&txn, 0);
    let texts = rows.map(|row| format!("{} {}", row.service.name.name(), row.backends.len()));
    (texts.collect(), table.revision(&txn))
}

#[test]
fn a_service_and_its_slices_in_one_batch_change_a_frontend_once() {
    let mut fixture = Fixture::new();
    fixture.write([
        service("a", "10.96.0.1"),
        slice("a-1", "a", &["10.1.0.1", "10.1.0.2"]),
        slice("a-2", "a", &["10.1.0.2", "10.1.0.3"]),
    ]);

    assert_eq!(order(&fixture.writer), (vec!["a 3".to_owned()], 1));
}

#[test]
fn frontends_follow_the_order_of_the_events_that_change_them() {
    let mut fixture = Fixture::new();
    fixture.write([
        service("a", "10.96.0.1"),
        slice("c-1", "c", &["10.1.0.3"]),
        service("b", "10.96.0.2"),
        service("c", "10.96.0.3"),
        slice("a-1", "a", &["10.1.0.1"]),
        service("d", "10.96.0.4"),
        // Backends for no port of the service.
        Event::Slice(ObjectEvent::Applied(object::<EndpointSlice>(json!({
            "metadata": {"namespace": "shop", "name": "d-1", "labels": {"kubernetes.io/service-name": "d"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.4"]}],
            "ports": [{"name": "other", "port": 8080, "protocol": "TCP"}],
        })))),
    ]);

    let (order, _) = order(&fixture.writer);
    assert_eq!(order, ["b 0", "c 1", "a 1", "d 0"]);
}

#[test]
fn of_new_services_with_one_address_the_first_of_the_batch_gets_it() {
    let mut fixture = Fixture::new();
    fixture.write([
        slice("b-1", "b", &["10.1.0.2"]),
        service("a", "10.96.0.1"),
        service("b", "10.96.0.1"),
        slice("a-1", "a", &["10.1.0.1"]),
    ]);

    assert_eq!(
        frontends(&fixture.writer),
        ["10.96.0.1:80/TCP shop/a [10.1.0.1:8080/TCP]"]
    );
    assert!(fixture.fault().contains("already owned"), "{}", fixture.fault());
}
