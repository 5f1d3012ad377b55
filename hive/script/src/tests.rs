// SPDX-License-Identifier: Apache-2.0

//! The engine from outside: whole scripts and their logs.

mod builtins;
mod language;
mod retry;
mod update;
mod words;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use crate::*;

/// A script in a directory of its own.
struct Bench {
    dir: TempDir,
    state: State,
    log: Arc<Mutex<String>>,
}

impl Bench {
    fn new() -> Self {
        Self::with_lifetime(Lifetime::unlimited())
    }

    fn with_deadline(after: Duration) -> Self {
        Self::with_lifetime(Lifetime::until(tokio::time::Instant::now() + after))
    }

    fn with_lifetime(lifetime: Lifetime) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let sink = log.clone();
        let mut commands = default_commands();
        commands.insert("skip".to_owned(), skip_command());
        commands.insert(
            "panic".to_owned(),
            function(Spec::new("panic", ""), |_, _| panic!("on purpose")),
        );
        let state = State::new(
            dir.path(),
            commands,
            Environment::new(),
            lifetime,
            Box::new(move |text| sink.lock().unwrap().push_str(text)),
        );
        let retry = Retry {
            interval: Duration::from_millis(5),
            max_interval: Duration::from_millis(20),
            limit: None,
        };
        Self {
            dir,
            state: state.with_retry(retry),
            log,
        }
    }

    /// Changes the state's settings.
    fn set(mut self, change: impl FnOnce(State) -> State) -> Self {
        self.state = change(self.state);
        self
    }

    /// Adds a command.
    fn command(mut self, command: CommandHandle) -> Self {
        self.state
            .commands
            .insert(command.spec().name().to_owned(), command);
        self
    }

    async fn run(&mut self, text: &str) -> Result<Ending, String> {
        let script = ScriptFile::from_archive(self.dir.path().join("../test.txtar"), Archive::parse(text));
        script
            .unpack(&mut self.state)
            .map_err(|error| error.to_string())?;
        script
            .run(&mut self.state)
            .await
            .map_err(|error| error.to_string())
    }

    #[track_caller]
    fn assert_log(&self, expected: &str) {
        assert_eq!(self.text(), expected);
    }

    fn text(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(file)).unwrap()
    }
}

/// A command that fails until it was called `passes_at` times; it prints the number of the call.
fn counter(name: &str, passes_at: u32) -> (CommandHandle, Arc<Mutex<u32>>) {
    let calls = Arc::new(Mutex::new(0));
    let count = calls.clone();
    let command = function(Spec::new(name, "Count calls").args("[args...]"), move |_, inv| {
        let mut count = count.lock().unwrap();
        *count += 1;
        if *count < passes_at {
            return Err(CommandError::new(format_args!(
                "call {count} with {} args",
                inv.args().len()
            )));
        }
        Ok(Outcome::stdout(format!("call {count}\n")))
    });
    (command, calls)
}
