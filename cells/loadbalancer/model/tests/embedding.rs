// SPDX-License-Identifier: Apache-2.0

//! A program with a source of its own: what `docs/embedding.md` shows, built with no more than this crate links.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

#[path = "../../../../docs/examples/embedding/source.rs"]
mod source;

use hive::{Hive, testing};
use skep_loadbalancer_model::Frontend;
use source::Registry;
use statedb::{Db, Table};
use tokio::sync::watch;

fn registry(services: &[(&str, &str, &[&str])]) -> Registry {
    let services = services.iter().map(|(name, address, backends)| {
        let backends = backends.iter().map(|backend| backend.parse().unwrap());
        ((*name).to_owned(), (address.parse().unwrap(), backends.collect()))
    });
    services.collect()
}

/// Waits until the frontends are these.
async fn until(db: &Db, frontends: &Table<Frontend>, wanted: &[&str]) {
    let text = |row: &Frontend| {
        let backends = row
            .selectable_backends()
            .map(|row| row.params.address.to_string());
        let backends: Vec<String> = backends.collect();
        format!(
            "{} {} -> {}",
            row.service_name(),
            row.address(),
            backends.join(", ")
        )
    };
    loop {
        let snapshot = db.read();
        let (rows, watch) = frontends.all_watch(&snapshot);
        let seen: Vec<String> = rows.map(|row| text(row)).collect();
        if seen == wanted {
            return;
        }
        let changed = tokio::time::timeout(std::time::Duration::from_secs(30), watch.closed());
        assert!(changed.await.is_ok(), "{seen:?} instead of {wanted:?}");
    }
}

#[tokio::test]
async fn a_registry_is_a_source_of_services() {
    let first = registry(&[
        ("cart", "10.96.0.7:80", &["10.1.0.1:8080", "10.1.0.2:8080"]),
        ("till", "10.96.0.8:80", &["10.1.0.1:9090"]),
    ]);
    let (sender, receiver) = watch::channel(first);
    let hive = Hive::new([
        statedb::cell(),
        skep_base_settings::cell(),
        skep_loadbalancer_model::cell(),
        source::cell(receiver),
    ]);
    let (running, (db, frontends)) = testing::start_with_root::<(Db, Table<Frontend>)>(hive).await;

    let complete = frontends.wait_initialized(&db).await;
    assert_eq!(frontends.len(&complete), 2);
    let till = "registry/till 10.96.0.8:80/TCP -> 10.1.0.1:9090/TCP";
    let cart = "registry/cart 10.96.0.7:80/TCP -> 10.1.0.1:8080/TCP, 10.1.0.2:8080/TCP";
    until(&db, &frontends, &[cart, till]).await;

    sender.send_replace(registry(&[("cart", "10.96.0.9:80", &["10.1.0.2:8080"])]));
    until(
        &db,
        &frontends,
        &["registry/cart 10.96.0.9:80/TCP -> 10.1.0.2:8080/TCP"],
    )
    .await;
    testing::stop(running).await;
}
