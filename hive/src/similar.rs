// SPDX-License-Identifier: Apache-2.0

//! "Did you mean": edit distance.

use strsim::osa_distance;

/// The candidate nearest to `text`, if near enough to be a slip.
pub(crate) fn closest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    let limit = (text.len() / 3).max(2);
    candidates
        .map(|candidate| (osa_distance(text, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let known = ["enable-ipv4", "enable-ipv6", "cluster-name"];
        assert_eq!(
            closest("enable-ipv5", known.into_iter()).as_deref(),
            Some("enable-ipv4")
        );
        assert_eq!(
            closest("clutser-name", known.into_iter()).as_deref(),
            Some("cluster-name")
        );
        assert_eq!(closest("bpf-root", known.into_iter()), None);
        // Two edits in a short text, a third of the letters in a long one.
        assert_eq!(
            closest("abcd", ["abxy", "wxyz"].into_iter()).as_deref(),
            Some("abxy")
        );
        assert_eq!(closest("abcd", ["axyz"].into_iter()), None);
        assert_eq!(
            closest("abcdefghi", ["abcdefxyz"].into_iter()).as_deref(),
            Some("abcdefxyz")
        );
        assert_eq!(closest("abcdefghi", ["abcdewxyz"].into_iter()), None);
        // Neighbours that changed places are one edit.
        assert_eq!(closest("ba", ["abxx", "ab"].into_iter()).as_deref(), Some("ab"));
    }
}
