// SPDX-License-Identifier: Apache-2.0

//! What recordings do not have; those are in `tests/pods`.

#![allow(
    clippy::disallowed_methods,
    reason = "watches are in real time, the clock of the runtime is paused"
)]

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use hive::{Hive, Running, Settings};
use skep_base_api::StatusProbe as _;
use skep_base_api_types::{State, StatusResponse};

use crate::cell::{CniConfStatus, Probe};

/// Starts the cell with the flags of a case, its paths below `root`.
async fn start(root: &Path, flags: &[String]) -> Running {
    let mut all = vec![format!(
        "--write-cni-conf-when-ready={}/05-cilium.conflist",
        root.display()
    )];
    for flag in flags {
        let (key, _) = flag.split_once('=').unwrap();
        all.retain(|other| !other.starts_with(key));
        all.push(flag.clone());
    }
    let cells = [
        skep_base_settings::cell(),
        skep_base_logging::cell(),
        crate::cell(),
    ];
    let hive = Hive::new(cells).root::<Arc<CniConfStatus>>();
    let running = hive.plan(Settings::new().args(all)).unwrap().build().unwrap();
    running.start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn without_a_path_nothing_is_written() {
    let root = tempfile::tempdir().unwrap();
    let running = start(root.path(), &["--write-cni-conf-when-ready=".to_owned()]).await;

    tokio::time::sleep(Duration::from_secs(60)).await;

    let mut response = StatusResponse::default();
    let probe = Probe(running.get::<Arc<CniConfStatus>>().unwrap());
    assert!(probe.probe(&mut response).await.is_none());
    assert_eq!(response.cni_file.unwrap().state, State::Disabled);
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_directory_made_by_the_first_pass_is_watched() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("net.d");
    let flags = [
        format!(
            "--write-cni-conf-when-ready={}/05-cilium.conflist",
            directory.display()
        ),
        "--cni-exclusive=true".to_owned(),
    ];
    let running = start(root.path(), &flags).await;
    let until = async |path: &Path| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !path.exists() {
            assert!(Instant::now() < deadline, "no {}", path.display());
            std::thread::sleep(Duration::from_millis(2));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    until(&directory.join("05-cilium.conflist")).await;

    fs::write(directory.join("10-other.conf"), "{}").unwrap();

    until(&directory.join("10-other.conf.cilium_bak")).await;
    running.stop().await.unwrap();
}
