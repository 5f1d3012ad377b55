// SPDX-License-Identifier: Apache-2.0

//! Suite `redirectpolicy`: services and addresses to pods of the node, by local redirect policies.

use std::time::Duration;

use hive_script::testing::{Assembling, Setup, Suite};

use crate::cells::{assemble, load_balancer};
use crate::maps::{self, MAPS};

hive_script::suite!(
    Suite::new(
        "redirectpolicy",
        "Local redirect policies",
        "testdata/redirectpolicy",
        assemble_suite
    )
    .retry_interval(Duration::from_millis(10))
    .choices(&[MAPS])
    .prepare(maps::hide_mounts)
);

fn assemble_suite(setup: Setup) -> Assembling {
    assemble(&setup, load_balancer)
        .preset("enable-local-redirect-policy", "true")
        .preset("lb-test-fault-probability", "0")
        .build()
}
