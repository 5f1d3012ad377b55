// SPDX-License-Identifier: Apache-2.0

//! The scripts in `metrics/`, each in a hive of suite `metrics`.

use std::path::Path;

use run_scripts::{Options, run_folder};

#[tokio::test(flavor = "multi_thread")]
async fn scripts_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("metrics");
    if let Err(failures) = run_folder("metrics", &folder, Options::default()).await {
        panic!("{failures}");
    }
}
