// SPDX-License-Identifier: Apache-2.0

//! Prints the reference of the operator's metrics: `tests/hack/generate.sh` writes it to
//! `docs/reference/metrics-operator.md`.

use std::{error::Error, sync::Arc};

use hive::{Hive, Settings};
use skep_base_metrics::Registry;

fn main() -> Result<(), Box<dyn Error>> {
    // Constructed, never started; with all cells that a setting can leave out.
    let hive = Hive::new(skep_operator::cells()).root::<Arc<Registry>>();
    let settings = Settings::new().args([
        "--clustermesh-config=/var/lib/cilium/clustermesh",
        "--clustermesh-enable-mcs-api",
        "--kvstore=etcd",
        "--kvstore-opt=etcd.config=/var/lib/cilium/etcd-config.yaml",
    ]);
    let built = hive.plan(settings)?.build()?;
    let registry = built
        .get::<Arc<Registry>>()
        .ok_or("the operator has no metrics")?;
    print!("{}", registry.reference());
    Ok(())
}
