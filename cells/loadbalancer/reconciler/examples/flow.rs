// SPDX-License-Identifier: Apache-2.0

//! Measures the way from decoded Kubernetes objects to the maps, and back to empty.
//!
//! `cargo run --release -p skep-loadbalancer-reconciler --example flow -- SERVICES BACKENDS [BPF-ROOT]`: with a BPF file system the
//! pinned maps are used (as root), else maps in memory. Then one endpoint of a service flips, with 10, 100 and 1,000
//! backends.

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
use skep_bpf_sys::MapStore;
use skep_k8s_client::ObjectEvent;
use skep_k8s_types::{ObjectKey, slim};
use skep_loadbalancer_model::{Tables, Writer, WriterSettings};
use skep_loadbalancer_reconciler::maps::LoadBalancerMaps;
use skep_loadbalancer_reconciler::{FrontendReconciler, Ops, Settings, Timing};
use skep_loadbalancer_sources::convert::Rules;
use skep_loadbalancer_sources::{Batch, Event, ServiceReflector};
use statedb::Db;
use statedb::reconciler::NoHealth;
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn Error + Send + Sync>;

fn key(n: usize) -> ObjectKey {
    ObjectKey {
        namespace: "bench".into(),
        name: format!("svc-{n}").into(),
    }
}

fn service(n: usize) -> Result<Arc<slim::Service>, Failure> {
    let ip = format!("10.{}.{}.{}", 96 + n / 65536, n / 256 % 256, n % 256);
    Ok(Arc::new(serde_json::from_value(json!({
        "metadata": {"name": format!("svc-{n}"), "namespace": "bench"},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                 "ports": [{"name": "http", "protocol": "TCP", "port": 80}], "selector": {"app": format!("svc-{n}")}},
    }))?))
}

fn slice(n: usize, backends: usize, unready: Option<usize>) -> Result<Arc<slim::EndpointSlice>, Failure> {
    let endpoint = |i: usize| {
        let host = n * backends + i;
        let ip = format!(
            "{}.{}.{}.{}",
            11 + host / 16_777_216,
            host / 65536 % 256,
            host / 256 % 256,
            host % 256
        );
        json!({"addresses": [ip], "nodeName": "node-1", "conditions": {"ready": unready != Some(i), "serving": true}})
    };
    Ok(Arc::new(serde_json::from_value(json!({
        "metadata": {"name": format!("svc-{n}-x"), "namespace": "bench", "labels": {"kubernetes.io/service-name": format!("svc-{n}")}},
        "addressType": "IPv4",
        "endpoints": (0..backends).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
    }))?))
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or_default()
        / 1024
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or_default()
        / 1024
}

fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let _ = stat;
    let times = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            text.split_whitespace()
                .next()
                .and_then(|nanos| nanos.parse::<u64>().ok())
                .unwrap_or_default()
        });
    Duration::from_nanos(times.sum())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| args.get(at).map_or(Ok(default), |text| text.parse::<usize>());
    let (services, backends) = (number(0, 50_000)?, number(1, 1)?);
    let sizes = LbMapSizes::uniform(u32::try_from((services * (backends + 4)).max(65_536))?);
    let maps = Arc::new(match args.get(2) {
        Some(root) => LoadBalancerMaps::open(&MapStore::new(root), sizes, true, true)?,
        None => LoadBalancerMaps::in_memory(sizes)?,
    });
    let db = Db::new();
    let tables = Tables::new(&db)?;
    let writer = Writer::new(db.clone(), tables, WriterSettings::default());
    let ops = Arc::new(Mutex::new(Ops::new(
        Settings::default(),
        maps.clone(),
        skep_loadbalancer_maglev::Maglev::default(),
    )));
    let timing = Timing {
        retry_min: Duration::from_millis(10),
        retry_max: Duration::from_secs(1),
        init_wait_timeout: Duration::from_secs(1),
    };
    let reconciler = Arc::new(FrontendReconciler::new(writer.clone(), ops, timing, None));
    let handle = reconciler.handle();
    let token = CancellationToken::new();
    let run = tokio::spawn({
        let (reconciler, token) = (reconciler.clone(), token.clone());
        async move {
            reconciler.start().await;
            reconciler.run(&token, &NoHealth).await;
        }
    });

    let mut reflector = ServiceReflector::new(writer.clone(), Rules::default());
    let base = resident_mib();
    let mut decoding = Duration::ZERO;
    let mut started = Instant::now();
    for first in (0..services).step_by(500) {
        let decode = Instant::now();
        let mut batch = Batch::default();
        for n in first..services.min(first + 500) {
            batch.push(Event::Service(ObjectEvent::Applied(service(n)?)));
            batch.push(Event::Slice(ObjectEvent::Applied(slice(n, backends, None)?)));
        }
        decoding += decode.elapsed();
        reflector.write(&mut batch);
    }
    let written = started.elapsed() - decoding;
    let frontends = writer.frontends();
    let progress = handle.wait_until_reconciled(frontends.revision(&db.read())).await;
    let took = started.elapsed() - decoding;
    println!(
        "{services} services x {backends}: tables after {written:.2?}, maps after {took:.2?}: {:.0} services/s, failing {:?}, {} MiB resident ({} before), {} MiB peak",
        services as f64 / took.as_secs_f64(),
        progress.failing,
        resident_mib(),
        base,
        peak_mib(),
    );
    if args.get(2).is_none() {
        println!("{} map entries", maps.count()?);
    }

    started = Instant::now();
    for first in (0..services).step_by(500) {
        let mut batch = Batch::default();
        for n in first..services.min(first + 500) {
            batch.push(Event::Service(ObjectEvent::Deleted(key(n), None)));
            batch.push(Event::Slice(ObjectEvent::Deleted(
                ObjectKey {
                    name: format!("svc-{n}-x").into(),
                    ..key(n)
                },
                None,
            )));
        }
        reflector.write(&mut batch);
    }
    handle.wait_until_reconciled(frontends.revision(&db.read())).await;
    let took = started.elapsed();
    println!(
        "deleted after {took:.2?}: {:.0} services/s, {} MiB resident",
        services as f64 / took.as_secs_f64(),
        resident_mib()
    );

    for backends in [10, 100, 1000] {
        let mut batch = Batch::default();
        batch.push(Event::Service(ObjectEvent::Applied(service(0)?)));
        for part in 0..backends / 10 {
            batch.push(flip(part, None)?);
        }
        reflector.write(&mut batch);
        handle.wait_until_reconciled(frontends.revision(&db.read())).await;
        let rounds = 200;
        let flips: Vec<Event> = (0..rounds)
            .map(|n| flip(n % (backends / 10), (n % 2 == 0).then_some(3)))
            .collect::<Result<_, _>>()?;
        let (calls, busy, started) = (skep_bpf_sys::calls(), cpu(), Instant::now());
        for event in flips {
            let mut batch = Batch::default();
            batch.push(event);
            reflector.write(&mut batch);
            handle.wait_until_reconciled(frontends.revision(&db.read())).await;
        }
        println!(
            "one of {backends} flips: {:.1?} latency, {:.1?} CPU, {:.1} bpf calls",
            started.elapsed() / rounds as u32,
            (cpu() - busy) / rounds as u32,
            (skep_bpf_sys::calls() - calls) as f64 / rounds as f64,
        );
    }
    token.cancel();
    run.await?;
    Ok(())
}

// Slices of ten endpoints of service 0.
fn flip(part: usize, unready: Option<usize>) -> Result<Event, Failure> {
    let mut object = serde_json::to_value(&*slice(part, 10, unready)?)?;
    object["metadata"]["labels"]["kubernetes.io/service-name"] = "svc-0".into();
    object["metadata"]["name"] = format!("part-{part}").into();
    let slice: slim::EndpointSlice = serde_json::from_value(object)?;
    Ok(Event::Slice(ObjectEvent::Applied(Arc::new(slice))))
}
