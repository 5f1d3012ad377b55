// SPDX-License-Identifier: Apache-2.0

//! Templates of JSONPath as `kubectl` and Cilium's commands take them: `{.items[*].name}`.
//!
//! Text outside of braces is copied. Within braces is a path, a string in quotes, or `range` of a path, whose end is
//! `{end}`. Paths have fields, indices, slices, wildcards, unions, `..` and filters; one that leads nowhere prints nothing.

mod parse;

use std::cmp::Ordering;
use std::str::FromStr;

use serde_json::Value;

/// A template.
///
/// ```
/// use hive_script::text::jsonpath::Template;
///
/// let template: Template = "{range .pods[?(@.ready==true)]}{.name}{\"\\n\"}{end}".parse()?;
/// let pods = serde_json::json!({ "pods": [{ "name": "a", "ready": true }, { "name": "b" }] });
/// assert_eq!(template.render(&pods), "a\n");
/// # Ok::<(), hive_script::text::jsonpath::TemplateError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<Node>);

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSONPath at character {at}: {reason}")]
pub struct TemplateError {
    /// Where, counted from 1.
    pub at: usize,
    /// What is wrong.
    pub reason: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Text(String),
    Path(Path),
    Range(Path, Vec<Node>),
}

#[derive(Clone, Debug, PartialEq)]
struct Path {
    /// From the document, or from where a range or a filter is.
    is_absolute: bool,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Members of an object by name, one after the other.
    Fields(Vec<String>),
    /// Elements of an array; those before 0 count from its end.
    Indices(Vec<i64>),
    Slice {
        start: Option<i64>,
        end: Option<i64>,
        step: usize,
    },
    /// All members or elements.
    Wildcard,
    /// The value itself and all below it.
    Descend,
    Filter(Filter),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// Without it, whether the left one leads to something.
    right: Option<(Operator, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(Path),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl FromStr for Template {
    type Err = TemplateError;

    /// Parses a template. A path without braces is one, too: `.items` is `{.items}`.
    fn from_str(text: &str) -> Result<Self, TemplateError> {
        parse::template(text).map(Self)
    }
}

impl Template {
    /// Prints what the template selects of a document. Several values of one path have a space between them; strings have no
    /// quotes, objects and arrays are compact JSON.
    pub fn render(&self, document: &Value) -> String {
        let mut text = String::new();
        render(&self.0, document, document, &mut text);
        text
    }
}

fn render(nodes: &[Node], root: &Value, current: &Value, text: &mut String) {
    for node in nodes {
        match node {
            Node::Text(literal) => text.push_str(literal),
            Node::Path(path) => {
                let found: Vec<String> = path.find(root, current).into_iter().map(scalar).collect();
                text.push_str(&found.join(" "));
            }
            Node::Range(path, inner) => {
                for element in path.find(root, current) {
                    render(inner, root, element, text);
                }
            }
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Path {
    fn find<'a>(&self, root: &'a Value, current: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![if self.is_absolute { root } else { current }];
        for step in &self.steps {
            found = found
                .into_iter()
                .flat_map(|value| step.apply(root, value))
                .collect();
        }
        found
    }
}

impl Step {
    fn apply<'a>(&self, root: &'a Value, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Fields(names) => names.iter().filter_map(|name| value.get(name)).collect(),
            Self::Indices(indices) => {
                let elements = elements(value);
                let position = |index: &i64| position(*index, elements.len());
                indices
                    .iter()
                    .filter_map(|index| elements.get(position(index)?))
                    .collect()
            }
            Self::Slice { start, end, step } => {
                let elements = elements(value);
                let clamp = |index: i64| position(index, elements.len()).unwrap_or(0).min(elements.len());
                let start = start.map_or(0, clamp);
                let end = end.map_or(elements.len(), clamp).max(start);
                elements[start..end].iter().step_by(*step).collect()
            }
            Self::Wildcard => children(value),
            Self::Descend => descend(value),
            Self::Filter(filter) => children(value)
                .into_iter()
                .filter(|element| filter.accepts(root, element))
                .collect(),
        }
    }
}

fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The place of an index that may count from the end.
fn position(index: i64, length: usize) -> Option<usize> {
    match usize::try_from(index) {
        Ok(index) => Some(index),
        Err(_) => length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?),
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(elements) => elements.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => Vec::new(),
    }
}

fn descend(value: &Value) -> Vec<&Value> {
    let mut found = vec![value];
    for child in children(value) {
        found.extend(descend(child));
    }
    found
}

impl Filter {
    fn accepts(&self, root: &Value, element: &Value) -> bool {
        let left = self.left.find(root, element);
        let Some((operator, right)) = &self.right else {
            return !left.is_empty();
        };
        let right = right.find(root, element);
        match (left.first(), right.first()) {
            (Some(left), Some(right)) => operator.holds(left, right),
            _ => false,
        }
    }
}

impl Operand {
    fn find<'a>(&'a self, root: &'a Value, element: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Path(path) => path.find(root, element),
            Self::Literal(value) => vec![value],
        }
    }
}

