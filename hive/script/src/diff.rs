// SPDX-License-Identifier: Apache-2.0

//! Unified line diff, anchored at lines that occur once on both sides.

use similar::{Algorithm, TextDiff};

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// Differences between two texts; empty if they are equal.
///
/// ```
/// let text = hive_script::diff("a", "x\ny\n", "b", "x\nz\n");
/// assert_eq!(text, "diff a b\n--- a\n+++ b\n@@ -1,2 +1,2 @@\n x\n-y\n+z\n");
/// ```
pub fn diff(old_name: &str, old: &str, new_name: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    let lines = TextDiff::configure()
        .algorithm(Algorithm::Patience)
        .diff_lines(old, new);
    let hunks = lines
        .unified_diff()
        .context_radius(CONTEXT)
        .header(old_name, new_name)
        .to_string();
    format!("diff {old_name} {new_name}\n{hunks}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(range: std::ops::RangeInclusive<u32>) -> String {
        range.map(|n| format!("{n}\n")).collect()
    }

    #[test]
    fn equal_texts_have_no_diff() {
        assert_eq!(diff("a", "x\n", "b", "x\n"), "");
    }

    #[test]
    fn far_changes_are_two_hunks() {
        let old = numbers(1..=20);
        let new = old.replace("2\n3\n", "2\nX\n3\n").replace("\n19\n", "\n");

        assert_eq!(
            diff("old", &old, "new", &new),
            "diff old new\n--- old\n+++ new\n@@ -1,5 +1,6 @@\n 1\n 2\n+X\n 3\n 4\n 5\n@@ -16,5 +17,4 @@\n 16\n 17\n 18\n-19\n 20\n"
        );
    }

    #[test]
    fn an_empty_side_starts_at_zero() {
        assert_eq!(
            diff("a", "x\n", "<empty>", ""),
            "diff a <empty>\n--- a\n+++ <empty>\n@@ -1 +0,0 @@\n-x\n"
        );
    }

    #[test]
    fn a_missing_newline_is_a_difference() {
        assert_eq!(
            diff("a", "x\ny", "b", "x\ny\n"),
            "diff a b\n--- a\n+++ b\n@@ -1,2 +1,2 @@\n x\n-y\n\\ No newline at end of file\n+y\n"
        );
    }

    #[test]
    fn moved_lines_keep_the_longest_series() {
        let text = diff("a", "a\nb\nc\nd\n", "b", "d\na\nb\nc\n");

        assert_eq!(
            text,
            "diff a b\n--- a\n+++ b\n@@ -1,4 +1,4 @@\n+d\n a\n b\n c\n-d\n"
        );
    }
}
