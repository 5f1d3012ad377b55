// SPDX-License-Identifier: Apache-2.0

//! `break`, a prompt in the middle of a script.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::state::Log;
use crate::{Command, CommandError, CommandHandle, Context, Invocation, Outcome, Spec};

const TERMINAL: &str = "/dev/tty";

pub(super) fn command() -> CommandHandle {
    Arc::new(Break {
        spec: Spec::new("break", "Open a prompt on the controlling terminal")
            .detail("Each line is run as a command of the script. The end of input goes on with the script.")
            .detail("The clock of the script is paused.")
            .untimed(),
    })
}

struct Break {
    spec: Spec,
}

#[async_trait]
impl Command for Break {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        if !inv.args().is_empty() {
            return Err(CommandError::usage(""));
        }
        break_prompt(cx).await?;
        Ok(Outcome::Silent)
    }
}

/// Reads commands from the controlling terminal until the end of input. The clock of the script is paused.
pub(crate) async fn break_prompt(cx: &mut Context<'_>) -> Result<(), CommandError> {
    let terminal = OpenOptions::new().read(true).write(true).open(TERMINAL);
    let terminal = terminal.map_err(|error| CommandError::io("open", TERMINAL, &error))?;
    let screen = terminal
        .try_clone()
        .map_err(|error| CommandError::io("open", TERMINAL, &error))?;
    let mut log_screen = terminal
        .try_clone()
        .map_err(|error| CommandError::io("open", TERMINAL, &error))?;
    let log = Log::new(Box::new(move |text: &str| print(&mut log_screen, text)));
    let script_log = std::mem::replace(&mut cx.state.log, log);
    let started = Instant::now();
    let lifetime = cx.state.lifetime.clone();
    cx.state.lifetime = lifetime.without_deadline();
    let result = read_commands(cx, terminal, screen).await;
    let waited = started.elapsed();
    cx.state.lifetime = lifetime.extended(waited);
    cx.state.base = cx.state.base.extended(waited);
    cx.state.log = script_log;
    result
}

async fn read_commands(cx: &mut Context<'_>, terminal: File, mut screen: File) -> Result<(), CommandError> {
    print(&mut screen, "\nBreak! Control-d to continue.\n");
    let mut input = BufReader::new(terminal);
    loop {
        print(&mut screen, "debug> ");
        let read = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            let count = input.read_line(&mut line);
            (input, line, count)
        });
        let (reader, line, count) = cx
            .until_interrupted(read)
            .await?
            .map_err(|error| CommandError::new(format_args!("break: {error}")))?;
        input = reader;
        if count.map_err(|error| CommandError::io("read", TERMINAL, &error))? == 0 {
            return Ok(());
        }
        if let Err(error) = cx.run_line(line.trim_end_matches('\n')).await {
            print(&mut screen, &format!("{error}\n"));
        }
    }
}

/// Prints to the terminal; one that is gone shows nothing.
fn print(screen: &mut File, text: &str) {
    let _ = screen.write_all(text.as_bytes());
}
