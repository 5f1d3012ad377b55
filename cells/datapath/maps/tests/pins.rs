// SPDX-License-Identifier: Apache-2.0

//! Pins that others remove while maps are in use.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{error::Error, sync::Arc, time::Duration};

use hive::{Cell, HealthSink, Hive, Level, Member, MemoryHealth, Settings};
use skep_bpf_maps::node::{IPCACHE, IpcacheKey, IpcacheValue, OWNER};
use skep_bpf_sys::{MapStore, testing::Node};
use skep_datapath_maps::{MapOwner, Maps, PinCheck};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(20);

fn owner() -> Member<MapOwner> {
    Member(MapOwner::new(OWNER))
}

async fn until(health: &MemoryHealth, what: &str, holds: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "never: {what}: {:#?}",
            health.entries()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_removed_pin_degrades_health_and_is_made_again() {
    let result = Node::run("removed-pin", |node| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        runtime.block_on(removed_pin(node))
    });
    result.unwrap();
}

async fn removed_pin(node: &Node) -> Outcome {
    let health = Arc::new(MemoryHealth::new());
    let sink: Arc<dyn HealthSink> = health.clone();
    let cells = [
        skep_datapath_maps::cell(),
        Cell::module("addresses", "Addresses").provide(owner),
        Cell::module("health", "Health").provide(move || sink.clone()),
    ];
    let root = format!("--bpf-root={}", node.bpf_root().display());
    let plan = Hive::new(cells)
        .root::<Arc<Maps>>()
        .root::<Arc<PinCheck>>()
        .plan(Settings::new().args([root]))?;
    let running = plan.build()?.start().await?;
    let map = running.get::<Arc<Maps>>().unwrap().handle(&IPCACHE);
    let key = IpcacheKey::host("10.0.0.1".parse()?);
    map.update(&key, &IpcacheValue::new(6))?;
    let pin = node.bpf_root().join("tc/globals/cilium_ipcache_v2");
    let check = running.get::<Arc<PinCheck>>().unwrap();
    let job = || health.get("bpf-maps.timer-job-check-map-pins");

    std::fs::remove_file(&pin)?;
    check.trigger();

    until(&health, "health names the map", || {
        job().is_some_and(|entry| {
            entry.level == Level::Degraded
                && entry
                    .error
                    .is_some_and(|error| error.contains("cilium_ipcache_v2"))
        })
    })
    .await;
    let again = MapStore::new(node.bpf_root()).open::<IpcacheKey, IpcacheValue>("cilium_ipcache_v2")?;
    assert_eq!(again.info().id, map.info().id);
    assert_eq!(again.lookup(&key)?, Some(IpcacheValue::new(6)));

    check.trigger();
    until(&health, "health is well again", || {
        job().is_some_and(|entry| entry.level == Level::Ok)
    })
    .await;
    assert!(pin.exists());
    running.stop().await?;
    Ok(())
}
