// SPDX-License-Identifier: Apache-2.0

//! Lays out nodes as block YAML.

use std::cmp::Ordering;

use super::node::Node;
use super::scalar::{Place, write_text};

/// Keys longer than this get the explicit form `? key`.
const LONGEST_SIMPLE_KEY: usize = 128;

/// Which library's layout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// gopkg.in/yaml.v3.
    V3,
    /// sigs.k8s.io/yaml.
    V2,
}

/// What a node stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    Document,
    Map,
    List,
}

pub(super) fn document(node: &Node, style: Style) -> String {
    let mut emitter = Emitter {
        out: String::new(),
        style,
    };
    emitter.node(node, 0, Parent::Document);
    emitter.out.push('\n');
    emitter.out
}

struct Emitter {
    out: String,
    style: Style,
}

impl Emitter {
    fn step(&self) -> usize {
        match self.style {
            Style::V3 => 4,
            Style::V2 => 2,
        }
    }

    /// The next indentation: yaml.v3 aligns to multiples of the step, except right after a dash.
    fn deeper(&self, indent: usize, parent: Parent) -> usize {
        match (self.style, parent) {
            (_, Parent::Document) => 0,
            (Style::V3, Parent::List) => indent + 2,
            (Style::V3, Parent::Map) => 4 * ((indent + 4) / 4),
            (Style::V2, _) => indent + 2,
        }
    }

    fn column(&self) -> usize {
        let start = self.out.rfind('\n').map_or(0, |at| at + 1);
        self.out[start..].chars().count()
    }

    fn new_line(&mut self, indent: usize) {
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n(' ', indent));
    }

    /// Writes a node; `indent` is that of what it stands in. The cursor stands where an inline value would begin:
    /// after `key:` (no space yet), after `- `, or at the start.
    fn node(&mut self, node: &Node, indent: usize, parent: Parent) {
        match node {
            Node::Map(entries) if !entries.is_empty() => self.map(entries, indent, parent),
            Node::List(items) if !items.is_empty() => self.list(items, indent, parent),
            _ => {
                if parent == Parent::Map {
                    self.out.push(' ');
                }
                let indent = match parent {
                    Parent::Document => self.step(),
                    _ => self.deeper(indent, parent),
                };
                self.scalar(node, indent, false);
            }
        }
    }

    fn map(&mut self, entries: &[(Node, Node)], indent: usize, parent: Parent) {
        let indent = self.deeper(indent, parent);
        let mut sorted: Vec<&(Node, Node)> = entries.iter().collect();
        if self.style == Style::V2 {
            sorted.sort_by(|a, b| compare_keys(&a.0, &b.0));
        }
        for (number, (key, value)) in sorted.into_iter().enumerate() {
            if number > 0 || parent == Parent::Map {
                self.new_line(indent);
            }
            if is_simple_key(key) {
                self.scalar(key, indent, true);
            } else {
                self.out.push_str("? ");
                self.node(key, indent, Parent::List);
                self.new_line(indent);
                if self.style == Style::V3 && is_collection(value) {
                    // yaml.v3 begins the value in this line, a step from the key.
                    self.out.push_str(":   ");
                    self.node(value, indent + 2, Parent::List);
                    continue;
                }
            }
            self.out.push(':');
            self.node(value, indent, Parent::Map);
        }
    }

    fn list(&mut self, items: &[Node], indent: usize, parent: Parent) {
        let indent = match (self.style, parent) {
            (Style::V2, Parent::Map) => indent,
            _ => self.deeper(indent, parent),
        };
        for (number, item) in items.iter().enumerate() {
            if number > 0 || parent == Parent::Map {
                self.new_line(indent);
            }
            self.out.push_str("- ");
            self.node(item, indent, Parent::List);
        }
    }

    fn scalar(&mut self, node: &Node, indent: usize, is_key: bool) {
        match node {
            Node::Null => self.out.push_str("null"),
            Node::Bool(value) => self.out.push_str(if *value { "true" } else { "false" }),
            Node::Int(value) => self.out.push_str(&value.to_string()),
            Node::Float(value) => self.out.push_str(&format_float(*value)),
            Node::Plain(text) => self.out.push_str(text),
            Node::List(_) => self.out.push_str("[]"),
            Node::Map(_) => self.out.push_str("{}"),
            Node::Text(text) => {
                let place = Place {
                    column: self.column(),
                    indent,
                    step: self.step(),
                    is_key,
                    folds: self.style == Style::V2,
                };
                write_text(&mut self.out, text, place);
            }
        }
    }
}

fn is_collection(node: &Node) -> bool {
    match node {
        Node::Map(entries) => !entries.is_empty(),
        Node::List(items) => !items.is_empty(),
        _ => false,
    }
}

fn is_simple_key(key: &Node) -> bool {
    match key {
        Node::Text(text) => text.len() <= LONGEST_SIMPLE_KEY && !text.contains('\n'),
        Node::List(items) => items.is_empty(),
        Node::Map(entries) => entries.is_empty(),
        _ => true,
    }
}

/// Go's shortest form: decimal for exponents from -4 to 20, otherwise `1e+21`.
fn format_float(value: f64) -> String {
    if value.is_nan() {
        return ".nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 {
            ".inf".to_owned()
        } else {
            "-.inf".to_owned()
        };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..21).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    value.to_string()
}

/// The order of keys in Go's YAML library: letters by code, numbers by value, letters after other characters.
fn compare_keys(a: &Node, b: &Node) -> Ordering {
    match (a, b) {
        (Node::Text(a), Node::Text(b)) => compare_texts(a, b),
        (Node::Int(a), Node::Int(b)) => a.cmp(b),
        (Node::Text(_), _) => Ordering::Greater,
        (_, Node::Text(_)) => Ordering::Less,
        _ => Ordering::Equal,
    }
}

fn compare_texts(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    for at in 0..a.len().min(b.len()) {
        if a[at] == b[at] {
            continue;
        }
        match (a[at].is_alphabetic(), b[at].is_alphabetic()) {
            (true, true) => return a[at].cmp(&b[at]),
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) => {}
        }
        // A number that goes on behind a digit other than zero is compared with that digit, not as starting with 0.
        let inside = (a[at] == '0' || b[at] == '0')
            && a[..at]
                .iter()
                .rev()
                .take_while(|c| c.is_ascii_digit())
                .any(|c| *c != '0');
        let start = u64::from(inside);
        let (a_end, a_number) = number(&a, at, start);
        let (b_end, b_number) = number(&b, at, start);
        return a_number
            .cmp(&b_number)
            .then(a_end.cmp(&b_end))
            .then(a[at].cmp(&b[at]));
    }
    a.len().cmp(&b.len())
}

/// End and value of the number at `from`, with `value` as the digits before it.
fn number(text: &[char], from: usize, mut value: u64) -> (usize, u64) {
    let mut end = from;
    while let Some(digit) = text.get(end).and_then(|c| c.to_digit(10)) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        end += 1;
    }
    (end, value)
}
