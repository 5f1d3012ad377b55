// SPDX-License-Identifier: Apache-2.0

//! What a hive of a test has to say when it ends.

use super::Engine;
use crate::shutdown::ExitCause;

impl Engine {
    /// What failed against the expectations of the test, or did not fail against them.
    pub(crate) fn verdict(&self) -> Vec<String> {
        let failures = &self.registry.failures;
        if let Some(cause) = self.shutdown.cause().filter(ExitCause::is_failure) {
            failures.add(|| cause.to_string());
        }
        failures.verdict()
    }

    /// Fails the test whose hive is dropped.
    pub(crate) fn check_dropped(&self) {
        self.registry.failures.disarm();
        let problems = self.verdict().join("\n");
        if std::thread::panicking() {
            // The test fails already; a second panic would end all others.
            if !problems.is_empty() {
                eprintln!("{problems}");
            }
            return;
        }
        assert!(problems.is_empty(), "{problems}");
    }
}
