// SPDX-License-Identifier: Apache-2.0

//! The scripts in `loadbalancer/`, each in a hive of suite `loadbalancer`.

use std::path::Path;

use run_scripts::{Options, run_folder};

#[tokio::test(flavor = "multi_thread")]
async fn scripts_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("loadbalancer");
    if let Err(failures) = run_folder("loadbalancer", &folder, Options::default()).await {
        panic!("{failures}");
    }
}
