// SPDX-License-Identifier: Apache-2.0

//! Failures of jobs and modules that a test must notice.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What failed in the hive of a test, and what the test expects to fail. Empty in programs.
#[derive(Default)]
pub(crate) struct Failures {
    /// Failures are recorded: the hive belongs to a test.
    recording: AtomicBool,
    /// Dropping the hive checks the failures.
    armed: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    seen: Vec<String>,
    expected: Vec<String>,
}

impl Failures {
    pub(crate) fn record(&self) {
        self.recording.store(true, Ordering::Release);
        self.armed.store(true, Ordering::Release);
    }

    /// Whether dropping the hive has to check the failures.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// Leaves the check to the caller.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
    }

    /// Notes a failure. One that is reported on several ways counts once.
    pub(crate) fn add(&self, failure: impl FnOnce() -> String) {
        if !self.recording.load(Ordering::Acquire) {
            return;
        }
        let failure = failure();
        let mut inner = crate::lock(&self.inner);
        if !inner.seen.contains(&failure) {
            inner.seen.push(failure);
        }
    }

    pub(crate) fn expect(&self, text: String) {
        crate::lock(&self.inner).expected.push(text);
    }

    /// Takes all failures; returns a line for each that was not expected, and for each expected one that is missing.
    pub(crate) fn verdict(&self) -> Vec<String> {
        let Inner { seen, expected } = std::mem::take(&mut *crate::lock(&self.inner));
        let missing = expected
            .iter()
            .filter(|text| !seen.iter().any(|failure| failure.contains(*text)))
            .map(|text| format!("expected a failure with the text {text:?}, but there was none"));
        let unexpected = seen
            .iter()
            .filter(|failure| !expected.iter().any(|text| failure.contains(text)))
            .cloned();
        unexpected.chain(missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_record_nothing() {
        let failures = Failures::default();

        failures.add(|| unreachable!("must not be asked for the text"));

        assert!(!failures.is_armed());
        assert_eq!(failures.verdict(), [""; 0]);
    }

    #[test]
    fn verdict_lists_unexpected_and_missing_failures_once() {
        let failures = Failures::default();
        failures.record();
        failures.expect("refused".into());
        failures.expect("no route".into());

        failures.add(|| "job `a`: refused".into());
        failures.add(|| "job `b`: disk full".into());
        failures.add(|| "job `b`: disk full".into());

        assert_eq!(
            failures.verdict(),
            [
                "job `b`: disk full",
                "expected a failure with the text \"no route\", but there was none"
            ]
        );
        assert_eq!(failures.verdict(), [""; 0], "taken");
    }
}
