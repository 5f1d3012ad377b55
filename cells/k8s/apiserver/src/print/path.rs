// SPDX-License-Identifier: Apache-2.0

//! The part of JSONPath that column definitions use: fields, indices, `[*]` and equality filters.

use serde_json::Value;

enum Step {
    Field(String),
    Index(i64),
    All,
    Filter(Vec<Step>, bool, String),
}

/// The values at `path`, such as `.status.conditions[?(@.type=="Ready")].status`. None if the path is malformed.
pub(super) fn find<'a>(path: &str, value: &'a Value) -> Vec<&'a Value> {
    let path = path
        .trim()
        .trim_start_matches('{')
        .trim_end_matches('}')
        .trim_start_matches('$');
    parse(path).map(|steps| walk(&steps, value)).unwrap_or_default()
}

fn parse(path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let end = closing(after)?;
            let inside = after[..end].trim();
            rest = &after[end + 1..];
            steps.push(if inside == "*" {
                Step::All
            } else if let Some(filter) = inside.strip_prefix("?(").and_then(|f| f.strip_suffix(')')) {
                let (left, equal, right) = match filter.split_once("==") {
                    Some((left, right)) => (left, true, right),
                    None => {
                        let (left, right) = filter.split_once("!=")?;
                        (left, false, right)
                    }
                };
                let left = left.trim().strip_prefix('@')?;
                Step::Filter(parse(left)?, equal, unquoted(right.trim()))
            } else if inside.starts_with(['\'', '"']) {
                Step::Field(unquoted(inside))
            } else {
                Step::Index(inside.parse().ok()?)
            });
        } else {
            let after = rest.strip_prefix('.').unwrap_or(rest);
            let mut name = String::new();
            let mut used = after.len();
            let mut escaped = false;
            for (at, c) in after.char_indices() {
                match c {
                    '\\' if !escaped => escaped = true,
                    '.' | '[' if !escaped => {
                        used = at;
                        break;
                    }
                    c => {
                        escaped = false;
                        name.push(c);
                    }
                }
            }
            rest = &after[used..];
            match name.as_str() {
                "" if rest.is_empty() => break,
                "" => return None,
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Field(name)),
            }
        }
    }
    Some(steps)
}

/// Where the bracket that was opened before `text` closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn unquoted(text: &str) -> String {
    text.trim_matches(|c| c == '\'' || c == '"').to_owned()
}

fn walk<'a>(steps: &[Step], value: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![value];
    for step in steps {
        found = found
            .into_iter()
            .flat_map(|value| -> Vec<&Value> {
                match step {
                    Step::Field(name) => value.get(name).into_iter().collect(),
                    Step::Index(at) => {
                        let items = value.as_array().map_or(&[][..], Vec::as_slice);
                        let at = if *at < 0 { items.len() as i64 + at } else { *at };
                        usize::try_from(at)
                            .ok()
                            .and_then(|at| items.get(at))
                            .into_iter()
                            .collect()
                    }
                    Step::All => match value {
                        Value::Array(items) => items.iter().collect(),
                        Value::Object(map) => map.values().collect(),
                        _ => Vec::new(),
                    },
                    Step::Filter(path, equal, wanted) => value
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter(|item| {
                            let text = walk(path, item)
                                .first()
                                .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
                            (text.as_deref() == Some(wanted)) == *equal
                        })
                        .collect(),
                }
            })
            .collect();
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_values() {
        let value = json!({ "a": { "b.c": 1, "l": [{ "t": "x", "v": 1 }, { "t": "y", "v": 2 }] } });
        let cases = [
            (".a.l[0].v", vec![json!(1)]),
            (".a.l[-1].v", vec![json!(2)]),
            (".a.l[*].v", vec![json!(1), json!(2)]),
            (".a.l[?(@.t==\"y\")].v", vec![json!(2)]),
            (".a.l[?(@.t!='y')].v", vec![json!(1)]),
            (".a.b\\.c", vec![json!(1)]),
            (".a['b.c']", vec![json!(1)]),
            ("{.a.none}", vec![]),
            (".a.l[", vec![]),
            (".a..l", vec![]),
        ];
        for (path, expected) in cases {
            let found: Vec<Value> = find(path, &value).into_iter().cloned().collect();
            assert_eq!(found, expected, "{path}");
        }
    }
}
