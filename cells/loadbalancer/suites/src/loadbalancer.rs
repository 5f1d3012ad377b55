// SPDX-License-Identifier: Apache-2.0

//! Suite `loadbalancer`: services of a fake Kubernetes client into maps.

use std::time::Duration;

use hive_script::testing::{Assembling, Setup, Suite};
use hive_script::{Condition, Conditions};

use crate::cells::{assemble, load_balancer, quick};
use crate::maps::{self, MAPS};

hive_script::suite!(
    Suite::new(
        "loadbalancer",
        "Services into load-balancing maps",
        "testdata/loadbalancer",
        assemble_suite
    )
    .retry_interval(Duration::from_millis(20))
    .choices(&[MAPS])
    .prepare(maps::hide_mounts)
);

fn assemble_suite(setup: Setup) -> Assembling {
    let are_real = maps::are_real(&setup.choices);
    let privileged = Condition::fixed("the maps are those of the kernel", are_real);
    quick(assemble(&setup, load_balancer))
        .conditions(Conditions::from([("privileged".to_owned(), privileged)]))
        .build()
}
