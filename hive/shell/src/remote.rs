// SPDX-License-Identifier: Apache-2.0

//! The sub-command `shell` of a program: one command, a prompt, or the lines of the standard input.

use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;

use tokio::runtime::Builder;

use crate::interactive::{InteractiveError, interactive};
use crate::{Client, ClientError, FILE, closes};

/// What a prompt begins with, as Cilium's programs have it.
const GREETING: &str = "Welcome to the Cilium Shell! Type 'help' for list of commands.";

/// Why commands were not run in the shell.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// Nothing listens; does the program run, and is the socket path right?
    #[error("cannot reach {program} (is it running? see --shell-sock-path)")]
    Unreachable {
        /// The program.
        program: &'static str,
        /// The error of the connection.
        #[source]
        cause: ClientError,
    },
    /// The command failed, or the connection broke.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The terminal cannot be used.
    #[error(transparent)]
    Interactive(#[from] InteractiveError),
    /// The standard input cannot be read, or the runtime cannot be started.
    #[error("reading commands")]
    Input(#[source] io::Error),
}

/// The shell of a running program. Methods must not be called within a runtime.
///
/// ```no_run
/// let remote = skep_shell::Remote::new("the agent", "/var/run/cilium/shell.sock");
/// let succeeded = remote.run(&["db/show".to_owned(), "frontends".to_owned()])?;
/// # Ok::<(), skep_shell::RemoteError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Remote {
    program: &'static str,
    socket: PathBuf,
}

impl Remote {
    /// The shell at `socket`; errors call its program `program`, such as `the agent`.
    pub fn new(program: &'static str, socket: impl Into<PathBuf>) -> Self {
        Self {
            program,
            socket: socket.into(),
        }
    }

    /// What `shell` does with the words behind it: runs them as one command, which fails at once if the program is down:
    /// other programs use it. Without words opens a prompt; without a terminal, runs the commands of the standard input until
    /// one fails. Returns whether all succeeded.
    ///
    /// # Errors
    ///
    /// [`RemoteError`] if commands could not be run. The error of a command itself is printed.
    pub fn run(&self, words: &[String]) -> Result<bool, RemoteError> {
        if !words.is_empty() {
            return with_runtime(async { execute(self.connect().await?, [&*line(words)], in_shell).await });
        }
        if io::stdin().is_terminal() {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            interactive(&self.socket, GREETING, &format!("{}> ", host.trim()))?;
            return Ok(true);
        }
        let mut text = String::new();
        io::stdin()
            .read_to_string(&mut text)
            .map_err(RemoteError::Input)?;
        with_runtime(async {
            let waiting = |error: &ClientError| eprintln!("{}", error.retry_text());
            let client = Client::connect_patiently(&self.socket, waiting).await?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            execute(client, lines, in_shell).await
        })
    }

    /// Runs words as one command, as [`run`](Self::run) does, whose error is printed to the standard error, without its place.
    ///
    /// # Errors
    ///
    /// [`RemoteError`] if the command could not be run.
    pub fn check(&self, words: &[String]) -> Result<bool, RemoteError> {
        with_runtime(async { execute(self.connect().await?, [&*line(words)], bare).await })
    }

    /// Runs one command if the program is there, without waiting for it; returns what it prints.
    ///
    /// # Errors
    ///
    /// [`RemoteError`], also for a command that fails.
    pub fn ask(&self, command: &str) -> Result<String, RemoteError> {
        with_runtime(async {
            let mut answer = String::new();
            self.connect()
                .await?
                .run(command, |text| answer.push_str(text))
                .await?;
            Ok(answer)
        })
    }

    async fn connect(&self) -> Result<Client, RemoteError> {
        let client = Client::connect(&self.socket).await;
        client.map_err(|cause| RemoteError::Unreachable {
            program: self.program,
            cause,
        })
    }
}

fn with_runtime<T>(work: impl Future<Output = Result<T, RemoteError>>) -> Result<T, RemoteError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(RemoteError::Input)?;
    runtime.block_on(work)
}

/// Prints an error as the shell of Cilium's programs does: what its log has, and what the command ends with.
fn in_shell(_: &str, error: &str) {
    print(&format!("{error}\nerror: {error}\n"));
}

fn bare(command: &str, error: &str) {
    let place = format!("{FILE}:0: {command}: ");
    eprintln!("error: {}", error.strip_prefix(&place).unwrap_or(error));
}

/// Runs commands until one fails or ends the session.
async fn execute<'line>(
    mut client: Client,
    commands: impl IntoIterator<Item = &'line str>,
    report: fn(&str, &str),
) -> Result<bool, RemoteError> {
    for command in commands.into_iter().take_while(|command| !closes(command)) {
        match client.run(command, print).await {
            Err(ClientError::Command(error)) => {
                report(command, &error);
                return Ok(false);
            }
            result => result?,
        }
    }
    Ok(true)
}

fn print(text: &str) {
    let mut out = io::stdout().lock();
    // A closed pipe (`| head`) is no error: the command runs on in the program.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Words as one line of the shell's language. A single word is a line already, which may hold several words.
pub fn line(words: &[String]) -> String {
    if let [line] = words {
        return line.clone();
    }
    words
        .iter()
        .map(|word| quoted(word))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = !word.is_empty()
        && word
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || "-_/.,:=+@%^[]{}()*?!<>~".contains(char));
    if is_plain {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_to_nobody_fails_at_once_and_says_what_to_look_at() {
        let remote = Remote::new("the agent", "/nonexistent/shell.sock");

        let error = remote.ask("hive").unwrap_err();

        assert_eq!(
            error.to_string(),
            "cannot reach the agent (is it running? see --shell-sock-path)"
        );
    }

    #[test]
    fn words_are_quoted_only_where_the_shell_would_split_them() {
        let words = ["db/show", "--columns=a", "two words", "it's", ""].map(str::to_owned);
        assert_eq!(line(&words), "db/show --columns=a 'two words' 'it''s' ''");
        assert_eq!(line(&["db/show frontends".to_owned()]), "db/show frontends");
    }

    #[cfg(feature = "server")]
    mod with_a_server {
        use tokio_util::sync::CancellationToken;

        use super::*;
        use crate::Server;

        /// Runs lines against a shell that has `cat` and `help`.
        fn succeeds(lines: &[&str]) -> bool {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("shell.sock");
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let server = {
                let _entered = runtime.enter();
                Server::bind(&socket, hive_script::shell_commands()).unwrap()
            };
            runtime.spawn(server.serve(CancellationToken::new()));
            with_runtime(async {
                execute(Client::connect(&socket).await?, lines.iter().copied(), in_shell).await
            })
            .unwrap()
        }

        #[test]
        fn the_first_failure_counts() {
            assert!(succeeds(&["help cat", "help"]));
            assert!(!succeeds(&["help cat", "nope", "help"]));
            assert!(succeeds(&["help", "exit", "nope"]));
        }
    }
}
