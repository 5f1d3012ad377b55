// SPDX-License-Identifier: Apache-2.0

//! `skep shell`: the agent's own commands, over its shell socket.

use std::{
    io::{IsTerminal, Read, Write},
    path::Path,
};

use hive_script::shell::{Client, ClientError, InteractiveError};

const GREETING: &str = "Welcome to the Cilium Shell! Type 'help' for list of commands.";

/// Why the shell was of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShellError {
    /// The command failed, or nobody listens.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The terminal cannot be used.
    #[error(transparent)]
    Interactive(#[from] InteractiveError),
    /// The standard input cannot be read.
    #[error("reading commands")]
    Input(#[source] std::io::Error),
}

/// Runs one command, and prints what it prints.
pub(crate) fn one(socket: &Path, command: &str) -> Result<(), ShellError> {
    run(socket, [command])
}

/// Talks to the person at the terminal; without a terminal, runs the commands of the standard input.
pub(crate) fn interactive(socket: &Path) -> Result<(), ShellError> {
    if std::io::stdin().is_terminal() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        return Ok(hive_script::shell::interactive(
            socket,
            GREETING,
            &format!("{}> ", host.trim()),
        )?);
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(ShellError::Input)?;
    run(
        socket,
        text.lines().map(str::trim).filter(|line| !line.is_empty()),
    )
}

fn run<'line>(socket: &Path, commands: impl IntoIterator<Item = &'line str>) -> Result<(), ShellError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ShellError::Input)?;
    runtime.block_on(async {
        let mut client = Client::connect_patiently(socket, |waiting| eprintln!("{waiting}")).await?;
        for command in commands {
            client
                .run(command, |text| {
                    let mut out = std::io::stdout().lock();
                    // A reader that went away (`| head`) ends nothing here: the command runs on in the agent.
                    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                })
                .await?;
        }
        Ok(())
    })
}

/// Runs one command if the agent is there, without waiting for it; returns what it prints.
pub(crate) fn ask(socket: &Path, command: &str) -> Result<String, ShellError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ShellError::Input)?;
    runtime.block_on(async {
        let mut answer = String::new();
        let mut client = Client::connect(socket).await?;
        client.run(command, |text| answer.push_str(text)).await?;
        Ok(answer)
    })
}

/// Words as one line of the shell's language.
pub(crate) fn line(words: &[String]) -> String {
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
    fn words_are_quoted_only_where_the_shell_would_split_them() {
        let words = ["db/show", "--columns=a", "two words", "it's", ""].map(str::to_owned);
        assert_eq!(line(&words), "db/show --columns=a 'two words' 'it''s' ''");
    }
}
