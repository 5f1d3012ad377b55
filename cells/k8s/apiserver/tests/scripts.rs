// SPDX-License-Identifier: Apache-2.0

//! The commands of the fake client, run by scripts.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;
use std::sync::{Arc, Mutex};

use hive_script::{Environment, Lifetime, ScriptFile, State, default_commands, named};
use skep_k8s_apiserver::{FakeClient, command};
use statedb::Db;

#[tokio::test(flavor = "multi_thread")]
async fn scripts_pass() {
    let mut files: Vec<_> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "txtar"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for path in files {
        let db = Db::new();
        let fake = FakeClient::new(db.clone()).unwrap();
        let mut commands = default_commands();
        commands.extend(command::commands(&fake).into_iter().map(named));
        commands.extend(statedb::command::commands(&db).into_iter().map(named));
        let work = tempfile::tempdir().unwrap();
        let script = ScriptFile::load(&path).unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let writer = log.clone();
        let mut state = State::new(
            work.path(),
            commands,
            Environment::default(),
            Lifetime::unlimited(),
            Box::new(move |text| writer.lock().unwrap().push_str(text)),
        );
        script.unpack(&mut state).unwrap();
        if let Err(error) = script.run(&mut state).await {
            panic!("{}: {error}\n{}", path.display(), log.lock().unwrap());
        }
    }
}
