// SPDX-License-Identifier: Apache-2.0

//! Sub-command `build-config`: writes the configuration in the cluster to a directory, before the agent starts.

use hive::{Cell, Program};

use crate::start_logging;

#[must_use]
pub fn cells() -> Vec<Cell> {
    vec![
        skep_base_logging::cell(),
        skep_k8s_client::remote::cell(),
        skep_base_settings::node_name::cell(),
        skep_k8s_dynamicconfig::build::cell(),
    ]
}

/// The sub-command as a program.
#[must_use]
pub fn program() -> Program {
    Program::new("skep-agent build-config", cells())
        .about("Writes the configuration of this node in the cluster to a directory, for the agent's config-dir.")
        .version(env!("CARGO_PKG_VERSION"))
        .env_prefix("CILIUM")
        .path_name("cilium")
        .setup(start_logging)
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings, testing};

    use super::*;

    #[test]
    fn the_sub_command_has_the_flags_of_cilium() {
        assert_eq!(testing::not_in_catalogue(&cells()), [""; 0]);
        let args = [
            "--dest=/tmp/x",
            "--node-name=n1",
            "--source=config-map:cilium-config,cilium-node-config:kube-system",
            "--allow-config-keys=a,b",
            "--deny-config-keys=",
            "--k8s-kubeconfig-path=",
            "--k8s-api-server-urls=",
            "--k8s-client-qps=5",
        ];
        let plan = testing::plan(Hive::new(cells()), Settings::new().args(args));

        let findings: Vec<_> = plan.report().findings().iter().map(ToString::to_string).collect();
        assert_eq!(findings, [""; 0]);
    }
}
