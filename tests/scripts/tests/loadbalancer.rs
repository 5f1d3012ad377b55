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

/// The same scripts on maps in the kernel; a process of its own, because it needs its own mount namespace.
#[test]
fn scripts_pass_with_maps_of_the_kernel() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("loadbalancer");
    let mut scripts: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    scripts.sort();

    let output = std::process::Command::new(env!("CARGO_BIN_EXE_run-scripts"))
        .args(["--hive", "loadbalancer", "--maps", "bpf", "--time", "60s"])
        .args(&scripts)
        .output()
        .unwrap();

    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.ends_with(&format!("{} passed, 0 failed\n", scripts.len())),
        "{text}"
    );
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("run-scripts-"), "{mounts}");
}
