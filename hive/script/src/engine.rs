// SPDX-License-Identifier: Apache-2.0

//! Runs scripts: sections, expectations, background commands, and `*`, which repeats a section until it succeeds.

mod error;
mod retry;
mod section;

pub use error::{Failure, ScriptError};

use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::line::{Line, Want};
use crate::spec::Special;
use crate::state::Background;
use crate::{Command, CommandError, Context, Interruption, Invocation, Outcome, Output, State, condition};
use section::Section;

/// Time a command gets to notice that the script was interrupted.
const GRACE: Duration = Duration::from_secs(1);

/// How a script that did not fail ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// All lines were run.
    Completed,
    /// By the command `stop`, with its message.
    Stopped(String),
    /// By the command `skip`, with its message.
    Skipped(String),
}

/// A command of a section that was reached.
struct Step {
    line: Line,
    args: Vec<String>,
    /// A condition did not hold: repetitions skip it as well.
    skipped: bool,
}

impl State {
    /// Runs the lines of `script`; `file` names it in messages. Background commands are ended and waited for.
    pub async fn execute(&mut self, file: &str, script: &str) -> Result<Ending, ScriptError> {
        let result = self.execute_lines(file, script).await;
        let closed = self.close(file).await;
        let ending = result?;
        closed?;
        Ok(ending)
    }

    /// Runs lines of a script or shell that goes on: background commands are left running.
    pub async fn execute_lines(&mut self, file: &str, script: &str) -> Result<Ending, ScriptError> {
        file.clone_into(&mut self.file);
        let mut section = Section::new();
        let result = self.execute_sections(file, script, &mut section).await;
        match &result {
            Ok(ending) => {
                section.end(self, true);
                if let Ending::Stopped(message) | Ending::Skipped(message) = ending {
                    let name = if matches!(ending, Ending::Stopped(_)) {
                        "stop"
                    } else {
                        "skip"
                    };
                    let separator = if message.is_empty() { "" } else { ": " };
                    self.log.write(&format!("{name}{separator}{message}\n"));
                }
            }
            Err(_) => section.end(self, false),
        }
        result
    }

    async fn execute_sections(
        &mut self,
        file: &str,
        script: &str,
        section: &mut Section,
    ) -> Result<Ending, ScriptError> {
        let mut lines = script.split('\n').peekable();
        let mut number = 0;
        while let Some(raw) = lines.next() {
            if raw.is_empty() && lines.peek().is_none() {
                break;
            }
            number += 1;
            if let Some(interruption) = self.lifetime.state() {
                return Err(ScriptError::line(file, number, interruption));
            }
            if raw.starts_with('#') {
                section.end(self, true);
                section.begin(self, raw);
                continue;
            }
            let line = match Line::parse(number, raw) {
                Ok(Some(line)) => line,
                Ok(None) => continue,
                Err(error) => {
                    self.log.write(&format!("> {raw}\n"));
                    return Err(ScriptError::line(
                        file,
                        number,
                        format_args!("parse error: {error}"),
                    ));
                }
            };
            match self.run_line(file, line, section).await {
                Ok(None) => {}
                Ok(Some(ending)) => return Ok(ending),
                Err(error) => {
                    if self.break_on_error {
                        section.stream(self);
                        self.log.write(&format!("FAIL: {error}\n"));
                        if let Err(error) = crate::builtin::break_prompt(&mut self.context()).await {
                            self.log.write(&format!("{error}\n"));
                        }
                    }
                    return Err(error);
                }
            }
        }
        Ok(Ending::Completed)
    }

