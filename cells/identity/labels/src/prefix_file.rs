// SPDX-License-Identifier: Apache-2.0

//! The file of patterns that replaces the default ones, in Cilium's form.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::pattern::Pattern;

/// The only version of the form.
const VERSION: u64 = 1;

/// A file of patterns cannot be used: fix it, or the setting `label-prefix-file`. Entries are counted from 1.
#[derive(Debug, thiserror::Error)]
pub enum PrefixFileError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    /// The file is no JSON object with the list `valid-prefixes`.
    #[error("{} is no list of label prefixes", path.display())]
    Form {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
    /// The version is not 1.
    #[error("{}: version {found} is not supported: it must be {VERSION}", path.display())]
    Version { path: PathBuf, found: u64 },
    /// An entry is no object, or one of its fields has the wrong type.
    #[error("{}: entry {entry} is invalid", path.display())]
    Entry {
        path: PathBuf,
        entry: usize,
        #[source]
        cause: serde_json::Error,
    },
    /// A field is missing or empty.
    #[error("{}: entry {entry} has no {field}", path.display())]
    Missing {
        path: PathBuf,
        entry: usize,
        /// `prefix` or `source`.
        field: &'static str,
    },
    /// The prefix is no regular expression.
    #[error("{}: entry {entry}: `{prefix}` is no regular expression", path.display())]
    Regex {
        path: PathBuf,
        entry: usize,
        prefix: String,
        #[source]
        cause: Box<regex::Error>,
    },
}

#[derive(Deserialize)]
struct PrefixFile {
    version: u64,
    #[serde(rename = "valid-prefixes")]
    prefixes: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    prefix: String,
    source: String,
    /// Labels with the prefix do not count.
    invert: bool,
}

pub(crate) fn read(path: &Path) -> Result<Vec<Pattern>, PrefixFileError> {
    let text = std::fs::read(path).map_err(|cause| PrefixFileError::Read {
        path: path.to_owned(),
        cause,
    })?;
    let file: PrefixFile = serde_json::from_slice(&text).map_err(|cause| PrefixFileError::Form {
        path: path.to_owned(),
        cause,
    })?;
    if file.version != VERSION {
        return Err(PrefixFileError::Version {
            path: path.to_owned(),
            found: file.version,
        });
    }
    let entries = file.prefixes.unwrap_or_default().into_iter();
    entries
        .enumerate()
        .map(|(at, value)| pattern(path, at + 1, value))
        .collect()
}

fn pattern(path: &Path, entry: usize, value: Value) -> Result<Pattern, PrefixFileError> {
    let path = || path.to_owned();
    let Entry {
        prefix,
        source,
        invert,
    } = serde_json::from_value(value).map_err(|cause| PrefixFileError::Entry {
        path: path(),
        entry,
        cause,
    })?;
    for (field, text) in [("prefix", &prefix), ("source", &source)] {
        if text.is_empty() {
            return Err(PrefixFileError::Missing {
                path: path(),
                entry,
                field,
            });
        }
    }
    Pattern::new(Some(&source), &prefix, invert).map_err(|cause| PrefixFileError::Regex {
        path: path(),
        entry,
        prefix,
        cause: Box::new(cause),
    })
}

#[cfg(test)]
mod tests {
    use skep_identity::Label;
    use tempfile::NamedTempFile;

    use super::*;
    use crate::LabelFilter;

    fn file(text: &str) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        file
    }

    fn relevant(text: &str, patterns: &[&str], labels: &[&str]) -> Vec<String> {
        let file = file(text);
        let filter = LabelFilter::of_file(file.path(), patterns.iter().copied()).unwrap();
        let labels = labels.iter().map(|text| text.parse::<Label>().unwrap());
        let relevant = labels.filter(|label| filter.is_relevant(label));
        relevant.map(|label| label.to_string()).collect()
    }

    const LABELS: &[&str] = &[
        "k8s:app",
        "k8s:app-version",
        "k8s:pod-template-hash",
        "k8s:io.kubernetes.pod.namespace",
        "cni:app",
        "reserved:host",
    ];

    #[test]
    fn prefixes_of_a_file_replace_the_default_ones() {
        let file = r#"{"version": 1, "valid-prefixes": [
            {"prefix": "app", "source": "k8s"}, {"prefix": "app-version", "source": "k8s", "invert": true}]}"#;

        assert_eq!(relevant(file, &[], LABELS), ["k8s:app", "reserved:host"]);
        assert_eq!(
            relevant(file, &["k8s:io.kubernetes"], LABELS),
            ["k8s:app", "k8s:io.kubernetes.pod.namespace", "reserved:host"]
        );
    }

    #[test]
    fn a_file_that_only_excludes_leaves_the_others_in() {
        let file =
            r#"{"version": 1, "valid-prefixes": [{"prefix": "app", "source": "k8s", "invert": true}]}"#;

        assert_eq!(relevant(file, &[], LABELS), &LABELS[2..]);
        assert_eq!(
            relevant(r#"{"version": 1, "valid-prefixes": null}"#, &[], LABELS),
            LABELS
        );
    }

    #[test]
    fn errors_name_file_and_entry() {
        let prefixes = |entry: &str| {
            format!(r#"{{"version": 1, "valid-prefixes": [{{"prefix": "a", "source": "k8s"}}, {entry}]}}"#)
        };
        for (text, expected) in [
            ("{".to_owned(), " is no list of label prefixes"),
            (
                r#"{"valid-prefixes": []}"#.to_owned(),
                " is no list of label prefixes",
            ),
            (
                r#"{"version": 2}"#.to_owned(),
                ": version 2 is not supported: it must be 1",
            ),
            (prefixes(r#"{"source": "k8s"}"#), ": entry 2 has no prefix"),
            (
                prefixes(r#"{"prefix": "a", "source": ""}"#),
                ": entry 2 has no source",
            ),
            (prefixes("7"), ": entry 2 is invalid"),
            (
                prefixes(r#"{"prefix": "a", "source": "k8s", "invert": "yes"}"#),
                ": entry 2 is invalid",
            ),
            (
                prefixes(r#"{"prefix": "app(", "source": "k8s"}"#),
                ": entry 2: `app(` is no regular expression",
            ),
        ] {
            let file = file(&text);
            let error = read(file.path()).unwrap_err().to_string();
            assert_eq!(error, format!("{}{expected}", file.path().display()), "{text}");
        }
        let error = read(Path::new("/nowhere/prefixes.json")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nowhere/prefixes.json");
    }
}
