// SPDX-License-Identifier: Apache-2.0

//! Label and field selectors, in Kubernetes' text form.

use std::fmt;
use std::str::FromStr;

use crate::slim::{LabelSelector, Labels, Str};

/// An invalid selector. The text is what a user wrote in an annotation, option or object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("selector `{selector}`: {reason}")]
pub struct SelectorError {
    pub selector: String,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Requirement {
    /// The label has one of these values.
    In(Str, Box<[Str]>),
    /// The label is absent or has none of these values.
    NotIn(Str, Box<[Str]>),
    Exists(Str),
    DoesNotExist(Str),
    /// The label is a whole number greater than this.
    GreaterThan(Str, i64),
    /// The label is a whole number less than this.
    LessThan(Str, i64),
}

impl Requirement {
    fn matches(&self, labels: &Labels) -> bool {
        let number = |key: &str| labels.get(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(key, values) => labels
                .get(key)
                .is_some_and(|value| values.iter().any(|known| known == value)),
            Self::NotIn(key, values) => labels
                .get(key)
                .is_none_or(|value| values.iter().all(|known| known != value)),
            Self::Exists(key) => labels.contains_key(key),
            Self::DoesNotExist(key) => !labels.contains_key(key),
            Self::GreaterThan(key, bound) => number(key).is_some_and(|value| value > *bound),
            Self::LessThan(key, bound) => number(key).is_some_and(|value| value < *bound),
        }
    }
}

/// Selects objects by their labels; the default selects all.
///
/// ```
/// use skep_k8s_types::selector::Selector;
/// use skep_k8s_types::slim::Labels;
///
/// let selector: Selector = "app in (web, api), !legacy, tier!=test".parse()?;
/// assert!(selector.matches(&Labels::from_iter([("app", "web")])));
/// assert!(!selector.matches(&Labels::from_iter([("app", "web"), ("legacy", "")])));
/// # Ok::<(), skep_k8s_types::selector::SelectorError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Selector {
    requirements: Box<[Requirement]>,
}

impl Selector {
    /// A selector of these requirements, all of which must hold.
    pub fn new(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        Self {
            requirements: requirements.into_iter().collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.matches(labels))
    }

    pub fn and(self, more: impl IntoIterator<Item = Requirement>) -> Self {
        Self {
            requirements: self.requirements.into_iter().chain(more).collect(),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In(key, values) if values.len() == 1 => write!(formatter, "{key}={}", values[0]),
            Self::NotIn(key, values) if values.len() == 1 => write!(formatter, "{key}!={}", values[0]),
            Self::In(key, values) => write!(formatter, "{key} in ({})", values.join(",")),
            Self::NotIn(key, values) => write!(formatter, "{key} notin ({})", values.join(",")),
            Self::Exists(key) => write!(formatter, "{key}"),
            Self::DoesNotExist(key) => write!(formatter, "!{key}"),
            Self::GreaterThan(key, bound) => write!(formatter, "{key}>{bound}"),
            Self::LessThan(key, bound) => write!(formatter, "{key}<{bound}"),
        }
    }
}

/// The text that [`Selector::from_str`] reads.
impl fmt::Display for Selector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                formatter.write_str(",")?;
            }
            write!(formatter, "{requirement}")?;
        }
        Ok(())
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let fail = |reason: String| SelectorError {
            selector: text.to_owned(),
            reason,
        };
        let mut requirements = Vec::new();
        for part in split(text) {
            let part = part.trim();
            if part.is_empty() {
                if text.trim().is_empty() {
                    break;
                }
                return Err(fail("empty requirement".to_owned()));
            }
            requirements.push(requirement(part).map_err(fail)?);
        }
        Ok(Self {
            requirements: requirements.into_boxed_slice(),
        })
    }
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0_usize);
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn requirement(part: &str) -> Result<Requirement, String> {
    if let Some(key) = part.strip_prefix('!') {
        return Ok(Requirement::DoesNotExist(label_key(key)?));
    }
    let operator = part.find(['=', '!', '<', '>', ' ', '\t', '(']);
    let Some(operator) = operator else {
        return Ok(Requirement::Exists(label_key(part)?));
    };
    let key = label_key(&part[..operator])?;
    let rest = part[operator..].trim_start();
    if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
        return Ok(Requirement::In(key, [label_value(value)?].into()));
    }
    if let Some(value) = rest.strip_prefix("!=") {
        return Ok(Requirement::NotIn(key, [label_value(value)?].into()));
    }
    let number = |value: &str| {
        value
            .trim()
            .parse()
            .map_err(|_| format!("`{}` is not a number", value.trim()))
    };
    if let Some(value) = rest.strip_prefix('>') {
        return Ok(Requirement::GreaterThan(key, number(value)?));
    }
    if let Some(value) = rest.strip_prefix('<') {
        return Ok(Requirement::LessThan(key, number(value)?));
    }
    if let Some(list) = rest.strip_prefix("notin") {
        return Ok(Requirement::NotIn(key, values(list)?));
    }
    if let Some(list) = rest.strip_prefix("in") {
        return Ok(Requirement::In(key, values(list)?));
    }
    Err(format!(
        "`{rest}` is not an operator; accepted are =, ==, !=, in, notin, <, >"
    ))
}

fn values(list: &str) -> Result<Box<[Str]>, String> {
    let inner = list
        .trim()
        .strip_prefix('(')
        .and_then(|list| list.strip_suffix(')'));
    let inner = inner.ok_or_else(|| format!("`{}` is not a list in parentheses", list.trim()))?;
    inner.split(',').map(label_value).collect()
}

