// SPDX-License-Identifier: Apache-2.0

//! Sub-command `mcsapi-coredns-cfg`: configures CoreDNS for the multi-cluster services API, once.

use hive::{Cell, Program};

use crate::{server, unsupported};

#[must_use]
pub fn cells() -> Vec<Cell> {
    vec![
        skep_base_logging::cell(),
        skep_k8s_client::remote::cell(),
        skep_clustermesh_coredns::cell(),
        skep_clustermesh_coredns::exit_cell(),
        unsupported::cell(),
    ]
}

/// The sub-command as a program.
pub(crate) fn program() -> Program {
    let about = "Configures CoreDNS for the multi-cluster services API.";
    server::program("skep-clustermesh-apiserver mcsapi-coredns-cfg", about, cells())
}

/// Runs the sub-command; returns the exit code.
pub(crate) fn command(args: Vec<String>, env: Vec<(String, String)>) -> u8 {
    program().run_with(args, env)
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings, testing};

    use super::*;

    #[test]
    fn every_cell_is_in_the_catalogue() {
        assert_eq!(testing::not_in_catalogue(&cells()), [""; 0]);
    }

    #[test]
    fn the_sub_command_has_the_flags_of_cilium() {
        let args = [
            "--coredns-deployment-name=dns",
            "--coredns-configmap-name=dns",
            "--coredns-namespace=dns",
            "--coredns-cluster-domain=cluster.example",
            "--coredns-clusterset-domain=clusterset.example",
        ];
        let plan = testing::plan(Hive::new(cells()), Settings::new().args(args));

        let findings: Vec<_> = plan.report().findings().iter().map(ToString::to_string).collect();
        assert_eq!(findings, [""; 0]);
    }
}
