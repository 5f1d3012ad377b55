// SPDX-License-Identifier: Apache-2.0

//! `status`: the whole installation.

mod collect;
mod print;

use std::{collections::BTreeMap, error::Error, time::Duration};

use clap::Args;
use serde::Serialize;
use serde_json::Value;

pub(crate) use collect::collect;

use crate::{access::Access, failure};

/// Options of `status`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StatusOptions {
    /// Wait until the status is healthy.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Time to wait for.
    #[arg(long, default_value = "5m", value_parser = skep_duration::parse_duration)]
    pub(crate) wait_duration: Duration,
    /// Warnings do not keep --wait waiting.
    #[arg(long)]
    pub(crate) ignore_warnings: bool,
    /// Agents that are asked at a time.
    #[arg(long, default_value_t = 5)]
    pub(crate) worker_count: usize,
    /// Output format: summary or json.
    #[arg(short, long, default_value = "summary", value_parser = ["summary", "json"])]
    pub(crate) output: String,
    /// Accepted: the status is printed once.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true",
        action = clap::ArgAction::Set)]
    pub(crate) interactive: bool,
    /// Print more about what is waited for.
    #[arg(long)]
    pub(crate) verbose: bool,
}

impl StatusOptions {
    pub(crate) fn waiting(wait_duration: Duration) -> Self {
        Self {
            wait: true,
            wait_duration,
            ignore_warnings: false,
            worker_count: 5,
            output: "summary".to_owned(),
            interactive: true,
            verbose: false,
        }
    }
}

/// Pods of a component, as its controller counts them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Kind of the controller.
    #[serde(rename = "Type")]
    pub(crate) kind: String,
    /// Desired pods.
    #[serde(rename = "Desired")]
    pub(crate) desired: i64,
    /// Ready pods.
    #[serde(rename = "Ready")]
    pub(crate) ready: i64,
    /// Available pods.
    #[serde(rename = "Available")]
    pub(crate) available: i64,
    /// Unavailable pods.
    #[serde(rename = "Unavailable")]
    pub(crate) unavailable: i64,
}

/// Errors and warnings of a pod, or of a whole component under its own name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Findings {
    /// Errors.
    #[serde(rename = "Errors")]
    pub(crate) errors: Vec<String>,
    /// Warnings.
    #[serde(rename = "Warnings")]
    pub(crate) warnings: Vec<String>,
    /// The component is not installed.
    #[serde(rename = "Disabled")]
    pub(crate) disabled: bool,
}

/// Pods of the cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PodsCount {
    /// Pods with a network of their own.
    #[serde(rename = "All")]
    pub(crate) all: usize,
    /// Pods with an endpoint.
    #[serde(rename = "ByCilium")]
    pub(crate) managed: usize,
}

/// What is known about the installation.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Status {
    /// Images of a component, and how many of its containers have each.
    pub(crate) image_count: BTreeMap<String, BTreeMap<String, usize>>,
    /// Phases of the pods of a component.
    pub(crate) phase_count: BTreeMap<String, BTreeMap<String, usize>>,
    /// Controllers of components.
    pub(crate) pod_state: BTreeMap<String, Counts>,
    /// Pods of the cluster.
    pub(crate) pods_count: PodsCount,
    /// Status of each agent.
    pub(crate) cilium_status: BTreeMap<String, Value>,
    /// Endpoints of each agent.
    pub(crate) cilium_endpoints: BTreeMap<String, Value>,
    /// By component and pod.
    pub(crate) errors: BTreeMap<String, BTreeMap<String, Findings>>,
    /// What could not be collected.
    pub(crate) collection_errors: Vec<String>,
    /// Chart and version of the release.
    pub(crate) helm_chart_version: String,
    /// What the ConfigMap says about itself.
    pub(crate) config_errors: Vec<String>,
}

impl Status {
    pub(crate) fn findings(&mut self, component: &str, pod: &str) -> &mut Findings {
        let pods = self.errors.entry(component.to_owned()).or_default();
        pods.entry(pod.to_owned()).or_default()
    }

    fn count(&self, of: impl Fn(&Findings) -> usize) -> usize {
        self.errors.values().flat_map(BTreeMap::values).map(of).sum()
    }

    /// Whether nothing is wrong.
    pub(crate) fn is_healthy(&self, ignore_warnings: bool) -> bool {
        let warnings = if ignore_warnings {
            0
        } else {
            self.count(|one| one.warnings.len())
        };
        self.collection_errors.is_empty() && self.count(|one| one.errors.len()) == 0 && warnings == 0
    }

    /// All errors and warnings, a line each.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for pods in self.errors.values() {
            for (pod, found) in pods {
                lines.extend(found.errors.iter().map(|text| format!("{pod}: {text}")));
                lines.extend(found.warnings.iter().map(|text| format!("{pod}: {text}")));
            }
        }
        lines
    }
}

/// Prints the status; whether it is healthy, as the exit status says it.
///
/// # Errors
///
/// If it does not become healthy in time.
pub(crate) async fn run(access: &Access, options: &StatusOptions) -> Result<bool, Box<dyn Error>> {
    let deadline = tokio::time::Instant::now() + options.wait_duration;
    let mut status = collect(access, options.worker_count).await;
    let mut said = String::new();
    while options.wait && !status.is_healthy(options.ignore_warnings) {
        let waits = status
            .lines()
            .first()
            .or(status.collection_errors.first())
            .cloned();
        let waits = waits.unwrap_or_default();
        if tokio::time::Instant::now() > deadline {
            eprint!("{}", print::text(&status));
            return Err(failure(format!(
                "Unable to determine status:  timeout while waiting for status to become successful: {waits}"
            )));
        }
        if options.verbose || said != waits {
            eprintln!("⌛ Waiting: {waits}");
            said = waits;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        status = collect(access, options.worker_count).await;
    }
    match options.output.as_str() {
        "json" => println!("{}", serde_json::to_string_pretty(&status)?),
        _ => print!("{}", print::text(&status)),
    }
    if !status.collection_errors.is_empty() {
        let errors = status.collection_errors.join(", ");
        return Err(failure(format!("status check failed: [{errors}]")));
    }
    Ok(true)
}
