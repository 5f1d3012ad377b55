// SPDX-License-Identifier: Apache-2.0

//! Label and field selectors.

use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::Kind;
use crate::object;

/// A label selector such as `app=web,tier in (front,back),!old`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    /// Reads the text form. Errors say what was expected.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if !part.is_empty() {
                requirements.push(parse_requirement(part).map_err(|problem| {
                    ApiError::bad_request(format!("unable to parse requirement: {problem}"))
                })?);
            }
        }
        Ok(LabelSelector(requirements))
    }

    /// Reads the form of `spec.selector` of workloads: `matchLabels` and `matchExpressions`.
    pub fn of_object(selector: &Value) -> Self {
        let mut requirements = Self::of_map(selector.get("matchLabels")).0;
        for expression in object::items(selector, &["matchExpressions"]) {
            let values: Vec<String> = object::items(expression, &["values"])
                .iter()
                .filter_map(|v| v.as_str().map(str::to_owned))
                .collect();
            let test = match object::text(expression, &["operator"]) {
                "In" => Test::In(values),
                "NotIn" => Test::NotIn(values),
                "Exists" => Test::Exists,
                "DoesNotExist" => Test::Absent,
                _ => continue,
            };
            requirements.push(Requirement {
                key: object::text(expression, &["key"]).to_owned(),
                test,
            });
        }
        LabelSelector(requirements)
    }

    /// Reads the form of `spec.selector` of services: labels that must all be there.
    pub fn of_map(labels: Option<&Value>) -> Self {
        let labels = labels.and_then(Value::as_object);
        LabelSelector(
            labels
                .into_iter()
                .flatten()
                .filter_map(|(key, value)| {
                    let value = value.as_str()?.to_owned();
                    Some(Requirement {
                        key: key.clone(),
                        test: Test::In(vec![value]),
                    })
                })
                .collect(),
        )
    }

    /// True if it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the labels of `object` fulfil it.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|requirement| {
            let value = object::label(object, &requirement.key);
            match &requirement.test {
                Test::In(values) => value.is_some_and(|v| values.iter().any(|w| w == v)),
                Test::NotIn(values) => !value.is_some_and(|v| values.iter().any(|w| w == v)),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::Greater(than) => value
                    .and_then(|v| v.parse::<i64>().ok())
                    .is_some_and(|v| v > *than),
                Test::Less(than) => value
                    .and_then(|v| v.parse::<i64>().ok())
                    .is_some_and(|v| v < *than),
            }
        })
    }

    /// The text form, as a scale sub-resource shows it.
    pub fn to_text(&self) -> String {
        let parts: Vec<String> = self
            .0
            .iter()
            .map(|Requirement { key, test }| match test {
                Test::In(values) if values.len() == 1 => format!("{key}={}", values[0]),
                Test::In(values) => format!("{key} in ({})", values.join(",")),
                Test::NotIn(values) => format!("{key} notin ({})", values.join(",")),
                Test::Exists => key.clone(),
                Test::Absent => format!("!{key}"),
                Test::Greater(than) => format!("{key}>{than}"),
                Test::Less(than) => format!("{key}<{than}"),
            })
            .collect();
        parts.join(",")
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth <= 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_requirement(part: &str) -> Result<Requirement, String> {
    if let Some(key) = part.strip_prefix('!') {
        return Ok(Requirement {
            key: label_key(key)?,
            test: Test::Absent,
        });
    }
    if let Some((head, values)) = part.split_once('(') {
        let Some(values) = values.trim_end().strip_suffix(')') else {
            return Err(format!("found '{part}', expected: ')'"));
        };
        let mut words = head.split_whitespace();
        let (Some(key), Some(operator), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("found '{head}', expected: in, notin, =, ==, !=, gt, lt"));
        };
        let values = values
            .split(',')
            .map(label_value)
            .collect::<Result<Vec<_>, _>>()?;
        let test = match operator {
            "in" => Test::In(values),
            "notin" => Test::NotIn(values),
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        return Ok(Requirement {
            key: label_key(key)?,
            test,
        });
    }
    for (operator, make) in [
        (
            "!=",
            (|v| Ok(Test::NotIn(vec![label_value(v)?]))) as fn(&str) -> Result<Test, String>,
        ),
        ("==", |v| Ok(Test::In(vec![label_value(v)?]))),
        ("=", |v| Ok(Test::In(vec![label_value(v)?]))),
        (">", |v| Ok(Test::Greater(number(v)?))),
        ("<", |v| Ok(Test::Less(number(v)?))),
    ] {
        if let Some((key, value)) = part.split_once(operator) {
            return Ok(Requirement {
                key: label_key(key)?,
                test: make(value)?,
            });
        }
    }
    Ok(Requirement {
        key: label_key(part)?,
        test: Test::Exists,
    })
}

fn number(text: &str) -> Result<i64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("for 'Gt', 'Lt' operators, the value must be an integer: {text:?}"))
}

