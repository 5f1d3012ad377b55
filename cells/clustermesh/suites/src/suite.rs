// SPDX-License-Identifier: Apache-2.0

//! Suite `clustermesh`.

use std::time::Duration;

use hive::Hive;
use hive_script::testing::{Assembling, AssemblyError, Choices, Setup, Suite};
use skep_loadbalancer_suites::cells::{assemble, load_balancer, quick};

use crate::clusters;

hive_script::suite!(
    Suite::new(
        "clustermesh",
        "Services of remote clusters into load-balancing maps",
        "testdata/clustermesh",
        assemble_suite
    )
    .retry_interval(Duration::from_millis(100))
);

fn assemble_suite(setup: Setup) -> Assembling {
    match clusters::write_files(&setup.state_dir) {
        Ok(directory) => quick(assemble(&setup, hive))
            .preset("lb-test-fault-probability", "0")
            .preset("clustermesh-config", directory.to_string_lossy())
            .build(),
        Err(cause) => Box::pin(async {
            Err(AssemblyError::Prepare {
                what: "the configurations of the clusters",
                cause: Box::new(cause),
            })
        }),
    }
}

/// The load balancer with the cluster mesh of the agent, without nodes, addresses and identities.
fn hive(choices: &Choices) -> Hive {
    load_balancer(choices)
        .with(clusters::cell())
        .with(skep_clustermesh_types::command::suite_commands())
        .with(skep_kvstore_client::table::cell("__all__"))
        .with(skep_base_settings::cluster::cell())
        .with(skep_clustermesh_mesh::cell())
        .with(skep_clustermesh_mesh::services::cell())
}
