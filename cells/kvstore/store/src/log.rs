// SPDX-License-Identifier: Apache-2.0

//! Errors in logs.

use std::error::Error;

/// An error with its causes: `cannot write: no answer`.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::entry::InvalidEntry;

    #[test]
    fn causes_follow_the_error() {
        let error = InvalidEntry {
            key: "a".to_owned(),
            cause: Arc::new(std::io::Error::other("truncated")),
        };

        assert_eq!(chain(&error), "value of `a` is invalid: truncated");
    }
}
