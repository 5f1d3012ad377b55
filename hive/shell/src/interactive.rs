// SPDX-License-Identifier: Apache-2.0

//! A prompt with history and tab completion.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Editor, Helper};
use tokio::runtime::{Builder, Runtime};

use crate::{Client, ClientError, closes};

/// Why the prompt ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum InteractiveError {
    /// No connection to the shell.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The terminal cannot be read.
    #[error("cannot read from the terminal")]
    Terminal(#[from] ReadlineError),
    /// The runtime of the client cannot start: no descriptors or threads are left.
    #[error("cannot start runtime")]
    Runtime(#[source] io::Error),
}

/// Reads commands from the terminal and runs them until the end of input, `exit`, `quit` or `stop`. Must not be called
/// within a runtime.
///
/// Control-C cancels the running command by hanging up; the next one goes over a new connection.
pub fn interactive(path: &Path, greeting: &str, prompt: &str) -> Result<(), InteractiveError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(InteractiveError::Runtime)?;
    let mut client = runtime.block_on(Client::connect_patiently(path, show_waiting))?;
    let config = Config::builder().auto_add_history(true).build();
    let mut editor: Editor<Completions<'_>, DefaultHistory> = Editor::with_config(config)?;
    editor.set_helper(Some(Completions {
        runtime: &runtime,
        path,
        client: RefCell::new(None),
    }));
    println!("{greeting}");
    loop {
        let line = match editor.readline(prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        if closes(line) {
            return Ok(());
        }
        let result = runtime.block_on(async {
            tokio::select! {
                result = client.run(line, show) => Some(result),
                _ = tokio::signal::ctrl_c() => None,
            }
        });
        match result {
            Some(Ok(())) => {}
            Some(Err(ClientError::Command(error))) => eprintln!("error: {error}"),
            Some(Err(error @ (ClientError::Lost(_) | ClientError::Closed))) => {
                eprintln!("{error}");
                client = runtime.block_on(Client::connect_patiently(path, show_waiting))?;
            }
            Some(Err(error)) => return Err(error.into()),
            None => {
                eprintln!();
                drop(client);
                client = runtime.block_on(Client::connect_patiently(path, show_waiting))?;
            }
        }
    }
}

fn show(text: &str) {
    // A terminal that is gone ends the prompt at the next read.
    let _ = io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| io::stdout().flush());
}

fn show_waiting(error: &ClientError) {
    eprintln!("{}", error.retry_text());
}

/// Asks the shell for completions over a connection of its own.
struct Completions<'a> {
    runtime: &'a Runtime,
    path: &'a Path,
    client: RefCell<Option<Client>>,
}

impl Completer for Completions<'_> {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let head = &line[..position];
        let start = head.rfind(' ').map_or(0, |at| at + 1);
        let suggestions = self.runtime.block_on(async {
            let mut client = match self.client.take() {
                Some(client) => client,
                None => Client::connect(self.path).await.ok()?,
            };
            let suggestions = client.complete(head).await.ok()?;
            self.client.replace(Some(client));
            Some(suggestions)
        });
        Ok((start, suggestions.unwrap_or_default()))
    }
}

impl Hinter for Completions<'_> {
    type Hint = String;
}

impl Highlighter for Completions<'_> {}
impl Validator for Completions<'_> {}
impl Helper for Completions<'_> {}
