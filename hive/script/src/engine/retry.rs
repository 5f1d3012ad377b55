// SPDX-License-Identifier: Apache-2.0

//! What `*` and `!*` do: repeat all commands of the section up to the failing one until they pass.

use std::time::Instant;

use super::section::Section;
use super::{Ending, Failure, ScriptError};
use crate::State;
use crate::text::format_duration;

impl State {
    /// Repeats the steps of `section`, of which the last failed with `failure`.
    pub(super) async fn retry(
        &mut self,
        file: &str,
        section: &mut Section,
        failure: Failure,
    ) -> Result<Option<Ending>, ScriptError> {
        section.stream(self);
        let result = self.repeat(file, section, failure).await;
        self.retries = 0;
        result
    }

    async fn repeat(
        &mut self,
        file: &str,
        section: &Section,
        failure: Failure,
    ) -> Result<Option<Ending>, ScriptError> {
        let Some(line) = section.steps.last().map(|step| &step.line) else {
            return Err(ScriptError::Command(failure));
        };
        let started = Instant::now();
        let mut interval = self.retry.interval;
        let mut retries = 0;
        let mut last = failure.with_log(self.log.take_command());
        let given_up = |reason: String, retries, last| ScriptError::Retry {
            file: file.to_owned(),
            line: line.number,
            reason,
            retries,
            last: Box::new(last),
        };
        loop {
            if let Some(interruption) = last.interruption().or_else(|| self.lifetime.state()) {
                return Err(given_up(interruption.to_string(), retries, last));
            }
            if let Some(limit) = self.retry.limit.filter(|limit| started.elapsed() >= *limit) {
                return Err(given_up(
                    format!("gave up after {}", format_duration(limit)),
                    retries,
                    last,
                ));
            }
            self.log.write(&format!(
                "(command {:?} failed, retrying in {}...)\n",
                line.raw,
                format_duration(interval)
            ));
            tokio::select! {
                biased;
                interruption = self.lifetime.interrupted() => return Err(given_up(interruption.to_string(), retries, last)),
                () = tokio::time::sleep(interval) => {}
            }
            interval = interval.saturating_mul(2).min(self.retry.max_interval);
            retries += 1;
            self.retries = retries;
            match self.repeat_once(file, section).await {
                Ok(ending) => {
                    let seconds = started.elapsed().as_secs_f64();
                    let raw = &line.raw;
                    self.log.write(&format!(
                        "(command {raw:?} succeeded after {retries} retries in {seconds:.3}s)\n"
                    ));
                    return Ok(ending);
                }
                Err(failure) => match failure.interruption() {
                    // The failure before the deadline says more than the deadline.
                    Some(interruption) => return Err(given_up(interruption.to_string(), retries, last)),
                    None if failure.can_retry() => last = failure.with_log(self.log.take_command()),
                    None => return Err(ScriptError::Command(failure)),
                },
            }
        }
    }

    async fn repeat_once(&mut self, file: &str, section: &Section) -> Result<Option<Ending>, Failure> {
        for step in section.steps.iter().filter(|step| !step.skipped) {
            self.log.start_command();
            if let Some(ending) = self.run_step(file, step).await? {
                return Ok(Some(ending));
            }
        }
        Ok(None)
    }
}
