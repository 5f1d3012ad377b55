// SPDX-License-Identifier: Apache-2.0

//! Unified line diff, anchored at lines that occur once on both sides, as Go's test tools print it.

use std::collections::HashMap;
use std::fmt::Write;

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
    let mut out = format!("diff {old_name} {new_name}\n--- {old_name}\n+++ {new_name}\n");
    Hunks {
        x: lines(old),
        y: lines(new),
        ..Hunks::default()
    }
    .write(&mut out);
    out
}

#[derive(Default)]
struct Hunks<'a> {
    x: Vec<Line<'a>>,
    y: Vec<Line<'a>>,
    /// Everything before these lines is written or in the current hunk.
    done: (usize, usize),
    start: (usize, usize),
    count: (usize, usize),
    text: String,
}

/// A line with its newline, or the last line of a text that does not end in one.
type Line<'a> = &'a str;

fn lines(text: &str) -> Vec<Line<'_>> {
    text.split_inclusive('\n').collect()
}

impl Hunks<'_> {
    fn write(&mut self, out: &mut String) {
        let (x_len, y_len) = (self.x.len(), self.y.len());
        for anchor in anchors(&self.x, &self.y) {
            if anchor.0 < self.done.0 {
                continue;
            }
            let mut start = anchor;
            while start.0 > self.done.0 && start.1 > self.done.1 && self.x[start.0 - 1] == self.y[start.1 - 1]
            {
                start = (start.0 - 1, start.1 - 1);
            }
            let mut end = anchor;
            while end.0 < x_len && end.1 < y_len && self.x[end.0] == self.y[end.1] {
                end = (end.0 + 1, end.1 + 1);
            }
            for at in self.done.0..start.0 {
                push_line(&mut self.text, '-', self.x[at]);
                self.count.0 += 1;
            }
            for at in self.done.1..start.1 {
                push_line(&mut self.text, '+', self.y[at]);
                self.count.1 += 1;
            }
            let common = end.0 - start.0;
            let at_end = end.0 >= x_len && end.1 >= y_len;
            if !at_end && (common < CONTEXT || (!self.text.is_empty() && common < 2 * CONTEXT)) {
                self.context(start.0, end.0);
                self.done = end;
                continue;
            }
            if !self.text.is_empty() {
                let tail = common.min(CONTEXT);
                self.context(start.0, start.0 + tail);
                self.done = (start.0 + tail, start.1 + tail);
                self.flush(out);
            }
            if at_end {
                break;
            }
            self.start = (end.0 - CONTEXT, end.1 - CONTEXT);
            self.context(end.0 - CONTEXT, end.0);
            self.done = end;
        }
    }

    fn context(&mut self, from: usize, to: usize) {
        for at in from..to {
            push_line(&mut self.text, ' ', self.x[at]);
        }
        self.count = (self.count.0 + to - from, self.count.1 + to - from);
    }

    /// Ends the hunk. Line numbers start at 1, but an empty side is 0,0.
    fn flush(&mut self, out: &mut String) {
        let number = |start: usize, count: usize| if count > 0 { start + 1 } else { start };
        let _ = writeln!(
            out,
            "@@ -{},{} +{},{} @@",
            number(self.start.0, self.count.0),
            self.count.0,
            number(self.start.1, self.count.1),
            self.count.1
        );
        out.push_str(&self.text);
        self.text.clear();
        self.count = (0, 0);
    }
}

fn push_line(out: &mut String, mark: char, line: &str) {
    out.push(mark);
    out.push_str(line);
    if !line.ends_with('\n') {
        out.push_str("\n\\ No newline at end of file\n");
    }
}

/// Pairs of equal lines that are unique on both sides, the longest series that grows on both, between sentinels.
fn anchors(x: &[Line<'_>], y: &[Line<'_>]) -> Vec<(usize, usize)> {
    let mut places: HashMap<&str, (Vec<usize>, Vec<usize>)> = HashMap::new();
    for (at, line) in x.iter().enumerate() {
        places.entry(line).or_default().0.push(at);
    }
    for (at, line) in y.iter().enumerate() {
        places.entry(line).or_default().1.push(at);
    }
    let unique: Vec<(usize, usize)> = x
        .iter()
        .filter_map(|line| match places.get(line) {
            Some((left, right)) if left.len() == 1 && right.len() == 1 => Some((left[0], right[0])),
            _ => None,
        })
        .collect();

    // Longest increasing subsequence of the right-hand places: `ends[n]` is the pair that ends the best series of
    // n + 1 pairs, `before` the pair in front of each.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(unique.len());
    for (at, (_, right)) in unique.iter().enumerate() {
        let length = ends.partition_point(|end| unique[*end].1 < *right);
        before.push(length.checked_sub(1).map(|previous| ends[previous]));
        if length == ends.len() {
            ends.push(at);
        } else {
            ends[length] = at;
        }
    }
    let mut series = vec![(x.len(), y.len())];
    let mut next = ends.last().copied();
    while let Some(at) = next {
        series.push(unique[at]);
        next = before[at];
    }
    series.push((0, 0));
    series.reverse();
    series
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
            "diff a <empty>\n--- a\n+++ <empty>\n@@ -1,1 +0,0 @@\n-x\n"
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