    /// Runs a line once and, with prefix `*`, repeats it.
    async fn run_line(
        &mut self,
        file: &str,
        line: Line,
        section: &mut Section,
    ) -> Result<Option<Ending>, ScriptError> {
        if self.echo {
            self.log.write(&format!("> {}\n", line.raw));
        }
        let mut skipped = false;
        for guard in &line.guards {
            let holds = condition::evaluate(&self.conditions, &self.environment, &guard.tag)
                .map_err(|error| ScriptError::line(file, line.number, error))?;
            skipped |= holds != guard.want;
        }
        if skipped {
            self.log.write("[condition not met]\n");
            section.steps.push(Step {
                line,
                args: Vec::new(),
                skipped,
            });
            return Ok(None);
        }
        let args = self.expand_args(&line);
        let retries = line.retries;
        section.steps.push(Step { line, args, skipped });
        let Some(step) = section.steps.last() else {
            return Ok(None);
        };
        self.log.start_command();
        match self.run_step(file, step).await {
            Err(failure) if retries && failure.can_retry() => self.retry(file, section, failure).await,
            Err(failure) => Err(ScriptError::Command(failure.with_log(self.log.take_command()))),
            Ok(ending) => Ok(ending),
        }
    }

    /// The line's words with variables replaced.
    fn expand_args(&self, line: &Line) -> Vec<String> {
        let raw: Vec<String> = line.words.iter().map(|word| word.raw()).collect();
        let regexp = self
            .commands
            .get(&line.name)
            .and_then(|command| command.spec().regexp_argument(&raw));
        line.words
            .iter()
            .enumerate()
            .map(|(at, word)| word.expand(&self.environment, regexp == Some(at)))
            .collect()
    }

    /// Runs a command once and compares the result with what its line expects.
    async fn run_step(&mut self, file: &str, step: &Step) -> Result<Option<Ending>, Failure> {
        let line = &step.line;
        let fail = |args: &[String], error: CommandError| Failure::new(file, line, args, error);
        let Some(command) = self.commands.get(&line.name).cloned() else {
            return Err(fail(&step.args, CommandError::Unknown));
        };
        let spec = command.spec();
        if line.background && !spec.is_asynchronous() {
            return Err(fail(&step.args, CommandError::NoBackground));
        }
        let invocation = match spec.parse_special(&step.args) {
            Ok(Special::Run(invocation)) => invocation,
            Ok(Special::Help) => {
                self.set_output(Output {
                    stdout: spec.help(true),
                    stderr: String::new(),
                });
                return self
                    .check(line, Ok(()))
                    .map(|()| None)
                    .map_err(|error| fail(&step.args, error));
            }
            Ok(Special::Complete(partial)) => {
                let mut suggestions = command.complete(&mut self.context(), &partial).await;
                suggestions.push(String::new());
                self.set_output(Output {
                    stdout: suggestions.join("\n"),
                    stderr: String::new(),
                });
                return Ok(None);
            }
            Err(error) => return Err(fail(&step.args, error.into())),
        };
        if self.is_shell
            && let Some(format) = spec.format_as_file(&invocation)
        {
            let instead = if spec.flags().iter().any(|flag| flag.name() == "format") {
                format!("use -f {format}")
            } else {
                "this command has one format".to_owned()
            };
            let error = CommandError::usage(format_args!(
                "-o takes a file, not a format: {instead} (or -o ./{format} for a file of that name)"
            ));
            return Err(fail(&step.args, error));
        }
        let args = invocation.args().to_vec();
        self.repeats = line.retries;
        let outcome = self.run_command(command.as_ref(), invocation).await;
        let result = match outcome {
            Ok(Outcome::Stop(message)) => return Ok(Some(Ending::Stopped(message))),
            Ok(Outcome::Skip(message)) => return Ok(Some(Ending::Skipped(message))),
            Ok(Outcome::Silent) => Ok(None),
            Ok(Outcome::Output(output)) => Ok(Some(output)),
            Ok(Outcome::Pending(pending)) => {
                let task = AbortOnDropHandle::new(tokio::spawn(pending));
                if line.background {
                    self.background.push(Background {
                        line: line.clone(),
                        args,
                        task,
                    });
                    self.stdout.clear();
                    self.stderr.clear();
                    return Ok(None);
                }
                finished(task.await).map(Some)
            }
            Err(error) => Err(error),
        };
        let result = match result {
            Ok(Some(output)) => {
                self.set_output(output);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(CommandError::WithOutput { output, error }) => {
                self.set_output(output);
                let text = error.to_string();
                let checked = self.check(line, Err(*error));
                if checked.is_ok() {
                    self.log.write(&format!("[{text}]\n"));
                }
                return checked.map(|()| None).map_err(|error| fail(&args, error));
            }
            Err(error) => Err(error),
        };
        self.check(line, result)
            .map(|()| None)
            .map_err(|error| fail(&args, error))
    }

    /// Runs a command; one that does not return within the grace time after an interruption is dropped.
    async fn run_command(
        &mut self,
        command: &dyn Command,
        invocation: Invocation,
    ) -> Result<Outcome, CommandError> {
        let interrupted = self.lifetime.interrupted();
        let expired = async {
            let interruption = interrupted.await;
            tokio::time::sleep(GRACE).await;
            interruption
        };
        let mut context = Context { state: self };
        if command.spec().is_untimed() {
            return command.run(&mut context, invocation).await;
        }
        tokio::select! {
            biased;
            outcome = command.run(&mut context, invocation) => outcome,
            interruption = expired => Err(interruption.into()),
        }
    }

    /// Compares a result with what the line expects.
    fn check(&self, line: &Line, result: Result<(), CommandError>) -> Result<(), CommandError> {
        match (result, line.want) {
            (Ok(()), Want::Failure) => Err(CommandError::new("unexpected success")),
            (Ok(()), _) => Ok(()),
            (Err(error), Want::Success) => Err(error),
            (Err(error), _) if error.is_fatal() => Err(error),
            (Err(_), _) => Ok(()),
        }
    }

    fn set_output(&mut self, output: Output) {
        for (name, text) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            if !text.is_empty() {
                self.log.write(&format!("[{name}]\n{text}"));
            }
        }
        self.stdout = output.stdout;
        self.stderr = output.stderr;
    }

