// SPDX-License-Identifier: Apache-2.0

//! The scripts in `redirectpolicy/`, each in a hive of suite `redirectpolicy`.

use std::path::Path;

use run_scripts::{Options, run_folder};

#[tokio::test(flavor = "multi_thread")]
async fn scripts_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("redirectpolicy");
    if let Err(failures) = run_folder("redirectpolicy", &folder, Options::default()).await {
        panic!("{failures}");
    }
}
