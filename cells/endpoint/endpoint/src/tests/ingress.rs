// SPDX-License-Identifier: Apache-2.0

//! The endpoint of the listener of Ingresses, and restarts.

use std::{collections::BTreeMap, net::IpAddr};

use skep_identity::NumericIdentity;

use super::world::World;
use crate::{EndpointState, RegenerationReason};

#[tokio::test]
async fn the_listener_of_ingresses_keeps_its_endpoint_and_has_no_map_or_program() {
    let world = World::new();
    let addresses = |all: &[&str]| -> Vec<IpAddr> { all.iter().map(|text| text.parse().unwrap()).collect() };
    let agent = world.start();
    agent.endpoints.set_ingress(&addresses(&["10.0.1.99"])).unwrap();
    agent.settle().await;
    let id = world.is_delivered("10.0.1.99").unwrap();
    agent.end().await;

    let agent = world.start();
    agent.settle().await;
    let row = agent.get(id).unwrap();
    assert!(row.is_ingress());
    assert_eq!(row.state(), EndpointState::Ready);
    assert_eq!(row.reason, RegenerationReason::EndpointRestore);
    assert_eq!(row.identity_labels.to_string(), "reserved:ingress=;");
    assert_eq!(
        agent
            .policies
            .get(&agent.endpoints.db().read(), id)
            .unwrap()
            .identity,
        NumericIdentity::INGRESS
    );

    agent
        .endpoints
        .set_ingress(&addresses(&["10.0.1.98", "fd00::98"]))
        .unwrap();
    agent.settle().await;
    let delivered = ["10.0.1.98", "fd00::98"].map(|address| (address.to_owned(), id));
    assert_eq!(world.delivered(), BTreeMap::from(delivered));
    agent.prune().await;
    assert_eq!(world.delivered().len(), 2);
    assert!(world.maps.policies.instances().unwrap().is_empty());
    assert!(world.hooks.attached().is_empty());

    agent.endpoints.set_ingress(&[]).unwrap();
    agent.settle().await;
    agent.remove_disconnected().await;
    world.assert_empty();
    agent.end().await;
}
