// SPDX-License-Identifier: Apache-2.0

//! The recordings of the repository: all must pass, but for intended differences.

use std::path::Path;

use run_pods::{Options, Outcome, Report, run_file};

/// Runs a recording; `different` are the names of its intended differences.
#[track_caller]
fn check(name: &str, different: &[&str]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/{name}.json"));
    let options = Options {
        skips_waits: true,
        ..Options::default()
    };

    let reports = run_file(&file, &options).unwrap_or_else(|error| panic!("{}", error.with_causes()));

    assert!(!reports.is_empty(), "{name} has no scenarios");
    let failed: Vec<String> = reports
        .iter()
        .filter(|report| matches!(report.outcome, Outcome::Failed(_)))
        .map(Report::to_string)
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let found: Vec<&str> = reports
        .iter()
        .filter_map(|report| match &report.outcome {
            Outcome::Different { names, .. } => Some(names.as_slice()),
            _ => None,
        })
        .flatten()
        .copied()
        .collect();
    assert_eq!(found, different);
}

macro_rules! recorded {
    ($($test:ident: $file:literal $different:expr,)*) => {
        $(#[test]
        fn $test() {
            check($file, &$different);
        })*
    };
}

recorded! {
    plugin_add_0_1_0: "cni-add-0-1-0" [],
    plugin_add_0_3_0: "cni-add-0-3-0" [],
    plugin_add_0_3_1: "cni-add-0-3-1" [],
    plugin_add_1_0_0: "cni-add-1-0-0" [],
    plugin_add_1_1_0: "cni-add-1-1-0" [],
    plugin_add_twice: "cni-add-twice" [],
    plugin_agent_answers_add: "cni-agent-answers-add" ["json-error-texts"],
    plugin_agent_answers_del: "cni-agent-answers-del" [],
    plugin_agent_down: "cni-agent-down" [],
    plugin_chain_aws_name: "cni-chain-aws-name" [],
    plugin_chain_errors: "cni-chain-errors" ["go-values"],
    plugin_chain_flannel: "cni-chain-flannel" [],
    plugin_chain_generic_veth_031: "cni-chain-generic-veth-031" [],
    plugin_chain_generic_veth_110: "cni-chain-generic-veth-110" [],
    plugin_chain_generic_veth: "cni-chain-generic-veth" [],
    plugin_chain_mac_annotation: "cni-chain-mac-annotation" [],
    plugin_chain_mode_no_prevresult: "cni-chain-mode-no-prevresult" [],
    plugin_chain_no_address: "cni-chain-no-address" [],
    plugin_cilium_sock_env: "cni-cilium-sock-env" [],
    plugin_debug_log: "cni-debug-log" ["debug-lines", "go-values"],
    plugin_del_forms: "cni-del-forms" ["go-values"],
    plugin_dns_args_fields: "cni-dns-args-fields" [],
    plugin_errors_input: "cni-errors-input" ["json-error-texts", "version-texts"],
    plugin_gc: "cni-gc" [],
    plugin_ids_and_names: "cni-ids-and-names" ["short-container-ids"],
    plugin_ipam_exhausted: "cni-ipam-exhausted" [],
    plugin_labels_bang_first: "cni-labels-bang-first" [],
    plugin_labels_default: "cni-labels-default" [],
    plugin_labels_include: "cni-labels-include" [],
    plugin_multi_pool: "cni-multi-pool" [],
    plugin_parallel: "cni-parallel" [],
    plugin_pod_unknown: "cni-pod-unknown" [],
    plugin_prevresult_no_mode: "cni-prevresult-no-mode" ["json-error-texts"],
    plugin_profile_cp: "cni-profile-cp" [],
    plugin_profile_d: "cni-profile-d" [],
    plugin_profile_t: "cni-profile-t" [],
    plugin_profile_v4: "cni-profile-v4" [],
    plugin_states: "cni-states" [],
    plugin_status: "cni-status" [],
    plugin_version: "cni-version" ["version-texts"],
    configurations_of_the_node: "cniconf" [],
}
