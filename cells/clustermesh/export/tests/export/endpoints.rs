// SPDX-License-Identifier: Apache-2.0

//! Who owns an address.

use serde_json::{Value, json};

use crate::world::{ENDPOINT_SLICES, ENDPOINTS, Program, World, endpoint, eventually};

const STATE: &str = "cilium/state/ip/v1/default/";

fn identity(world: &World, ip: &str) -> Option<u64> {
    world.json(&format!("{STATE}{ip}"))?["ID"].as_u64()
}

async fn start(world: &World, flags: &[&str]) -> Program {
    let program = world.start(flags).await;
    program.synced().await;
    program
}

#[tokio::test]
async fn former_addresses_of_an_endpoint_are_withdrawn() {
    let world = World::new().await;
    world
        .apply(&ENDPOINTS, endpoint("a", 458_753, &["10.4.1.1", "fd00::1"]))
        .await;
    let program = start(&world, &[]).await;
    assert_eq!(world.names(STATE), ["10.4.1.1", "fd00::1"]);

    world
        .apply(&ENDPOINTS, endpoint("a", 458_753, &["10.4.1.2"]))
        .await;

    eventually("only the new one is there", || world.names(STATE) == ["10.4.1.2"]).await;
    let mut gone = endpoint("a", 458_753, &["10.4.1.2"]);
    gone["status"]["identity"] = Value::Null;
    world.apply(&ENDPOINTS, gone).await;
    eventually("without an identity nothing is", || world.names(STATE).is_empty()).await;
    program.stop().await;
}

#[tokio::test]
async fn the_first_claimant_owns_an_address_until_it_goes() {
    let world = World::new().await;
    // The order of names says nothing, and that of a list neither.
    for (name, identity) in [("z", 458_753), ("m", 458_754), ("a", 458_755)] {
        world
            .apply(&ENDPOINTS, endpoint(name, identity, &["10.4.1.1"]))
            .await;
    }
    let program = start(&world, &[]).await;
    assert_eq!(identity(&world, "10.4.1.1"), Some(458_753));

    // What the owner becomes is published, what others become is not.
    world
        .apply(&ENDPOINTS, endpoint("z", 458_760, &["10.4.1.1"]))
        .await;
    eventually("the owner has changed", || {
        identity(&world, "10.4.1.1") == Some(458_760)
    })
    .await;
    world
        .apply(&ENDPOINTS, endpoint("m", 458_761, &["10.4.1.1"]))
        .await;
    world
        .apply(&ENDPOINTS, endpoint("mark", 458_756, &["10.4.1.9"]))
        .await;
    eventually("that is handled", || identity(&world, "10.4.1.9").is_some()).await;
    assert_eq!(identity(&world, "10.4.1.1"), Some(458_760));

    // The owner leaves the address, and comes back as the last one.
    world
        .apply(&ENDPOINTS, endpoint("z", 458_760, &["10.4.1.2"]))
        .await;
    eventually("the next one has it, as it is now", || {
        identity(&world, "10.4.1.1") == Some(458_761)
    })
    .await;
    world
        .apply(&ENDPOINTS, endpoint("z", 458_760, &["10.4.1.1"]))
        .await;
    world.delete(&ENDPOINTS, "shop", "m").await;
    eventually("the third one has it", || {
        identity(&world, "10.4.1.1") == Some(458_755)
    })
    .await;
    world.delete(&ENDPOINTS, "shop", "a").await;
    eventually("the one that came back has it", || {
        identity(&world, "10.4.1.1") == Some(458_760)
    })
    .await;
    world.delete(&ENDPOINTS, "shop", "z").await;
    eventually("nobody has it", || world.names(STATE) == ["10.4.1.9"]).await;
    program.stop().await;
}

#[tokio::test]
async fn endpoints_of_a_namespace_that_is_shared_again_are_the_last_claimants() {
    let world = World::new().await;
    world.namespace("other", None).await;
    world
        .apply(&ENDPOINTS, endpoint("first", 458_753, &["10.4.1.1"]))
        .await;
    let program = start(&world, &[]).await;
    let mut second = endpoint("second", 458_754, &["10.4.1.1", "10.4.1.2"]);
    second["metadata"]["namespace"] = "other".into();
    world.apply(&ENDPOINTS, second).await;
    eventually("it is handled", || identity(&world, "10.4.1.2").is_some()).await;
    assert_eq!(identity(&world, "10.4.1.1"), Some(458_753));

    world.namespace("shop", Some("false")).await;
    eventually("the other one has it", || {
        identity(&world, "10.4.1.1") == Some(458_754)
    })
    .await;
    world.namespace("shop", Some("true")).await;
    world
        .apply(&ENDPOINTS, endpoint("mark", 458_756, &["10.4.1.9"]))
        .await;
    eventually("that is handled", || identity(&world, "10.4.1.9").is_some()).await;
    assert_eq!(identity(&world, "10.4.1.1"), Some(458_754));
    world.delete(&ENDPOINTS, "other", "second").await;

    eventually("the first one has it again", || {
        identity(&world, "10.4.1.1") == Some(458_753)
    })
    .await;
    program.stop().await;
}

fn slice(name: &str, entries: &[Value]) -> Value {
    json!({ "metadata": { "name": name }, "namespace": "shop", "endpoints": entries })
}

fn entry(name: &str, identity: u32, ip: &str) -> Value {
    json!({
        "name": name, "id": identity, "service-account": "cart",
        "networking": { "addressing": [{ "ipv4": ip }], "node": "192.168.50.21" },
    })
}

#[tokio::test]
async fn endpoints_of_slices_are_published() {
    let world = World::new().await;
    let (a, b) = (entry("a", 458_753, "10.4.1.1"), entry("b", 458_754, "10.4.1.2"));
    world
        .apply(&ENDPOINT_SLICES, slice("s1", &[a.clone(), b.clone()]))
        .await;
    // Not read: both would write the same keys.
    world
        .apply(&ENDPOINTS, endpoint("c", 458_755, &["10.4.1.3"]))
        .await;
    let program = start(&world, &["--enable-cilium-endpoint-slice"]).await;
    assert_eq!(world.names(STATE), ["10.4.1.1", "10.4.1.2"]);
    let value = world.json(&format!("{STATE}10.4.1.1")).expect("it is there");
    assert_eq!(value["K8sPodName"], "a");
    assert_eq!(value["K8sServiceAccount"], "cart");

    // An endpoint moves to another slice.
    world
        .apply(&ENDPOINT_SLICES, slice("s2", std::slice::from_ref(&b)))
        .await;
    world.apply(&ENDPOINT_SLICES, slice("s1", &[])).await;

    eventually("one is gone", || world.names(STATE) == ["10.4.1.2"]).await;
    program.stop().await;
}

#[tokio::test]
async fn an_invalid_entry_of_a_slice_is_named_and_others_are_published() {
    let world = World::new().await;
    let bad = entry("bad", 458_753, "10.4.1");
    let good = entry("good", 458_754, "10.4.1.2");
    world.apply(&ENDPOINT_SLICES, slice("s1", &[bad, good])).await;

    let program = start(&world, &["--enable-cilium-endpoint-slice"]).await;

    assert_eq!(world.names(STATE), ["10.4.1.2"]);
    eventually("it is in health", || {
        program
            .health("endpoint-sync.job-export")
            .contains("`s1/shop/bad`: `10.4.1` is not an IP address")
    })
    .await;
    program.stop().await;
}
