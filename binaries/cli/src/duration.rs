// SPDX-License-Identifier: Apache-2.0

//! Durations of the command line.

use std::time::Duration;

/// A duration in Go's form, such as `5s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    skep_duration::parse_duration(text)
        .map_err(|_| "expected a duration such as 300ms, 5s or 1h30m".to_owned())
}
