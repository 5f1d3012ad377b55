// SPDX-License-Identifier: Apache-2.0

//! Measures how long a service of one port waits for one of many, of which an endpoint is replaced at the same moment.
//!
//! `cargo run --release -p skep-loadbalancer-reconciler --example ports -- PORTS`: four endpoints for each port, with lookup
//! tables of Maglev; maps in memory.

#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use skep_bpf_maps::lb::LbMapSizes;
use skep_k8s_client::ObjectEvent;
use skep_loadbalancer_model::types::LbAlgorithm;
use skep_loadbalancer_model::{Tables, Writer, WriterSettings};
use skep_loadbalancer_reconciler::maps::LoadBalancerMaps;
use skep_loadbalancer_reconciler::{FrontendReconciler, Ops, Settings, Timing};
use skep_loadbalancer_sources::convert::Rules;
use skep_loadbalancer_sources::{Batch, Event, ServiceReflector};
use statedb::Db;
use statedb::reconciler::{NoHealth, StatusKind};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn Error + Send + Sync>;

fn service(name: &str, ip: &str, ports: usize) -> Result<Event, Failure> {
    let port = |n: usize| json!({"name": format!("p{n}"), "protocol": "TCP", "port": 1000 + n});
    let object = json!({
        "metadata": {"name": name, "namespace": "bench"},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                 "ports": (0..ports).map(port).collect::<Vec<_>>(), "selector": {"app": name}},
    });
    Ok(Event::Service(ObjectEvent::Applied(Arc::new(
        serde_json::from_value(object)?,
    ))))
}

fn slice(name: &str, endpoints: &[&str], ports: usize) -> Result<Event, Failure> {
    let endpoint =
        |ip: &&str| json!({"addresses": [ip], "nodeName": "node-1", "conditions": {"ready": true}});
    let port = |n: usize| json!({"name": format!("p{n}"), "protocol": "TCP", "port": 1000 + n});
    let object = json!({
        "metadata": {"name": format!("{name}-x"), "namespace": "bench",
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": (0..ports).map(port).collect::<Vec<_>>(),
    });
    Ok(Event::Slice(ObjectEvent::Applied(Arc::new(
        serde_json::from_value(object)?,
    ))))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let ports = std::env::args().nth(1).map_or(Ok(400), |text| text.parse())?;
    let maps = Arc::new(LoadBalancerMaps::in_memory(LbMapSizes::uniform(65_536))?);
    let db = Db::new();
    let writer = Writer::new(db.clone(), Tables::new(&db)?, WriterSettings::default());
    let settings = Settings {
        algorithm: LbAlgorithm::Maglev,
        external_cluster_ip: true,
        ..Settings::default()
    };
    let ops = Ops::new(settings, maps, skep_loadbalancer_maglev::Maglev::default());
    let timing = Timing {
        retry_min: Duration::from_millis(10),
        retry_max: Duration::from_secs(1),
        init_wait_timeout: Duration::from_secs(1),
    };
    let ops = Arc::new(Mutex::new(ops));
    let reconciler = Arc::new(FrontendReconciler::new(writer.clone(), ops, timing, None));
    let (handle, token) = (reconciler.handle(), CancellationToken::new());
    let run = tokio::spawn({
        let token = token.clone();
        async move {
            reconciler.start().await;
            reconciler.run(&token, &NoHealth).await;
        }
    });
    let mut reflector = ServiceReflector::new(writer.clone(), Rules::default());
    let mut write = |events: Vec<Event>| {
        let mut batch = Batch::default();
        events.into_iter().for_each(|event| batch.push(event));
        reflector.write(&mut batch);
    };
    let frontends = writer.frontends();

    let endpoints = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
    let mut started = Instant::now();
    write(vec![
        service("large", "10.96.0.1", ports)?,
        slice("large", &endpoints, ports)?,
    ]);
    handle.wait_until_reconciled(frontends.revision(&db.read())).await;
    println!("{ports} ports: written after {:.2?}", started.elapsed());

    started = Instant::now();
    let replaced = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5"];
    write(vec![
        slice("large", &replaced, ports)?,
        service("small", "10.96.0.2", 1)?,
        slice("small", &["10.0.1.1"], 1)?,
    ]);
    let revision = frontends.revision(&db.read());
    let is_written = || {
        let snapshot = db.read();
        let mut all = frontends.all(&snapshot);
        all.any(|row| row.service.name.name() == "small" && row.status.kind == StatusKind::Done)
    };
    while !is_written() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!(
        "one endpoint replaced, and a service of one port: that after {:.2?}",
        started.elapsed()
    );
    handle.wait_until_reconciled(revision).await;
    println!("all after {:.2?}", started.elapsed());
    token.cancel();
    run.await?;
    Ok(())
}
