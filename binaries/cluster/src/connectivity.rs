// SPDX-License-Identifier: Apache-2.0

//! `connectivity`: pods that reach each other, with and without policies.

mod environment;
mod perf;
mod policies;
mod report;
mod run;
mod scenario;
mod tests;

use std::{error::Error, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use regex::Regex;

use crate::{access::Access, failure};

/// `connectivity`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ConnectivityCommand {
    /// Test the connectivity of pods, services, hosts and the world. The exit status is 1 if a test fails.
    #[command(alias = "t")]
    Test(Box<TestOptions>),
    /// Measure throughput, rate and latency between pods.
    Perf(PerfOptions),
}

/// Where the pods of the test come from.
#[derive(Debug, Clone, Args)]
pub(crate) struct EnvironmentOptions {
    /// Namespace of the test; `-1` is appended.
    #[arg(long, default_value = "cilium-test")]
    pub(crate) test_namespace: String,
    /// Image of all pods of the test.
    #[arg(long, default_value = concat!("localhost/skep/connectivity:", env!("CARGO_PKG_VERSION")))]
    pub(crate) image: String,
    /// Labels of nodes that get pods, `key=value`.
    #[arg(long, value_delimiter = ',')]
    pub(crate) node_selector: Vec<String>,
    /// Pods tolerate all taints.
    #[arg(long)]
    pub(crate) tolerate_all: bool,
    /// Put all pods on one node; the default where there is one.
    #[arg(long)]
    pub(crate) single_node: bool,
    /// Remove pods of an earlier test first.
    #[arg(long)]
    pub(crate) force_deploy: bool,
    /// Context of a second cluster of the mesh, where the pods of the other node are.
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) multi_cluster: Option<String>,
    /// Time for pods to start.
    #[arg(long, default_value = "5m", value_parser = skep_duration::parse_duration)]
    pub(crate) deploy_timeout: Duration,
}

/// Options of `test`.
#[derive(Debug, Clone, Args)]
pub(crate) struct TestOptions {
    #[command(flatten)]
    environment: EnvironmentOptions,
    /// Regular expressions of tests, or TEST/SCENARIO; `!` excludes.
    #[arg(long, value_delimiter = ',')]
    test: Vec<String>,
    /// List the tests and what they require.
    #[arg(long)]
    list: bool,
    /// Name in the world.
    #[arg(long, default_value = "one.one.one.one.")]
    external_target: String,
    /// Address in the world.
    #[arg(long, default_value = "1.1.1.1")]
    external_ip: String,
    /// Another address in the world.
    #[arg(long, default_value = "1.0.0.1")]
    external_other_ip: String,
    /// Network of the addresses in the world.
    #[arg(long, default_value = "1.0.0.0/8")]
    external_cidr: String,
    /// Port of the addresses in the world.
    #[arg(long, default_value_t = 80)]
    external_port: u16,
    /// Skip tests that leave the cluster.
    #[arg(long)]
    no_external: bool,
    /// Time to connect.
    #[arg(long, default_value = "2s", value_parser = skep_duration::parse_duration)]
    connect_timeout: Duration,
    /// Attempts of what must succeed.
    #[arg(long, default_value_t = 3)]
    retry: u32,
    /// Address families.
    #[arg(long, value_delimiter = ',', default_value = "ipv4,ipv6")]
    ip_families: Vec<String>,
    /// File for the results in JUnit's format.
    #[arg(long)]
    junit_file: Option<PathBuf>,
    /// Write the archive of `skep sysdump` if a test fails.
    #[arg(long)]
    collect_sysdump_on_failure: bool,
    /// Exit with status 0 also if tests fail.
    #[arg(long)]
    exit_zero_on_failure: bool,
    /// Print every action.
    #[arg(short, long)]
    verbose: bool,
    /// Stop at the first test that fails, and leave its policies.
    #[arg(short, long)]
    pause_on_fail: bool,
    /// Remove the pods and namespaces of the test, and exit.
    #[arg(long)]
    cleanup: bool,
    /// Words that agents may log at level warning or error, as regular expressions.
    #[arg(long, value_name = "REGEX")]
    expected_logs: Vec<String>,
    /// Reasons of drops that are expected, `+` and `-` change the list.
    #[arg(long, value_delimiter = ',')]
    expected_drop_reasons: Vec<String>,
}

/// Options of `perf`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PerfOptions {
    #[command(flatten)]
    environment: EnvironmentOptions,
    /// Time of each measurement.
    #[arg(long, default_value = "10s", value_parser = skep_duration::parse_duration)]
    duration: Duration,
    /// Output format: text or json.
    #[arg(short, long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

/// Which tests and scenarios run.
struct Filter {
    wanted: Vec<(Regex, Option<Regex>)>,
    unwanted: Vec<(Regex, Option<Regex>)>,
}

impl Filter {
    fn new(texts: &[String]) -> Result<Self, Box<dyn Error>> {
        let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
        for text in texts {
            let (list, text) = match text.strip_prefix('!') {
                Some(text) => (&mut unwanted, text),
                None => (&mut wanted, text.as_str()),
            };
            let (test, scenario) = match text.split_once('/') {
                Some((test, scenario)) => (test, Some(scenario)),
                None => (text, None),
            };
            let regex =
                |text: &str| Regex::new(text).map_err(|error| failure(format!("--test {text}: {error}")));
            list.push((regex(test)?, scenario.map(regex).transpose()?));
        }
        Ok(Self { wanted, unwanted })
    }

    fn has(&self, test: &str, scenario: &str) -> bool {
        let matches = |(one, other): &(Regex, Option<Regex>)| {
            one.is_match(test) && other.as_ref().is_none_or(|other| other.is_match(scenario))
        };
        (self.wanted.is_empty() || self.wanted.iter().any(matches)) && !self.unwanted.iter().any(matches)
    }
}

/// Runs `connectivity`.
pub(crate) async fn run(access: &Access, command: &ConnectivityCommand) -> Result<(), Box<dyn Error>> {
    match command {
        ConnectivityCommand::Test(options) => run::run(access, options).await,
        ConnectivityCommand::Perf(options) => perf::run(access, options).await,
    }
}

#[cfg(test)]
mod filter_tests {
    use super::*;

    #[test]
    fn tests_are_chosen_by_name_and_scenario() {
        let filter = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            Filter::new(&texts).unwrap()
        };

        assert!(filter(&[]).has("no-policies", "pod-to-pod"));
        assert!(filter(&["no-"]).has("no-policies", "pod-to-pod"));
        assert!(!filter(&["no-", "!/world"]).has("no-policies", "pod-to-world"));
        assert!(filter(&["no-policies/pod-to-pod"]).has("no-policies", "pod-to-pod"));
        assert!(!filter(&["no-policies/pod-to-pod"]).has("no-policies", "pod-to-world"));
        assert!(Filter::new(&["(".to_owned()]).is_err());
    }
}
