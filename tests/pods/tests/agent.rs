// SPDX-License-Identifier: Apache-2.0

//! Recordings of the repository that take an agent: all must pass, but for intended differences.

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
    settings_of_native_routing: "config-A",
    settings_of_two_nodes: "config-A2",
    settings_of_a_chained_plugin: "config-CH",
    settings_of_a_cluster_pool: "config-CP",
    settings_of_delegated_addresses: "config-D",
    settings_of_a_tunnel: "config-T",
    settings_of_ipv6: "config-V6",
    settings_of_interfaces: "config-X",
    settings_with_pools: "config-MP",
    settings_of_ipv4: "config-V4",
    settings: "rest-config",
    options_of_endpoints: "rest-endpoint-config-patch",
    endpoints: "rest-endpoint-get",
    new_endpoints: "rest-endpoint-put",
    parts_of_endpoints: "rest-endpoint-sub",
    health: "rest-healthz",
    addresses: "rest-ipam",
    nodes: "rest-node",
    services: "rest-service",
    others: "rest-other",
    policies: "rest-policy",
    own_changes_of_endpoints: "rest-own-endpoint-change",
    own_deletions_of_endpoints: "rest-own-endpoint-delete",
    own_labels_of_endpoints: "rest-own-endpoint-labels",
    own_identities: "rest-own-identity",
    own_addresses_of_ipv4: "rest-own-ipam-v4",
    own_addresses_of_ipv6: "rest-own-ipam-v6",
    own_addresses_of_pools: "rest-own-ipam-mp",
    own_others: "rest-own-other",
    own_requests_with_a_tunnel: "rest-own-tunnel",
    directories: "state-scene",
    directories_of_a_cluster_pool: "state-cluster-pool",
    queued_deletions: "replay",
    two_nodes: "health-both-up",
    two_nodes_from_the_other: "health-both-up-n2",
}
