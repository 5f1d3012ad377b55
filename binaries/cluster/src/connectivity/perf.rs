// SPDX-License-Identifier: Apache-2.0

//! `connectivity perf`: TCP between pods on one node, on two, and from the host.

use std::{error::Error, time::Duration};

use serde_json::{Value, json};

use super::{
    PerfOptions,
    environment::{Environment, PERF_PORT},
};
use crate::{access::Access, failure};

pub(super) async fn run(access: &Access, options: &PerfOptions) -> Result<(), Box<dyn Error>> {
    let environment = Environment::deploy(access, &options.environment, &[]).await?;
    let client = environment
        .clients
        .first()
        .ok_or_else(|| failure("there is no client"))?;
    let host = environment.hosts.iter().find(|host| host.node == client.node);
    let seconds = options.duration.as_secs().max(1);
    let mut rows = Vec::new();
    for echo in &environment.echoes {
        let scenario = if echo.node == client.node {
            "same-node"
        } else {
            "other-node"
        };
        let sources = [("pod-to-pod", Some(client)), ("host-to-pod", host)];
        for (kind, from) in sources.into_iter().filter_map(|(kind, from)| Some((kind, from?))) {
            for address in echo.addresses() {
                for test in ["stream", "rr", "crr"] {
                    let (port, time) = (PERF_PORT.to_string(), seconds.to_string());
                    let command = ["/usr/bin/skep-probe", "perf", &address, &port, test, &time];
                    let container = from.containers().first().copied().unwrap_or_default().to_owned();
                    let limit = Duration::from_secs(seconds + 30);
                    eprintln!("⌛ {kind} {scenario} {test} to {address}");
                    let output = access.exec(from, &container, &command, limit).await?;
                    if output.code != 0 {
                        return Err(failure(format!("{kind} {scenario} {test}: {}", output.reason())));
                    }
                    let text = output.text();
                    let numbers: Vec<u64> = text
                        .split_whitespace()
                        .filter_map(|word| word.parse().ok())
                        .collect();
                    rows.push(row(kind, scenario, test, &address, &numbers));
                }
            }
        }
    }
    if options.output == "json" {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "{:12} {:11} {:7} {:40} {:>14} {:>9} {:>9} {:>9}",
        "Scenario", "Node", "Test", "Address", "Result", "p50 µs", "p90 µs", "p99 µs"
    );
    for row in rows {
        let cell = |key: &str| match &row[key] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            value => value.to_string(),
        };
        println!(
            "{:12} {:11} {:7} {:40} {:>14} {:>9} {:>9} {:>9}",
            cell("scenario"),
            cell("node"),
            cell("test"),
            cell("address"),
            cell("result"),
            cell("p50"),
            cell("p90"),
            cell("p99")
        );
    }
    Ok(())
}

fn row(kind: &str, node: &str, test: &str, address: &str, numbers: &[u64]) -> Value {
    let number = |index: usize| numbers.get(index).copied();
    let unit = if test == "stream" { "Mbit/s" } else { "op/s" };
    json!({
        "scenario": kind,
        "node": node,
        "test": test,
        "address": address,
        "result": format!("{} {unit}", number(0).unwrap_or_default()),
        "value": number(0),
        "p50": number(1),
        "p90": number(2),
        "p99": number(3),
    })
}
