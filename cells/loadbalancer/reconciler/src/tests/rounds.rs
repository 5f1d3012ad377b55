// SPDX-License-Identifier: Apache-2.0

//! Rounds of the driver: a large service is not to keep others waiting.

use parking_lot::Mutex;
use statedb::reconciler::{BatchOps, Deferred, Round, Update};
use tokio_util::sync::CancellationToken;

use super::*;

/// A frontend whose lookup table takes a while.
fn with_table(name: &str, port: u16) -> Update<Frontend> {
    let mut service = Service::new(ServiceName::new("shop", name), Source::Kubernetes);
    service.annotations = [("service.cilium.io/lb-algorithm", "maglev")]
        .into_iter()
        .collect();
    let rows: Vec<BackendRow> = (1..=4)
        .map(|n| backend(&format!("10.0.0.{n}:{port}/TCP"), BackendState::Active))
        .collect();
    let address = format!("10.50.0.9:{port}/TCP");
    Update {
        revision: u64::from(port),
        object: frontend_of(service, &address, FrontendKind::NodePort, &rows),
        result: Ok(()),
    }
}

#[test]
fn a_small_service_is_written_before_a_large_one_which_goes_on_in_the_next_round() {
    let size = TableSize::supported().last().unwrap();
    let maps = maps_of(LbMapSizes {
        maglev_table: size.get(),
        ..LbMapSizes::small(DEFAULT_LB_MAP_MAX)
    });
    let settings = Settings {
        algorithm_annotation: true,
        ..Settings::default()
    };
    let ops = Ops::new(settings, maps.clone(), Maglev::new(size, HashSeed::default()));
    let mut driver = FrontendOps::new(Arc::new(Mutex::new(ops)));
    let mut updates: Vec<Update<Frontend>> = (1000..1400).map(|port| with_table("large", port)).collect();
    updates.push(with_table("small", 80));
    let (db, token) = (statedb::Db::new(), CancellationToken::new());
    let snapshot = db.read();

    let mut rounds = 0;
    let left = updates.len();
    driver.batch(&Round::new(&snapshot, &token), &mut [], &mut updates);
    let is_deferred =
        |update: &Update<Frontend>| update.result.as_ref().is_err_and(|error| error.is::<Deferred>());
    assert!(updates.last().unwrap().result.is_ok(), "the small one");
    updates.retain(is_deferred);
    assert!((1..left - 1).contains(&updates.len()), "{}", updates.len());
    // However little time there is, each round gets on.
    while updates.len() > left - 10 && rounds < 10 {
        let before = updates.len();
        driver.batch(&Round::new(&snapshot, &token), &mut [], &mut updates);
        updates.retain(is_deferred);
        assert!(updates.len() < before);
        rounds += 1;
    }
}
