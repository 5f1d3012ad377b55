// SPDX-License-Identifier: Apache-2.0

//! The cells together: a hive from tables to maps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hive::{Cell, Hive, Settings};
use skep_loadbalancer_model::types::{
    BackendParams, Frontend, FrontendKind, FrontendParams, Service, ServiceName, Source,
};
use skep_loadbalancer_model::{FRONTENDS_BY_ADDRESS, Writer};
use statedb::reconciler::StatusKind;

use crate::maps::{LoadBalancerMaps, key, text};
use crate::{InitWait, Ops};

struct Parts {
    writer: Writer,
    maps: Arc<LoadBalancerMaps>,
    ops: Arc<parking_lot::Mutex<Ops>>,
    reconciled: InitWait,
}

async fn start(flags: &[(&str, &str)]) -> (hive::Running, Arc<Parts>) {
    let kept: Arc<Mutex<Option<Arc<Parts>>>> = Arc::default();
    let keep = kept.clone();
    let probe = Cell::module("probe", "Probe").run(
        move |writer: Writer,
              maps: Arc<LoadBalancerMaps>,
              ops: Arc<parking_lot::Mutex<Ops>>,
              reconciled: InitWait| {
            *keep.lock().unwrap() = Some(Arc::new(Parts {
                writer,
                maps,
                ops,
                reconciled,
            }));
        },
    );
    let cells = [
        statedb::cell(),
        skep_loadbalancer_maglev::cell(),
        skep_base_settings::cell(),
        skep_loadbalancer_model::cell(),
        skep_datapath_maps::in_memory_cell(),
        crate::cell(),
        crate::testing::testing_cell(),
        probe,
    ];
    let settings = flags.iter().fold(Settings::default(), |settings, (name, value)| {
        settings.flag(*name, *value)
    });
    let running = hive::testing::start_with(Hive::new(cells), settings).await;
    let parts = kept.lock().unwrap().clone().unwrap();
    (running, parts)
}

fn add(writer: &Writer, n: u8, backends: &[&str]) {
    let name = ServiceName::new("shop", &format!("web{n}"));
    let address = format!("10.50.0.{n}:80/TCP").parse().unwrap();
    let params = FrontendParams {
        address,
        kind: FrontendKind::ClusterIp,
        port_name: "".into(),
        service_port: 80,
    };
    let backends = backends
        .iter()
        .map(|text| BackendParams::new(text.parse().unwrap(), Source::Kubernetes))
        .collect();
    let mut txn = writer.write();
    let service = Service::new(name.clone(), Source::Kubernetes);
    writer
        .upsert_service_and_frontends(&mut txn, service, vec![params])
        .unwrap();
    writer
        .set_backends(&mut txn, &name, Source::Kubernetes, 0, backends)
        .unwrap();
    txn.commit();
}

fn frontend(writer: &Writer, n: u8) -> Frontend {
    let address = format!("10.50.0.{n}:80/TCP").parse().unwrap();
    let txn = writer.db().read();
    Frontend::clone(
        writer
            .frontends()
            .get(&txn, FRONTENDS_BY_ADDRESS.key(&address))
            .unwrap(),
    )
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not happen");
}

fn dump(maps: &Arc<LoadBalancerMaps>) -> String {
    text::dump(maps).unwrap()
}

