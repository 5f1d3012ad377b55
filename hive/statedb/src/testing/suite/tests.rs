// SPDX-License-Identifier: Apache-2.0

use std::sync::OnceLock;

use hive::{All, Hive, Settings};
use hive_script::{Archive, Environment, Lifetime, ScriptFile, State, default_commands};

use super::*;

static COMMANDS: OnceLock<Vec<CommandHandle>> = OnceLock::new();

fn keep(commands: All<CommandHandle>) {
    let _ = COMMANDS.set(commands.into_vec());
}

const SCRIPT: &str = "
db/empty test1 test2 test-objects
start-reconciler with-prune
db/insert test-objects obj1.yaml
expect-ops update(1)
* db/cmp test-objects done.table
health 'job-reconcile: level=OK message=OK, 1 object\\(s\\)'
mark-init
expect-ops prune(n=1)
set-faulty true
db/insert test-objects obj2.yaml
expect-ops 'update(2) fail' 'update(2) fail'
* db/cmp test-objects error.table
health 'job-reconcile: level=Degraded message=1 error\\(s\\) error=oops'
set-faulty false
* db/cmp test-objects both.table
db/delete test-objects obj1.yaml
expect-ops delete(1)
prune
expect-ops prune(n=1)
expvar
stdout 'prune_count.test: 2'
stdout 'reconciliation_current_errors.test: 0'
-- obj1.yaml --
id: 1
status:
  kind: Pending
  id: 1
-- obj2.yaml --
id: 2
status:
  kind: Pending
  id: 2
-- done.table --
ID  StatusKind
1   Done
-- error.table --
ID  StatusKind  StatusError
1   Done
2   Error       oops
-- both.table --
ID  StatusKind  StatusError
1   Done
2   Done
";

#[tokio::test]
async fn suite_runs_its_scripts() {
    let cells = [crate::cell(), cell(), Cell::module("runner", "Runner").run(keep)];
    let built = Hive::new(cells)
        .plan(Settings::default())
        .unwrap()
        .build()
        .unwrap();
    let running = built.start().await.unwrap();
    let mut commands = default_commands();
    for command in COMMANDS.get().unwrap() {
        commands.insert(command.spec().name().to_owned(), Arc::clone(command));
    }
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&log);
    let lifetime = Lifetime::until(tokio::time::Instant::now() + Duration::from_secs(20));
    let writer = Box::new(move |text: &str| sink.lock().push_str(text));
    let mut state = State::new(dir.path(), commands, Environment::new(), lifetime, writer);

    let script = ScriptFile::from_archive("suite.txtar", Archive::parse(SCRIPT));
    script.unpack(&mut state).unwrap();
    let result = script.run(&mut state).await;

    assert!(result.is_ok(), "{}\n{}", result.unwrap_err(), log.lock());
    running.stop().await.unwrap();
}
