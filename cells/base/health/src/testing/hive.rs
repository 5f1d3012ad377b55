// SPDX-License-Identifier: Apache-2.0

//! Suite `hive`: the framework itself, with the cells that every program has. It is here because this crate depends on
//! the others of them.

use hive::Hive;
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use hive_script::{default_conditions, named, skip_command, test_conditions};

use super::base_cells;

hive_script::suite!(Suite::new(
    "hive",
    "Script engine and hive commands",
    "testdata/hive",
    assemble
));

fn assemble(setup: Setup) -> Assembling {
    Box::pin(async move {
        let mut conditions = default_conditions();
        conditions.extend(test_conditions(false, setup.verbose));
        let mut parts = Assembly::new(|| Hive::new(base_cells()))
            .flags(&setup)
            .ignore_arguments()
            .conditions(conditions)
            .process_environment()
            .recreatable()
            .build()
            .await?;
        parts.commands.extend([named(skip_command())]);
        Ok(parts)
    })
}