    /// Waits for all background commands: the work of `wait`.
    pub(crate) async fn wait_background(&mut self) -> Result<(), CommandError> {
        let file = self.file.clone();
        let mut all = Output::default();
        let mut failures = Vec::new();
        for Background { line, args, task } in std::mem::take(&mut self.background) {
            let mut result = finished(task.await);
            let separator = if args.is_empty() { "" } else { " " };
            self.log.write(&format!(
                "[background] {}{separator}{}\n",
                line.name,
                crate::line::quote_args(&args)
            ));
            let output = match &mut result {
                Ok(output) => Some(std::mem::take(output)),
                Err(CommandError::WithOutput { output, .. }) => Some(std::mem::take(output)),
                Err(_) => None,
            };
            if let Some(output) = output {
                for (name, text, whole) in [
                    ("stdout", output.stdout, &mut all.stdout),
                    ("stderr", output.stderr, &mut all.stderr),
                ] {
                    if !text.is_empty() {
                        self.log.write(&format!("[{name}]\n{text}"));
                        whole.push_str(&text);
                    }
                }
            }
            let result = result.map(drop).map_err(CommandError::without_output);
            if let Err(error) = &result {
                self.log.write(&format!("[{error}]\n"));
            }
            if let Err(error) = self.check(&line, result) {
                failures.push(Failure::new(&file, &line, &args, error));
            }
        }
        self.stdout = all.stdout;
        self.stderr = all.stderr;
        if failures.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
        Err(CommandError::Background(texts.join("\n")))
    }

    /// Ends background commands. Failures other than by this end are reported.
    async fn close(&mut self, file: &str) -> Result<(), ScriptError> {
        if self.background.is_empty() {
            return Ok(());
        }
        self.lifetime.cancel();
        let mut first = None;
        for Background { line, args, task } in std::mem::take(&mut self.background) {
            let result = finished(task.await)
                .map(drop)
                .map_err(CommandError::without_output);
            if let Err(error) = result
                && error.interruption() != Some(Interruption::Canceled)
                && let Err(error) = self.check(&line, Err(error))
            {
                first.get_or_insert(ScriptError::Command(Failure::new(file, &line, &args, error)));
            }
        }
        self.lifetime = self.base.child();
        first.map_or(Ok(()), Err)
    }
}

/// The result of a command's task; a panic in it is a failure of the command.
fn finished(
    result: Result<Result<Output, CommandError>, tokio::task::JoinError>,
) -> Result<Output, CommandError> {
    match result {
        Ok(result) => result,
        Err(error) => Err(CommandError::new(format_args!("PANIC: {error}"))),
    }
}
