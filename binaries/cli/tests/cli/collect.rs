// SPDX-License-Identifier: Apache-2.0

//! `skep debuginfo` and `skep sysdump`, against an agent with recorded answers.

use std::{collections::BTreeMap, fs, io::Read as _, path::Path, process::Command};

use serde_json::{Value, json};

use crate::recorded;

/// Runs `skep` against an agent that knows a secret.
fn skep(folder: &Path, words: &[&str]) -> (bool, String, String) {
    let socket = folder.join("agent.sock");
    if !socket.exists() {
        let info = json!({
            "cilium-version": "1.2.3",
            "endpoint-list": [{"id": 1178, "status": {"identity": {"id": 1}}}],
            "environment-variables": ["etcd-password:hunter2"],
            "subsystem": {"hive": "a tree"},
        });
        let others = [("GET /v1/debuginfo".to_owned(), vec![json!(200), info])];
        recorded::agent(folder, BTreeMap::from(others));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_skep"))
        .current_dir(folder)
        .arg(format!("--host=unix://{}", socket.display()))
        .arg("--shell-sock-path=/nowhere/shell.sock")
        .arg(format!("--bpf-root={}", folder.display()))
        .args(words)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn debug_information_is_a_document() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| skep(folder.path(), words);

    let (_, json, _) = run(&["debuginfo", "--output", "json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&json).unwrap()["cilium-version"],
        "1.2.3"
    );
    let (_, version, _) = run(&["debuginfo", "-o", "jsonpath={.cilium-version}"]);
    assert_eq!(version, "1.2.3\n");

    let (is_ok, text, _) = run(&["debuginfo"]);
    assert!(is_ok && text.starts_with("# Cilium debug information\n"));
    for section in [
        "#### Cilium version\n\n```\n1.2.3\n```",
        "#### Endpoint Health 1178\n\n```\nOverall Health:   OK",
        "#### Identity get 1\n\n```\nID   LABELS\n1    reserved:host\n```",
        "#### hive\n\n```\na tree\n```",
    ] {
        assert!(text.contains(section), "{section}\n{text}");
    }

    let (is_ok, text, _) = run(&["debuginfo", "-f", "-o", "html", "-o", "json"]);
    let kinds: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(is_ok, "{text}");
    assert_eq!(kinds, ["html", "json"]);
    for (words, why) in [
        (&["-o", "html"][..], "requires file"),
        (&["--output-directory", "/tmp"], "requires file"),
        (&["--file-per-command", "-o", "json"], "per command"),
        (&["-o", "xml"], "xml is not a valid output format; exiting\n"),
    ] {
        let (is_ok, _, error) = run(&[&["debuginfo"], words].concat());
        assert!(!is_ok && error.contains(why), "{words:?}: {error}");
    }
}

#[test]
fn the_archive_has_all_parts_and_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("logs/agent.log");
    fs::create_dir(folder.path().join("logs")).unwrap();
    fs::write(&log, "level=info msg=started token=hunter2\n").unwrap();
    let logs = format!("--logs={}", folder.path().join("logs").display());

    let words = [
        "sysdump",
        "--output-filename=dump.tar.gz",
        "--no-kubernetes",
        &logs,
    ];
    let (is_ok, text, errors) = skep(folder.path(), &words);

    assert!(is_ok && text.starts_with("Wrote dump.tar.gz ("), "{text}{errors}");
    let file = fs::File::open(folder.path().join("dump.tar.gz")).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let (_, name) = path.split_once('/').unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        found.insert(name.to_owned(), text);
    }
    for name in [
        "config.txt",
        "endpoints.txt",
        "endpoints/1178/log.txt",
        "identities.json",
        "services.json",
        "debuginfo.json",
        "network.json",
        "files/proc/version",
        "errors.txt",
    ] {
        assert!(
            found.get(name).is_some_and(|text| !text.is_empty()),
            "{name}: {:?}",
            found.keys()
        );
    }
    assert!(found["endpoints.txt"].contains("k8s:app=cart"));
    let log = found.iter().find(|(name, _)| name.ends_with("logs/agent.log"));
    assert_eq!(log.unwrap().1, "level=info msg=started token=REDACTED\n");
    assert!(found["debuginfo.json"].contains("etcd-password:REDACTED"));
    assert!(found.values().all(|text| !text.contains("hunter2")));
    assert!(found["errors.txt"].contains("metrics.txt: "));
}