#[tokio::test]
async fn frontends_get_into_the_maps_through_faults() {
    let flags = [
        ("lb-test-fault-probability", "0.2"),
        ("lb-retry-backoff-min", "5ms"),
        ("lb-retry-backoff-max", "5ms"),
    ];
    let (running, parts) = start(&flags).await;
    for n in 1..=20 {
        add(&parts.writer, n, &["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"]);
    }
    parts.reconciled.wait().await;

    until("all done", || {
        (1..=20).all(|n| frontend(&parts.writer, n).status.kind == StatusKind::Done)
    })
    .await;
    let full = dump(&parts.maps);
    let ids: Vec<u16> = (1..=20).map(|n| frontend(&parts.writer, n).id).collect();
    parts.reconciled.prune().await.unwrap();
    let pruned = dump(&parts.maps);
    for n in 1..=20 {
        add(&parts.writer, n, &[]);
        let mut txn = parts.writer.write();
        parts
            .writer
            .delete_service_and_frontends(&mut txn, &ServiceName::new("shop", &format!("web{n}")))
            .unwrap();
        txn.commit();
    }
    until("all gone", || dump(&parts.maps).is_empty()).await;

    assert_eq!(full.lines().count(), 2 + 20 * 5);
    assert_eq!(ids, (1..=20).collect::<Vec<u16>>());
    assert_eq!(full, pruned);
    until("all forgotten", || {
        parts.ops.lock().summary() == crate::Summary::default()
    })
    .await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn faults_are_met_by_the_reconciler_alone() {
    let flags = [("lb-test-fault-probability", "1"), ("lb-retry-backoff-min", "1h")];
    let (running, parts) = start(&flags).await;

    add(&parts.writer, 1, &["10.0.0.1:80/TCP"]);
    until("an error", || {
        frontend(&parts.writer, 1).status.kind == StatusKind::Error
    })
    .await;
    let backends = &parts.maps.backends.v4;
    let was_there = backends.delete(&key::backend(9, false).into_inner()).unwrap();

    assert!(!was_there);
    assert_eq!(frontend(&parts.writer, 1).status.error_text(), "faulty");
    assert_eq!(dump(&parts.maps), "");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn full_map_shows_in_the_status_and_recovers() {
    let flags = [
        ("lb-test-fault-probability", "0"),
        ("bpf-lb-service-map-max", "6"),
        // Deletions make room, not the time.
        ("lb-retry-backoff-min", "1h"),
        ("lb-retry-backoff-max", "1h"),
    ];
    let (running, parts) = start(&flags).await;
    for n in 1..=3 {
        add(&parts.writer, n, &["10.0.0.1:80/TCP"]);
    }

    until("an error", || {
        frontend(&parts.writer, 3).status.kind == StatusKind::Error
    })
    .await;
    let error = frontend(&parts.writer, 3).status.error;
    let mut txn = parts.writer.write();
    parts
        .writer
        .delete_service_and_frontends(&mut txn, &ServiceName::new("shop", "web1"))
        .unwrap();
    txn.commit();
    until("recovery", || {
        frontend(&parts.writer, 3).status.kind == StatusKind::Done
    })
    .await;

    assert_eq!(
        error.as_deref(),
        Some("map cilium_lb4_services_v2 is full (6 entries, see bpf-lb-service-map-max)")
    );
    running.stop().await.unwrap();
}

#[tokio::test]
async fn waits_for_sources_before_it_changes_maps_of_an_earlier_run() {
    let flags = [("lb-test-fault-probability", "0")];
    let (running, parts) = start(&flags).await;
    add(&parts.writer, 1, &["10.0.0.1:80/TCP"]);
    until("done", || {
        frontend(&parts.writer, 1).status.kind == StatusKind::Done
    })
    .await;
    let before = dump(&parts.maps);

    // A restart of the machine alone, then an unchanged and a new service.
    parts.ops.lock().reset();
    parts.ops.lock().restore().unwrap();
    let restored = parts.ops.lock().summary();
    let labelled = Service {
        labels: [("tier", "front")].into_iter().collect(),
        ..Service::new(ServiceName::new("shop", "web1"), Source::Kubernetes)
    };
    let mut txn = parts.writer.write();
    parts.writer.upsert_service(&mut txn, labelled).unwrap();
    txn.commit();
    until("done again", || {
        frontend(&parts.writer, 1).status.kind == StatusKind::Done
    })
    .await;

    assert_eq!(
        (
            restored.service_ids,
            restored.restored_service_ids,
            restored.restored_backend_ids
        ),
        (0, 1, 1)
    );
    assert_eq!(dump(&parts.maps), before);
    running.stop().await.unwrap();
}
