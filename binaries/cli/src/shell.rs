// SPDX-License-Identifier: Apache-2.0

//! `skep shell`: the agent's own commands, over its shell socket.

use std::{
    io::{IsTerminal, Read, Write},
    path::Path,
    process::ExitCode,
};

use skep_shell::{Client, ClientError, InteractiveError, closes};

const GREETING: &str = "Welcome to the Cilium Shell! Type 'help' for list of commands.";

/// Why commands were not run in the shell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShellError {
    /// No agent listens; is it running, and is the socket path right?
    #[error("cannot reach the agent (is it running? see --shell-sock-path)")]
    Unreachable(#[source] ClientError),
    /// The command failed, no agent listens, or the connection broke.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The terminal cannot be used.
    #[error(transparent)]
    Interactive(#[from] InteractiveError),
    /// The standard input cannot be read.
    #[error("reading commands")]
    Input(#[source] std::io::Error),
}

/// Runs one command, and prints what it prints. Fails at once if the agent is down: programs
/// use it.
pub(crate) fn one(socket: &Path, command: &str) -> Result<ExitCode, ShellError> {
    with_runtime(async {
        let client = Client::connect(socket).await.map_err(ShellError::Unreachable)?;
        run(client, [command]).await
    })
}

/// Opens a prompt; without a terminal, runs the commands of the standard input until one fails.
pub(crate) fn interactive(socket: &Path) -> Result<ExitCode, ShellError> {
    if std::io::stdin().is_terminal() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        skep_shell::interactive(socket, GREETING, &format!("{}> ", host.trim()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(ShellError::Input)?;
    with_runtime(async {
        let client = Client::connect_patiently(socket, |error| eprintln!("{}", error.retry_text())).await?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        run(client, lines).await
    })
}

fn with_runtime<T>(work: impl Future<Output = Result<T, ShellError>>) -> Result<T, ShellError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ShellError::Input)?;
    runtime.block_on(work)
}

/// Runs commands until one fails or ends the session.
async fn run<'line>(
    mut client: Client,
    commands: impl IntoIterator<Item = &'line str>,
) -> Result<ExitCode, ShellError> {
    for command in commands.into_iter().take_while(|command| !closes(command)) {
        match client.run(command, print).await {
            Err(ClientError::Command(error)) => {
                eprintln!("error: {error}");
                return Ok(ExitCode::FAILURE);
            }
            result => result?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    // A closed pipe (`| head`) is no error: the command runs on in the agent.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Runs one command if the agent is there, without waiting for it; returns what it prints.
pub(crate) fn ask(socket: &Path, command: &str) -> Result<String, ShellError> {
    with_runtime(async {
        let mut answer = String::new();
        let mut client = Client::connect(socket).await.map_err(ShellError::Unreachable)?;
        client.run(command, |text| answer.push_str(text)).await?;
        Ok(answer)
    })
}

/// Words as one line of the shell's language. A single word is a line already, which may hold several words.
pub(crate) fn line(words: &[String]) -> String {
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
    use skep_shell::Server;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Runs lines against a shell that has `cat` and `help`.
    fn outcome(lines: &[&str]) -> ExitCode {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("shell.sock");
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = {
            let _entered = runtime.enter();
            Server::bind(&socket, hive_script::shell_commands()).unwrap()
        };
        runtime.spawn(server.serve(CancellationToken::new()));
        with_runtime(async { run(Client::connect(&socket).await?, lines.iter().copied()).await }).unwrap()
    }

    #[test]
    fn the_first_failure_is_the_exit_status() {
        assert_eq!(outcome(&["help cat", "help"]), ExitCode::SUCCESS);
        assert_eq!(outcome(&["help cat", "nope", "help"]), ExitCode::FAILURE);
        assert_eq!(outcome(&["help", "exit", "nope"]), ExitCode::SUCCESS);
    }

    #[test]
    fn a_question_to_nobody_fails_at_once_and_says_what_to_look_at() {
        let error = ask(Path::new("/nonexistent/shell.sock"), "hive").unwrap_err();

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
}
