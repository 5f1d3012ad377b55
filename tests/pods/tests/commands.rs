// SPDX-License-Identifier: Apache-2.0

//! Recordings of commands, and of what an agent writes to Kubernetes: all scenarios must pass, but for intended
//! differences.

use std::path::Path;

use run_pods::{Options, Outcome, Report, run_file};

#[track_caller]
fn check(name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/{name}.json"));

    let reports = run_file(&file, &Options::default());

    let reports = reports.unwrap_or_else(|error| panic!("{}", error.with_causes()));
    assert!(!reports.is_empty(), "{name} has no scenarios");
    let failed = reports
        .iter()
        .filter(|report| matches!(report.outcome, Outcome::Failed(_)));
    let failed: Vec<String> = failed.map(Report::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

macro_rules! recorded {
    ($($test:ident: $file:literal,)*) => {
        $(#[test]
        fn $test() {
            check($file);
        })*
    };
}

recorded! {
    commands_of_a_cluster_pool: "cli-cluster-pool",
    commands_of_two_nodes: "cli-two-nodes",
    objects_of_pods: "crd-pods",
    objects_of_two_nodes: "crd-idle-two-nodes",
    objects_of_slices: "crd-slices-cluster-pool",
    objects_of_unused_identities: "crd-idle-identity-gc",
}