fn label_key(key: &str) -> Result<String, String> {
    let key = key.trim();
    match crate::names::qualified_name(key) {
        None => Ok(key.to_owned()),
        Some(problem) => Err(format!("<nil>: Invalid value: {key:?}: {problem}")),
    }
}

fn label_value(value: &str) -> Result<String, String> {
    let value = value.trim();
    match crate::names::label_value(value) {
        None => Ok(value.to_owned()),
        Some(problem) => Err(format!("<nil>: Invalid value: {value:?}: {problem}")),
    }
}

/// A field selector such as `metadata.name=web,spec.nodeName!=n1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<(String, bool, String)>);

impl FieldSelector {
    /// Reads the text form.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut tests = Vec::new();
        for part in text.split(',').filter(|p| !p.trim().is_empty()) {
            let (field, equal, value) = if let Some((field, value)) = part.split_once("!=") {
                (field, false, value)
            } else if let Some((field, value)) = part.split_once("==") {
                (field, true, value)
            } else if let Some((field, value)) = part.split_once('=') {
                (field, true, value)
            } else {
                return Err(ApiError::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                )));
            };
            tests.push((field.trim().to_owned(), equal, value.trim().to_owned()));
        }
        Ok(FieldSelector(tests))
    }

    /// Fails with the field that objects of `kind` cannot be selected by.
    pub fn check(&self, kind: &Kind) -> Result<(), ApiError> {
        for (field, ..) in &self.0 {
            if !is_selectable(kind, field) {
                return Err(ApiError::bad_request(format!(
                    "field label not supported: {field}"
                )));
            }
        }
        Ok(())
    }

    /// True if it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The only name it can match, if it names one.
    pub fn name(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|(field, equal, _)| *equal && field == "metadata.name")
            .map(|(_, _, v)| v.as_str())
    }

    /// True if the fields of `object` fulfil it.
    pub fn matches(&self, object: &Value) -> bool {
        self.0
            .iter()
            .all(|(field, equal, wanted)| (field_text(object, field) == *wanted) == *equal)
    }
}

fn field_text(object: &Value, field: &str) -> String {
    let field = match field {
        "source" if object.get("involvedObject").is_some() => "source.component",
        other => other,
    };
    let path: Vec<&str> = field.trim_start_matches('.').split('.').collect();
    match object::at(object, &path) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => match field {
            "spec.unschedulable" | "spec.hostNetwork" => "false".to_owned(),
            "status.replicas" | "status.successful" => "0".to_owned(),
            _ => String::new(),
        },
        Some(other) => other.to_string(),
    }
}

fn is_selectable(kind: &Kind, field: &str) -> bool {
    if matches!(field, "metadata.name" | "metadata.namespace") {
        return true;
    }
    if let Some(custom) = &kind.custom {
        return custom
            .selectable_fields
            .iter()
            .any(|f| f.trim_start_matches('.') == field);
    }
    let fields: &[&str] = match (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "secrets") => &["type"],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("apps", "replicasets") | ("", "replicationcontrollers") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", _) => &["spec.signerName"],
        // Kinds without a description (the fake client) can be selected by anything.
        _ if matches!(kind.shape, crate::schema::Shape::Any) => return true,
        _ => &[],
    };
    fields.contains(&field)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labelled(labels: Value) -> Value {
        json!({ "metadata": { "name": "a", "labels": labels } })
    }

    #[test]
    fn matches_equality_and_sets() {
        let object = labelled(json!({ "app": "web", "tier": "front", "size": "5" }));
        let cases = [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=back", true),
            ("app in (web, db),tier notin (back)", true),
            ("app notin (web)", false),
            ("missing notin (x)", true),
            ("missing!=x", true),
            ("tier", true),
            ("!tier", false),
            ("!missing", true),
            ("size>4,size<6", true),
            ("size>5", false),
        ];
        for (text, expected) in cases {
            assert_eq!(
                LabelSelector::parse(text).unwrap().matches(&object),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_malformed_label_selectors() {
        for text in ["a in (b", "a near (b)", "a=b c", "-a", "a>x", "a in b,(", "=b"] {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn matches_fields() {
        let object = json!({ "metadata": { "name": "a", "namespace": "b" }, "spec": { "nodeName": "n1" } });
        let cases = [
            ("metadata.name=a", true),
            ("metadata.name==a,metadata.namespace!=c", true),
            ("spec.nodeName=n1", true),
            ("spec.nodeName!=n1", false),
            ("spec.unschedulable=false", true),
        ];
        for (text, expected) in cases {
            assert_eq!(
                FieldSelector::parse(text).unwrap().matches(&object),
                expected,
                "{text}"
            );
        }
        assert!(FieldSelector::parse("nonsense").is_err());
    }
}