impl Operator {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
                (Some(left), Some(right)) => Some(left.cmp(&right)),
                _ => left
                    .as_f64()
                    .zip(right.as_f64())
                    .and_then(|(left, right)| left.partial_cmp(&right)),
            },
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            _ => (left == right).then_some(Ordering::Equal),
        };
        match self {
            Self::Equal => order == Some(Ordering::Equal),
            Self::NotEqual => order != Some(Ordering::Equal),
            Self::Less => order == Some(Ordering::Less),
            Self::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Greater => order == Some(Ordering::Greater),
            Self::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "name": "web",
            "ports": [80, 443, 8080],
            "labels": { "app.kubernetes.io/name": "cart", "tier": "front" },
            "pods": [
                { "name": "a", "ready": true, "restarts": 0, "status": { "ip": "10.0.0.1" } },
                { "name": "b", "ready": false, "restarts": 3, "status": { "ip": "10.0.0.2" } },
                { "name": "c", "restarts": 12 },
            ],
        })
    }

    #[track_caller]
    fn renders(template: &str, expected: &str) {
        let parsed: Template = template
            .parse()
            .unwrap_or_else(|error| panic!("{template}: {error}"));
        assert_eq!(parsed.render(&document()), expected, "{template}");
    }

    #[test]
    fn paths_select_values() {
        renders("{.name}", "web");
        renders("{$.name}", "web");
        renders("$.name", "web");
        renders(".pods[0].name", "a");
        renders("{.pods[0].status.ip}", "10.0.0.1");
        renders("{['name']}", "web");
        renders(r#"{.labels["app.kubernetes.io/name"]}"#, "cart");
        renders(r"{.labels.app\.kubernetes\.io/name}", "cart");
        renders("{.ports[*]}", "80 443 8080");
        renders("{.ports[-1]}", "8080");
        renders("{.ports[0,2]}", "80 8080");
        renders("{.ports[1:]}", "443 8080");
        renders("{.ports[:-1]}", "80 443");
        renders("{.ports[::2]}", "80 8080");
        renders("{.ports[9:1]}", "");
        renders("{.labels.*}", "cart front");
        renders("{.pods[*]['name','restarts']}", "a 0 b 3 c 12");
        renders("{..ip}", "10.0.0.1 10.0.0.2");
        renders("{.ports}", "[80,443,8080]");
        renders("{.pods[1].status}", r#"{"ip":"10.0.0.2"}"#);
    }

    #[test]
    fn what_is_not_there_prints_nothing() {
        for path in [
            "{.nope}",
            "{.name.deeper}",
            "{.ports[7]}",
            "{.ports[-7]}",
            "{.name[0]}",
            "{.pods[*].nope}",
        ] {
            renders(path, "");
        }
    }

    #[test]
    fn filters_select_elements() {
        renders("{.pods[?(@.ready==true)].name}", "a");
        renders("{.pods[?(@.ready)].name}", "a b");
        renders(r#"{.pods[?(@.name != "a")].name}"#, "b c");
        renders("{.pods[?(@.status.ip=='10.0.0.2')].name}", "b");
        renders("{.pods[?(@.restarts>2)].name}", "b c");
        renders("{.pods[?( 3 >= @.restarts )].name}", "a b");
        renders("{.ports[?(@<100)]}", "80");
    }

    #[test]
    fn text_and_ranges_make_lines() {
        renders("name: {.name}!", "name: web!");
        renders(
            r#"{range .pods[*]}{.name}{"\t"}{.status.ip}{"\n"}{end}"#,
            "a\t10.0.0.1\nb\t10.0.0.2\nc\t\n",
        );
        renders(
            "{range .pods[0:2]}{range .status}{.ip} {end}of {$.name};{end}",
            "10.0.0.1 of web;10.0.0.2 of web;",
        );
    }

    #[test]
    fn what_is_no_template_is_refused_with_its_place() {
        let error = |text: &str| text.parse::<Template>().unwrap_err().to_string();

        assert_eq!(error("{.name"), "invalid JSONPath at character 7: `}` is missing");
        assert_eq!(
            error("{.a[}"),
            "invalid JSONPath at character 5: expected an index, a name in quotes, `*`, `:` or `?(`"
        );
        for wrong in [
            "",
            "{}",
            "{name}",
            "{.}{end}",
            "{range .pods}{.name}",
            "{.a[1}",
            "{.a['b}",
            "{.a[?(@.b=1)]}",
            "{.a[?(@.b==)]}",
            "{.a[?(@.b==1]}",
            "{.a[::0]}",
            "{\"x}",
            "{.a b}",
            "{.a[99999999999999999999]}",
        ] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
    }
}
