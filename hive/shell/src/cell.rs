// SPDX-License-Identifier: Apache-2.0

//! Cell: serves the commands of all cells on a unix socket.
//! Requires: the group of [`CommandHandle`]s. Provides nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hive::{All, Backoff, Cell, Cfg, Controller, Job, JobCtx, Jobs, Retry, SpawnError};
use hive_script::{CommandHandle, CommandSet, named, shell_commands};
use skep_listen::{BindError, Unix};

use crate::{Server, command};

/// The setting of the socket.
const SETTING: &str = "shell-sock-path";
/// Pause between attempts to listen.
const RETRY: Duration = Duration::from_secs(10);

/// The shell of a program.
///
/// ```
/// use hive::{Cell, Hive, Settings};
/// use hive_script::{CommandHandle, Outcome, Spec, function};
///
/// fn new_command() -> hive::Member<CommandHandle> {
///     hive::Member(function(Spec::new("greet", "Say hello"), |_, _| Ok(Outcome::stdout("hello\n"))))
/// }
///
/// let cells = [skep_shell::cell(), Cell::module("greeter", "Greets").provide(new_command)];
/// # let settings = Settings::new().flag("shell-sock-path", "/tmp/greeter.sock");
/// Hive::new(cells).plan(settings).unwrap();
/// ```
pub fn cell() -> Cell {
    Cell::module("shell", "Shell for debugging")
        .config::<Config>()
        .run(serve)
}

/// Where the shell listens.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Path of the shell's unix socket; empty: disabled.
    #[config(default = "/var/run/{program}/shell.sock", flag = "shell-sock-path")]
    pub path: PathBuf,
}

fn serve(
    config: Cfg<Config>,
    commands: All<CommandHandle>,
    controller: Controller,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    if config.path.as_os_str().is_empty() {
        return Ok(());
    }
    let mut all: CommandSet = shell_commands();
    all.extend(
        command::commands(&controller)
            .into_iter()
            .chain(commands)
            .map(named),
    );
    let commands = Arc::new(all);
    let path = config.path.clone();
    let job = Job::once("listener", move |cx: JobCtx| {
        let (path, commands) = (path.clone(), commands.clone());
        async move {
            let socket = Unix::new(&path).setting(SETTING).bind()?;
            cx.health.ok("Listening");
            Server::new(socket, commands.as_ref().clone())
                .serve(cx.token.clone())
                .await;
            Ok::<(), BindError>(())
        }
    });
    jobs.spawn(job.retry(Retry::forever().backoff(Backoff::constant(RETRY))))
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Level, Lifecycle, Member, Settings};
    use hive_script::{Outcome, Spec, function};

    use super::*;
    use crate::{Client, ClientError};

    fn greet() -> Member<CommandHandle> {
        Member(function(Spec::new("greet", "Say hello"), |_, _| {
            Ok(Outcome::stdout("hello\n"))
        }))
    }

    async fn run(path: &std::path::Path, command: &str) -> (String, Result<(), ClientError>) {
        let mut client = Client::connect_patiently(path, |_| {}).await.unwrap();
        let mut text = String::new();
        let result = client.run(command, |chunk| text.push_str(chunk)).await;
        (text, result)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn commands_of_cells_are_offered_while_the_hive_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shell.sock");
        let cells = [cell(), Cell::module("greeter", "Greets").provide(greet)];
        let settings = Settings::new().flag("shell-sock-path", path.to_str().unwrap());
        let running = hive::testing::start_with(Hive::new(cells), settings).await;

        assert_eq!(run(&path, "greet").await.0, "hello\n");
        assert!(run(&path, "hive").await.0.contains("greeter (Greets)"));
        for absent in ["hive/stop", "exec id", "rm x"] {
            assert_eq!(
                run(&path, absent).await.1.unwrap_err().to_string(),
                format!("<stdin>:0: {absent}: unknown command")
            );
        }
        assert_eq!(
            running.health().get("shell.job-listener").unwrap().level,
            Level::Ok
        );

        running.stop().await.unwrap();
        assert!(!path.exists());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn running_hive_shows_hooks_jobs_and_graph() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shell.sock");
        let hooked = |lifecycle: Lifecycle| lifecycle.on_start("open", |_| async {});
        let cells = [cell(), Cell::module("greeter", "Greets").run(hooked)];
        let settings = Settings::new().flag("shell-sock-path", path.to_str().unwrap());
        let running = hive::testing::start_with(Hive::new(cells), settings).await;
        let words = |text: &str, line: &str| -> Vec<String> {
            let found = text.lines().find(|text| text.starts_with(line));
            let found = found.unwrap_or_else(|| panic!("no line `{line}` in:\n{text}"));
            found.split_whitespace().map(str::to_owned).collect()
        };

        let hooks = run(&path, "hive/hooks").await.0;
        let jobs = run(&path, "hive/jobs").await.0;
        let graph = run(&path, "hive/graph --format=mermaid --module=greeter").await.0;
        let state = run(&path, "hive/state").await.0;
        let refused = run(&path, "hive/graph --module=greter").await.1.unwrap_err();

        assert_eq!(words(&hooks, "greeter")[1..3], ["open", "started"]);
        assert_eq!(words(&jobs, "shell")[1..4], ["listener", "once", "running"]);
        assert!(
            graph.starts_with("flowchart LR\n  subgraph") && !graph.contains("listener"),
            "{graph}"
        );
        assert!(state.contains("\"state\": \"running\""), "{state}");
        assert_eq!(
            refused.to_string(),
            "<stdin>:0: hive/graph: there is no module `greter`; did you mean `greeter`?"
        );
        running.stop().await.unwrap();
    }

    #[tokio::test]
    async fn empty_path_turns_it_off() {
        let settings = Settings::new().flag("shell-sock-path", "");
        let running = hive::testing::start_with(Hive::new([cell()]), settings).await;

        assert!(running.health().get("shell.job-listener").is_none());
        running.stop().await.unwrap();
    }
}
