// SPDX-License-Identifier: Apache-2.0

//! The scripts in `healthserver/`, each in a hive of suite `healthserver`.

use std::path::Path;

use run_scripts::{Options, run_folder};

#[tokio::test(flavor = "multi_thread")]
async fn scripts_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("healthserver");
    if let Err(failures) = run_folder("healthserver", &folder, Options::default()).await {
        panic!("{failures}");
    }
}
