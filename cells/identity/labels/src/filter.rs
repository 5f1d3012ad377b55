// SPDX-License-Identifier: Apache-2.0

//! Which labels count.

use std::path::Path;

use skep_identity::{Label, Labels};

use crate::pattern::{Pattern, PatternError, parse};
use crate::prefix_file::{self, PrefixFileError};

const RESERVED: &str = "reserved:.*";

/// Cilium's patterns: what does not say who a pod is, and exceptions from that.
const DEFAULT: &[&str] = &[
    RESERVED,
    r"io\.kubernetes\.pod\.namespace",
    r"io\.cilium\.k8s\.namespace\.labels",
    r"app\.kubernetes\.io",
    r"io\.cilium\.k8s\.policy\.cluster",
    r"io\.cilium\.k8s\.policy\.serviceaccount",
    r"!io\.kubernetes",
    r"!kubernetes\.io",
    r"!statefulset\.kubernetes\.io/pod-name",
    r"!apps\.kubernetes\.io/pod-index",
    r"!batch\.kubernetes\.io/job-completion-index",
    r"!batch\.kubernetes\.io/controller-uid",
    r"!.*beta\.kubernetes\.io",
    r"!k8s\.io",
    r"!topology\.kubernetes\.io",
    "!pod-template-generation",
    "!pod-template-hash",
    "!controller-revision-hash",
    "!controller-uid",
    "!annotation.*",
    "!etcd_node",
];

/// Settings make no filter of labels.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// Fix the file that `label-prefix-file` names.
    #[error("label-prefix-file")]
    File(#[from] PrefixFileError),
    /// Fix `labels`.
    #[error("labels")]
    Pattern(#[from] PatternError),
}

/// Decides which labels an identity has.
///
/// A pattern is `[source:][!]expression`: a regular expression for the beginning of the key, with `!` for labels that do not
/// count. If several match, the longest that includes has to match more than the shortest that excludes.
#[derive(Clone, Debug)]
pub struct LabelFilter {
    patterns: Vec<Pattern>,
    /// What no pattern matches does not count.
    is_whitelist: bool,
}

impl LabelFilter {
    /// Cilium's patterns and these. One that includes makes what no pattern matches not count.
    ///
    /// # Errors
    ///
    /// [`PatternError`] for the first pattern that cannot be used.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, PatternError> {
        let mut filter = Self::of(parse(patterns)?);
        filter
            .patterns
            .extend(DEFAULT.iter().flat_map(|text| Pattern::parse(text)));
        Ok(filter)
    }

    /// The patterns of a file in Cilium's form instead of the default ones, and these. Reserved labels always count.
    ///
    /// # Errors
    ///
    /// [`FilterError`] for the file, or for the first pattern that cannot be used.
    pub fn of_file<'a>(
        path: &Path,
        patterns: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, FilterError> {
        let mut all = prefix_file::read(path)?;
        all.extend(parse(patterns)?);
        let mut filter = Self::of(all);
        filter.patterns.extend(Pattern::parse(RESERVED));
        Ok(filter)
    }

    fn of(patterns: Vec<Pattern>) -> Self {
        Self {
            is_whitelist: patterns.iter().any(|pattern| !pattern.is_excluded),
            patterns,
        }
    }

    pub fn is_relevant(&self, label: &Label) -> bool {
        let (mut included, mut excluded) = (None, None);
        for pattern in &self.patterns {
            let Some(length) = pattern.matched(label) else {
                continue;
            };
            if pattern.is_excluded {
                excluded = Some(excluded.map_or(length, |least: usize| least.min(length)));
            } else {
                included = included.max(Some(length));
            }
        }
        match (included, excluded) {
            (None, None) => !self.is_whitelist,
            (included, excluded) => included > excluded,
        }
    }
}

impl LabelFilter {
    /// Labels of identities, and the others.
    pub fn split(&self, labels: impl IntoIterator<Item = Label>) -> (Labels, Labels) {
        // Of labels with a key the last counts, whether it is relevant or not.
        let all: Labels = labels.into_iter().collect();
        let (relevant, others): (Vec<_>, Vec<_>) =
            all.iter().cloned().partition(|label| self.is_relevant(label));
        (relevant.into_iter().collect(), others.into_iter().collect())
    }
}

impl Default for LabelFilter {
    fn default() -> Self {
        let patterns = DEFAULT.iter().flat_map(|text| Pattern::parse(text));
        Self {
            patterns: patterns.collect(),
            is_whitelist: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relevant(filter: &LabelFilter, labels: &[&str]) -> Vec<String> {
        let labels = labels.iter().map(|text| text.parse::<Label>().unwrap());
        let relevant = labels.filter(|label| filter.is_relevant(label));
        relevant.map(|label| label.to_string()).collect()
    }

    #[test]
    fn all_default_patterns_are_valid() {
        assert_eq!(LabelFilter::default().patterns.len(), DEFAULT.len());
    }

    #[test]
    fn by_default_labels_count_that_do_not_tell_pods_of_a_kind_apart() {
        let found = relevant(
            &LabelFilter::default(),
            &[
                "k8s:app",
                "k8s:app.kubernetes.io/name",
                "k8s:io.kubernetes.pod.namespace",
                "k8s:io.kubernetes.container",
                "k8s:kubernetes.io/os",
                "k8s:statefulset.kubernetes.io/pod-name",
                "k8s:failure-domain.beta.kubernetes.io/zone",
                "k8s:pod-template-hash",
                "k8s:my-pod-template-hash",
                "reserved:host",
            ],
        );

        assert_eq!(
            found,
            [
                "k8s:app",
                "k8s:app.kubernetes.io/name",
                "k8s:io.kubernetes.pod.namespace",
                "k8s:my-pod-template-hash",
                "reserved:host",
            ]
        );
    }

    #[test]
    fn a_pattern_that_includes_leaves_out_all_that_none_includes() {
        let filter = LabelFilter::new(["k8s:app", "k8s:!app-version"]).unwrap();

        assert_eq!(
            relevant(
                &filter,
                &[
                    "k8s:app",
                    "k8s:app-version",
                    "cni:app",
                    "k8s:role",
                    "k8s:io.kubernetes.pod.namespace",
                ],
            ),
            ["k8s:app", "k8s:io.kubernetes.pod.namespace"]
        );
    }

    #[test]
    fn a_pattern_that_excludes_leaves_the_others_in() {
        let filter = LabelFilter::new(["!role"]).unwrap();

        assert_eq!(
            relevant(&filter, &["k8s:app", "k8s:role", "k8s:roles"]),
            ["k8s:app"]
        );
    }

    #[test]
    fn errors_name_the_pattern() {
        let error = LabelFilter::new(["k8s:!"]).unwrap_err().to_string();
        assert_eq!(error, "`k8s:!` has no pattern");
        let error = LabelFilter::new(["k8s:app("]).unwrap_err().to_string();
        assert_eq!(error, "`k8s:app(` is no regular expression");
    }
}
