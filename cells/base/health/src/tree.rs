// SPDX-License-Identifier: Apache-2.0

//! Reports as a tree.

use std::fmt::Write;

use hive_script::text::human_duration_nanos;
use jiff::Timestamp;

use crate::status::{Status, never};

/// Width of the name of the deepest leaf of a block, and what every level above adds to it and to the gap behind it.
const NAME: usize = 40;
const STEP: usize = 2;

struct Node {
    name: String,
    /// What is shown behind the name.
    report: Option<String>,
    children: Vec<Node>,
}

/// Reports as a tree, with their ages at `now`. Each top-level name starts a block; an empty line ends the text.
///
/// ```
/// use skep_base_health::{LevelName, Status, StatusId, never, tree};
///
/// let id = StatusId { module: ["agent".into()].into(), component: ["worker".into()].into() };
/// let status = Status { id, level: LevelName::Ok, message: "Running".into(), count: 1, ..Status::default() };
/// let text = tree(&[status], never());
/// assert!(text.starts_with("agent\n└── worker "));
/// assert!(text.ends_with("[OK] Running (n/a, x1)\n\n"));
/// ```
pub fn tree(statuses: &[Status], now: Timestamp) -> String {
    let mut sorted: Vec<(String, &Status)> = statuses
        .iter()
        .map(|status| (status.id.to_string(), status))
        .collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    let mut roots = Vec::new();
    for (identifier, status) in sorted {
        insert(
            &mut roots,
            &identifier.split('.').collect::<Vec<_>>(),
            report(status, now),
        );
    }
    let mut out = String::new();
    for root in &mut roots {
        split_reporters(root);
        write_block(&mut out, root);
    }
    out.push('\n');
    out
}

fn report(status: &Status, now: Timestamp) -> String {
    let age = if status.updated == never() {
        "n/a".to_owned()
    } else {
        let age = now.duration_since(status.updated).as_nanos();
        human_duration_nanos(i64::try_from(age).unwrap_or(if age < 0 { i64::MIN } else { i64::MAX }))
    };
    let level = status.level.as_str().to_uppercase();
    format!("[{level}] {} ({age}, x{})", status.message, status.count)
}

fn insert(nodes: &mut Vec<Node>, parts: &[&str], report: String) {
    let Some((name, rest)) = parts.split_first() else {
        return;
    };
    let at = match nodes.iter().position(|node| node.name == *name) {
        Some(at) => at,
        None => {
            nodes.push(Node {
                name: (*name).to_owned(),
                report: None,
                children: Vec::new(),
            });
            nodes.len() - 1
        }
    };
    if rest.is_empty() {
        nodes[at].report = Some(report);
    } else {
        insert(&mut nodes[at].children, rest, report);
    }
}

/// Moves the report of a node that has children into a child of it.
fn split_reporters(node: &mut Node) {
    if !node.children.is_empty()
        && let Some(report) = node.report.take()
    {
        let reporter = Node {
            name: "[reporter]".to_owned(),
            report: Some(report),
            children: Vec::new(),
        };
        node.children.insert(0, reporter);
    }
    node.children.iter_mut().for_each(split_reporters);
}

fn depth(node: &Node) -> usize {
    node.children
        .iter()
        .map(|child| 1 + depth(child))
        .max()
        .unwrap_or(0)
}

fn write_block(out: &mut String, root: &Node) {
    let deepest = depth(root);
    write_name(out, root, deepest);
    write_children(out, root, "", deepest, 1);
}

fn write_children(out: &mut String, node: &Node, indent: &str, deepest: usize, level: usize) {
    for (at, child) in node.children.iter().enumerate() {
        let is_last = at + 1 == node.children.len();
        let (edge, below) = if is_last {
            ("└── ", "    ")
        } else {
            ("├── ", "│   ")
        };
        out.push_str(indent);
        out.push_str(edge);
        write_name(out, child, deepest.saturating_sub(level));
        write_children(out, child, &format!("{indent}{below}"), deepest, level + 1);
    }
}

/// Writes a name and, of a leaf, its report in the column of the block; `above` levels are deeper.
fn write_name(out: &mut String, node: &Node, above: usize) {
    match &node.report {
        None => {
            let _ = writeln!(out, "{}", node.name);
        }
        Some(report) => {
            let extra = STEP * (above + 1);
            let width = NAME + extra;
            let _ = writeln!(out, "{:<width$}{:extra$}{report}", node.name, "");
        }
    }
}
