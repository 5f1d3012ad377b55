// SPDX-License-Identifier: Apache-2.0

//! The scripts in `health/`, each in a hive of suite `health`.

use std::path::Path;

use run_scripts::{Options, run_folder};

#[tokio::test(flavor = "multi_thread")]
async fn scripts_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("health");
    if let Err(failures) = run_folder("health", &folder, Options::default()).await {
        panic!("{failures}");
    }
}
