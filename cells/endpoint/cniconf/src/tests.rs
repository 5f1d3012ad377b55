// SPDX-License-Identifier: Apache-2.0

//! The recorded cases: a directory before and after, and the status.

#![allow(
    clippy::disallowed_methods,
    reason = "watches are in real time, the clock of the runtime is paused"
)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use hive::{Hive, Running, Settings};
use serde_json::{Value, json};
use skep_base_api_types::StatusResponse;

use crate::cell::{CniConfStatus, Probe};

const DIRECTORY: &str = "/etc/cni/net.d";
/// Where sources of `read-cni-conf` were.
const SOURCES: &str = "/var/run/cilium/custom";

/// Starts the cell with the flags of a case, its paths below `root`.
async fn start(root: &Path, flags: &[String]) -> Running {
    let mut all = vec![format!(
        "--write-cni-conf-when-ready={}/05-cilium.conflist",
        root.display()
    )];
    for flag in flags {
        let flag = flag.replace(DIRECTORY, &root.display().to_string());
        let (key, _) = flag.split_once('=').unwrap();
        all.retain(|other| !other.starts_with(key));
        all.push(flag);
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

/// Names, modes and texts in a directory, in the order of their names.
fn listing(root: &Path, directory: &Path) -> Vec<Value> {
    let mut paths: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        let mode = format!("{:#o}", metadata.permissions().mode() & 0o777);
        if metadata.is_dir() {
            found.push(json!({"name": format!("{name}/"), "mode": mode}));
            found.extend(listing(root, &path));
        } else {
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.push(json!({"name": name, "mode": mode, "text": text}));
        }
    }
    found
}

async fn status(running: &Running, root: &Path) -> Value {
    let probe: Arc<dyn skep_base_api::StatusProbe> =
        Arc::new(Probe(running.get::<Arc<CniConfStatus>>().unwrap()));
    let mut response = StatusResponse::default();
    let failure = probe.probe(&mut response).await;
    let failure = failure.map(|part| json!({"state": part.state, "msg": probe.failure(&part.msg)}));
    let text = json!({
        "cni-file": response.cni_file,
        "cni-chaining": response.cni_chaining,
        "cilium": failure.unwrap_or_else(|| json!({"state": "Ok", "msg": env!("CARGO_PKG_VERSION")})),
    });
    let text = text.to_string().replace(&root.display().to_string(), DIRECTORY);
    serde_json::from_str(&text).unwrap()
}

/// Waits until directory and status are as recorded. Time of the runtime passes at once; that of watches does not.
async fn expect(running: &Running, root: &Path, name: &str, directory: &Value, expected: &Value) {
    let mut expected = expected.clone();
    expected
        .as_object_mut()
        .unwrap()
        .remove("controller write-cni-file");
    let message = expected["cilium"]["msg"].as_str().unwrap();
    expected["cilium"]["msg"] = message.replacen(" (v-)", env!("CARGO_PKG_VERSION"), 1).into();
    let mut directory = directory.as_array().unwrap().clone();
    for entry in &mut directory {
        // Directories have no text.
        if entry["name"].as_str().unwrap().ends_with('/') {
            entry.as_object_mut().unwrap().remove("text");
        }
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let found = (listing(root, root), status(running, root).await);
        if found.0 == directory && found.1 == expected {
            return;
        }
        if Instant::now() > deadline {
            assert_eq!(found.1, expected, "{name}");
            assert_eq!(found.0, directory, "{name}");
        }
        std::thread::sleep(Duration::from_millis(2));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Does what a step of a case says: `NAME written`, `NAME changed`, `NAME deleted`, `NAME renamed to NAME`.
fn act(root: &Path, step: &Value) {
    let words: Vec<&str> = step["action"].as_str().unwrap().split(' ').collect();
    let path = root.join(words[0]);
    let text = || {
        let backup = format!("{}.cilium_bak", words[0]);
        let entries = step["directory"].as_array().unwrap().iter();
        let mut named = entries.filter(|entry| entry["name"] == words[0] || entry["name"] == *backup);
        named.next().unwrap()["text"].as_str().unwrap().to_owned()
    };
    match words[1] {
        "written" => fs::write(path, text()).unwrap(),
        "changed" => fs::write(path, "{}").unwrap(),
        "deleted" => fs::remove_file(path).unwrap(),
        "renamed" => {
            fs::write(&path, text()).unwrap();
            fs::rename(path, root.join(words[3])).unwrap();
        }
        other => panic!("unknown action {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_recorded_cases() {
    let recorded: Value = serde_json::from_str(include_str!("../testdata/cniconf.json")).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 14);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let (root, sources) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for file in case["directory_before"].as_array().unwrap() {
            let path = root.path().join(file["name"].as_str().unwrap());
            fs::write(path, file["text"].as_str().unwrap()).unwrap();
        }
        let mut flags: Vec<String> = serde_json::from_value(case["flags"].clone()).unwrap();
        for flag in &mut flags {
            if flag.contains(SOURCES) {
                let source = sources.path().join("source");
                fs::write(&source, case["directory_after"][0]["text"].as_str().unwrap()).unwrap();
                *flag = format!("--read-cni-conf={}", source.display());
            }
        }
        let running = start(root.path(), &flags).await;

        expect(
            &running,
            root.path(),
            name,
            &case["directory_after"],
            &case["status"],
        )
        .await;
        for step in case["steps"].as_array().into_iter().flatten() {
            act(root.path(), step);
            let name = format!("{name}: {}", step["action"]);
            expect(&running, root.path(), &name, &step["directory"], &step["status"]).await;
        }
        running.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_path_nothing_is_written() {
    let root = tempfile::tempdir().unwrap();
    let running = start(root.path(), &["--write-cni-conf-when-ready=".to_owned()]).await;

    tokio::time::sleep(Duration::from_secs(60)).await;

    assert_eq!(
        status(&running, root.path()).await["cni-file"]["state"],
        "Disabled"
    );
    assert_eq!(listing(root.path(), root.path()), [] as [Value; 0]);
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
