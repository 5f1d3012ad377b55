// SPDX-License-Identifier: Apache-2.0

//! The scripts in `k8s-client/`, each in a hive of suite `k8s-client`.

use std::path::Path;

use run_scripts::{Options, run_folder};

#[tokio::test(flavor = "multi_thread")]
async fn scripts_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("k8s-client");
    if let Err(failures) = run_folder("k8s-client", &folder, Options::default()).await {
        panic!("{failures}");
    }
}