fn label_value(text: &str) -> Result<Str, String> {
    let text = text.trim();
    let fine = text.len() <= 63
        && text
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || "-_.".contains(character))
        && !text.starts_with(['-', '_', '.'])
        && !text.ends_with(['-', '_', '.']);
    if fine {
        Ok(Str::new(text))
    } else {
        Err(format!("`{text}` is not a valid label value"))
    }
}

fn label_key(text: &str) -> Result<Str, String> {
    let text = text.trim();
    let (prefix, name) = text
        .rsplit_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let fine = !name.is_empty()
        && label_value(name).is_ok()
        && prefix.is_none_or(|prefix| {
            (1..=253).contains(&prefix.len())
                && prefix
                    .chars()
                    .all(|character| character.is_ascii_alphanumeric() || "-.".contains(character))
        });
    if fine {
        Ok(Str::new(text))
    } else {
        Err(format!("`{text}` is not a valid label key"))
    }
}

impl TryFrom<&LabelSelector> for Selector {
    type Error = SelectorError;

    /// A selector from an object's `matchLabels` and `matchExpressions`.
    fn try_from(selector: &LabelSelector) -> Result<Self, SelectorError> {
        let mut requirements: Vec<Requirement> = selector
            .match_labels
            .iter()
            .map(|(key, value)| Requirement::In(Str::new(key), [Str::new(value)].into()))
            .collect();
        for expression in &selector.match_expressions {
            let key = expression.key.clone();
            let fail = |reason: &str| {
                let selector = format!("{key} {} ({})", expression.operator, expression.values.join(","));
                Err(SelectorError {
                    selector,
                    reason: reason.to_owned(),
                })
            };
            let values = expression.values.clone();
            requirements.push(match (expression.operator.as_str(), values.is_empty()) {
                ("In", false) => Requirement::In(key, values),
                ("NotIn", false) => Requirement::NotIn(key, values),
                ("Exists", true) => Requirement::Exists(key),
                ("DoesNotExist", true) => Requirement::DoesNotExist(key),
                ("In" | "NotIn", true) => return fail("requires values"),
                ("Exists" | "DoesNotExist", false) => return fail("takes no values"),
                _ => return fail("unknown operator; accepted are In, NotIn, Exists, DoesNotExist"),
            });
        }
        Ok(Self {
            requirements: requirements.into_boxed_slice(),
        })
    }
}

/// Selects objects by fields, such as `spec.nodeName=n1`; the default selects all.
///
/// ```
/// use skep_k8s_types::selector::FieldSelector;
///
/// let selector: FieldSelector = "spec.nodeName=n1,metadata.name!=web".parse()?;
/// assert!(selector.matches(|path| Some(if path == "spec.nodeName" { "n1" } else { "api" }.into())));
/// # Ok::<(), skep_k8s_types::selector::SelectorError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FieldSelector {
    terms: Box<[FieldTerm]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FieldTerm {
    path: Str,
    equal: bool,
    value: Str,
}

impl FieldSelector {
    /// Objects whose field at `path` (such as `metadata.name`) has a value.
    pub fn equal(path: &str, value: &str) -> Self {
        Self {
            terms: [FieldTerm {
                path: Str::new(path),
                equal: true,
                value: Str::new(value),
            }]
            .into(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether an object satisfies all terms. `field` returns the text of a field, `None` (the same as empty) if absent.
    pub fn matches<'a>(&self, field: impl Fn(&str) -> Option<std::borrow::Cow<'a, str>>) -> bool {
        self.terms
            .iter()
            .all(|term| (field(&term.path).unwrap_or_default() == term.value.as_str()) == term.equal)
    }

    /// Whether a JSON object satisfies all terms.
    pub fn matches_value(&self, object: &serde_json::Value) -> bool {
        self.matches(|path| {
            let value = path.split('.').try_fold(object, |value, key| value.get(key))?;
            match value {
                serde_json::Value::Null => None,
                serde_json::Value::String(text) => Some(text.as_str().into()),
                other => Some(other.to_string().into()),
            }
        })
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| term.path.as_str())
    }
}

/// The text that [`FieldSelector::from_str`] reads.
impl fmt::Display for FieldSelector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let separator = if index > 0 { "," } else { "" };
            let operator = if term.equal { "=" } else { "!=" };
            let value = term
                .value
                .replace('\\', "\\\\")
                .replace(',', "\\,")
                .replace('=', "\\=");
            write!(formatter, "{separator}{}{operator}{value}", term.path)?;
        }
        Ok(())
    }
}

impl FromStr for FieldSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let fail = |reason: &str| SelectorError {
            selector: text.to_owned(),
            reason: reason.to_owned(),
        };
        let mut terms = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let operator = rest
                .find(['=', '!', ','])
                .ok_or_else(|| fail("requires =, == or !="))?;
            let path = &rest[..operator];
            rest = &rest[operator..];
            let equal = !rest.starts_with("!=");
            rest = ["!=", "==", "="]
                .iter()
                .find_map(|operator| rest.strip_prefix(operator))
                .ok_or_else(|| fail("requires =, == or !="))?;
            let (value, after) =
                field_value(rest).ok_or_else(|| fail("`\\` must be followed by `\\`, `,` or `=`"))?;
            if path.trim().is_empty() {
                return Err(fail("empty field path"));
            }
            terms.push(FieldTerm {
                path: Str::new(path.trim()),
                equal,
                value,
            });
            rest = after;
        }
        Ok(Self {
            terms: terms.into_boxed_slice(),
        })
    }
}

/// A value up to the next comma, and the text after it.
fn field_value(text: &str) -> Option<(Str, &str)> {
    let mut value = Str::default();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            ',' => return Some((value, &text[index + 1..])),
            '\\' => match characters.next() {
                Some((_, escaped @ ('\\' | ',' | '='))) => value.push(escaped),
                _ => return None,
            },
            other => value.push(other),
        }
    }
    Some((value, ""))
}
