// SPDX-License-Identifier: Apache-2.0

//! Patterns for the keys of labels.

use regex::Regex;
use skep_identity::{Label, LabelSource};

/// A pattern of `--labels` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// There is nothing after source and `!`.
    #[error("`{0}` has no pattern")]
    Empty(String),
    #[error("`{pattern}` is no regular expression")]
    Regex {
        pattern: String,
        #[source]
        cause: Box<regex::Error>,
    },
}

/// A pattern for the beginning of keys.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    /// `None`: all.
    source: Option<LabelSource>,
    key: Regex,
    /// What it matches does not count.
    pub(crate) is_excluded: bool,
}

impl Pattern {
    /// A pattern for the keys of labels of a source; `None` for all sources.
    pub(crate) fn new(
        source: Option<&str>,
        expression: &str,
        is_excluded: bool,
    ) -> Result<Self, regex::Error> {
        Ok(Self {
            source: source.map(LabelSource::from),
            key: Regex::new(expression)?,
            is_excluded,
        })
    }

    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let (source, rest) = match text.split_once(':') {
            Some((source, rest)) => (Some(source), rest),
            None => (None, text),
        };
        let (is_excluded, pattern) = match rest.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, rest),
        };
        if pattern.is_empty() {
            return Err(PatternError::Empty(text.to_owned()));
        }
        let source = source.filter(|source| !source.is_empty());
        Self::new(source, pattern, is_excluded).map_err(|cause| PatternError::Regex {
            pattern: text.to_owned(),
            cause: Box::new(cause),
        })
    }

    /// How much of the key it matches; `None` unless from its beginning.
    pub(crate) fn matched(&self, label: &Label) -> Option<usize> {
        if self
            .source
            .as_ref()
            .is_some_and(|source| source != label.source())
        {
            return None;
        }
        let found = self.key.find(label.key())?;
        (found.start() == 0).then(|| found.end())
    }
}

/// Parses patterns; fails at the first that is invalid.
pub(crate) fn parse<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Vec<Pattern>, PatternError> {
    patterns.into_iter().map(Pattern::parse).collect()
}
