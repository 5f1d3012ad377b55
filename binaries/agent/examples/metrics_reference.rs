// SPDX-License-Identifier: Apache-2.0

//! Prints the reference of the agent's metrics: `tests/hack/generate.sh` writes it to `docs/reference/metrics.md`.

use std::{error::Error, sync::Arc};

use hive::{Hive, Settings};
use skep_agent::Configuration;
use skep_base_metrics::Registry;

fn main() -> Result<(), Box<dyn Error>> {
    let cells = skep_agent::cells(Arc::new(Configuration::default()));
    // Constructed, never started: nothing of the machine is touched.
    let hive = Hive::new(cells).root::<Arc<Registry>>();
    let built = hive.plan(Settings::new())?.build()?;
    let registry = built.get::<Arc<Registry>>().ok_or("the agent has no metrics")?;
    print!("{}", registry.reference());
    Ok(())
}
