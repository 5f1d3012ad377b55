// SPDX-License-Identifier: Apache-2.0

//! The framework itself: the engine with all conditions, and a hive with the cells that every hive has.

use std::time::Duration;

use futures::future::BoxFuture;
use hive_script::{Retry, default_conditions, named, skip_command, test_conditions};

use crate::{Assembly, AssemblyError, Parts, Setup, Suite, base_cells};

pub(super) const SUITE: Suite = Suite {
    name: "hive",
    summary: "Script engine and hive commands",
    retry: Retry {
        interval: Duration::from_millis(100),
        max_interval: Duration::from_millis(500),
        limit: None,
    },
    timeout: Duration::from_secs(10),
    assemble,
};

fn assemble(setup: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    Box::pin(async move {
        let mut conditions = default_conditions();
        conditions.extend(test_conditions(false, setup.verbose));
        let assembly = Assembly::new(base_cells)
            .flags(&setup)
            .conditions(conditions)
            .process_environment()
            .recreatable();
        let mut parts = assembly.build().await?;
        parts.commands.extend([named(skip_command())]);
        Ok(parts)
    })
}
