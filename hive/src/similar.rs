// SPDX-License-Identifier: Apache-2.0

//! "Did you mean": edit distance.

/// The candidate nearest to `text`, if near enough to be a slip.
pub(crate) fn closest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    let limit = (text.len() / 3).max(2);
    candidates
        .map(|candidate| (distance(text, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

/// Insertions, deletions, replacements and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows = [
        vec![0; b.len() + 1],
        (0..=b.len()).collect::<Vec<_>>(),
        vec![0; b.len() + 1],
    ];
    for i in 1..=a.len() {
        rows[2][0] = i;
        for j in 1..=b.len() {
            let replaced = rows[1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[1][j] + 1).min(rows[2][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[0][j - 2] + 1);
            }
            rows[2][j] = best;
        }
        rows.rotate_left(1);
    }
    rows[1][b.len()]
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
    }

    #[test]
    fn counts_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("ab", "ba"), 1);
    }
}
