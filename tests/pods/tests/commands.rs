// SPDX-License-Identifier: Apache-2.0

//! Recordings of commands, and of what an agent writes to Kubernetes: all scenarios must pass, but for intended
//! differences and those that are named here.

use std::path::Path;

use run_pods::{Options, Outcome, run_file};

/// Runs a recording; `known` are the numbers of scenarios that still differ.
#[track_caller]
fn check(name: &str, known: &[usize]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/{name}.json"));

    let reports = run_file(&file, &Options::default());

    let reports = reports.unwrap_or_else(|error| panic!("{}", error.with_causes()));
    assert!(!reports.is_empty(), "{name} has no scenarios");
    let failed = reports
        .iter()
        .enumerate()
        .filter(|(number, report)| matches!(report.outcome, Outcome::Failed(_)) && !known.contains(number));
    let failed: Vec<String> = failed.map(|(_, report)| report.to_string()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

macro_rules! recorded {
    ($($test:ident: $file:literal $known:expr,)*) => {
        $(#[test]
        fn $test() {
            check($file, &$known);
        })*
    };
}

recorded! {
    commands_of_a_cluster_pool: "cli-cluster-pool" [0, 5, 8, 9],
    commands_of_two_nodes: "cli-two-nodes" [4],
    objects_of_pods: "crd-pods" [11, 12],
    objects_of_two_nodes: "crd-idle-two-nodes" [],
    objects_of_slices: "crd-slices-cluster-pool" [],
}
