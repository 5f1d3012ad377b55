// SPDX-License-Identifier: Apache-2.0

//! Whether a definition in the cluster is older than ours.

use semver::Version;
use serde_json::Value;

use crate::definition::{
    MCS_RELEASE, MCS_RELEASE_LABEL, MCS_REVISION, MCS_REVISION_LABEL, Revision, SCHEMA_VERSION,
    SCHEMA_VERSION_LABEL,
};

impl Revision {
    /// True if the definition `found` is to be replaced: its labels are missing, make no sense or say that it is older.
    /// One that is as new or newer stays, whatever it contains.
    pub(crate) fn is_outdated(self, found: &Value) -> bool {
        let label = |key: &str| found["metadata"]["labels"][key].as_str();
        match self {
            Revision::Cilium => {
                let has_schema = !found["spec"]["versions"][0]["schema"].is_null();
                let found = label(SCHEMA_VERSION_LABEL).and_then(version);
                !has_schema || found.is_none_or(|found| Some(found) < version(SCHEMA_VERSION))
            }
            Revision::MultiCluster => {
                let number = |text: &str| text.parse::<u64>().ok();
                let (Some(release), Some(revision)) = (
                    label(MCS_RELEASE_LABEL).and_then(version),
                    label(MCS_REVISION_LABEL).and_then(number),
                ) else {
                    return true;
                };
                (Some(release), Some(revision)) < (version(MCS_RELEASE), number(MCS_REVISION))
            }
        }
    }
}

/// Reads a version: `v` in front, missing parts and leading zeros are fine.
fn version(text: &str) -> Option<Version> {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let mut parts: Vec<u64> = Vec::with_capacity(3);
    for part in numbers.split('.') {
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        parts.push(part.parse().ok()?);
    }
    if parts.len() > 3 || (parts.len() < 3 && !rest.is_empty()) {
        return None;
    }
    parts.resize(3, 0);
    Version::parse(&format!("{}.{}.{}{rest}", parts[0], parts[1], parts[2])).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_versions_with_tolerance() {
        for (text, expected) in [
            ("1.33.9", Some("1.33.9")),
            ("v1.33.9", Some("1.33.9")),
            (" 1.33 ", Some("1.33.0")),
            ("1", Some("1.0.0")),
            ("1.033.9", Some("1.33.9")),
            ("1.33.9-pre.1", Some("1.33.9-pre.1")),
            ("", None),
            ("1.x", None),
            ("1.2.3.4", None),
            ("newest", None),
        ] {
            assert_eq!(
                version(text).map(|v| v.to_string()).as_deref(),
                expected,
                "{text:?}"
            );
        }
    }

    #[test]
    fn replaces_only_what_is_older() {
        let found = |version: &str| {
            json!({
                "metadata": { "labels": { SCHEMA_VERSION_LABEL: version } },
                "spec": { "versions": [{ "schema": {} }] },
            })
        };
        for (version, outdated) in [
            ("1.33.8", true),
            ("1.33.9-rc.1", true),
            ("1.33", true),
            ("unknown", true),
            ("1.33.9", false),
            ("v1.33.9", false),
            ("1.34", false),
        ] {
            assert_eq!(
                Revision::Cilium.is_outdated(&found(version)),
                outdated,
                "{version}"
            );
        }
        let mut without_schema = found("1.33.9");
        without_schema["spec"]["versions"][0] = json!({ "name": "v2" });
        assert!(Revision::Cilium.is_outdated(&without_schema));
        assert!(Revision::Cilium.is_outdated(&json!({ "spec": { "versions": [{ "schema": {} }] } })));
    }

    #[test]
    fn compares_release_then_revision_of_the_multi_cluster_api() {
        let found = |release: &str, revision: &str| json!({ "metadata": { "labels": { MCS_RELEASE_LABEL: release, MCS_REVISION_LABEL: revision } } });
        for (release, revision, outdated) in [
            ("v0.4.0", "7", true),
            ("v0.5.0", "0", true),
            ("v0.5.0", "x", true),
            ("v0.5.0", "1", false),
            ("v0.5.0", "2", false),
            ("v0.6.0", "0", false),
        ] {
            let is_outdated = Revision::MultiCluster.is_outdated(&found(release, revision));
            assert_eq!(is_outdated, outdated, "{release} {revision}");
        }
    }
}
