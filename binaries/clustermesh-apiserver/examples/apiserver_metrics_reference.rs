// SPDX-License-Identifier: Apache-2.0

//! Prints the reference of the metrics of `clustermesh` or `kvstoremesh`, the argument: `tests/hack/generate.sh` writes it
//! to `docs/reference/metrics-clustermesh.md` and `docs/reference/metrics-kvstoremesh.md`.

use std::{env, error::Error, sync::Arc};

use hive::{Hive, Settings};
use skep_base_metrics::Registry;
use skep_clustermesh_apiserver::{clustermesh, kvstoremesh};

fn main() -> Result<(), Box<dyn Error>> {
    let cells = match env::args().nth(1).as_deref() {
        Some("clustermesh") => clustermesh::cells(),
        Some("kvstoremesh") => kvstoremesh::cells(),
        _ => return Err("the argument must be clustermesh or kvstoremesh".into()),
    };
    // Constructed, never started.
    let hive = Hive::new(cells).root::<Arc<Registry>>();
    let settings = Settings::new().args([
        "--cluster-id=1",
        "--cluster-name=alder",
        "--kvstore=etcd",
        "--kvstore-opt=etcd.config=/var/lib/cilium/etcd-config.yaml",
    ]);
    let built = hive.plan(settings)?.build()?;
    let registry = built.get::<Arc<Registry>>().ok_or("the program has no metrics")?;
    print!("{}", registry.reference());
    Ok(())
}
