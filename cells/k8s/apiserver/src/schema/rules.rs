// SPDX-License-Identifier: Apache-2.0

//! Validation rules (`x-kubernetes-validations`): expressions in CEL.
//!
//! `cel` parses and evaluates them. What is added here is what an API server adds: its functions ([`library`]), values
//! by schema ([`values`]), the check of names before a definition is accepted ([`names`]). An API server also estimates
//! what rules cost and refuses expensive ones, and knows more fields of rules than `rule` and `message`.

mod library;
mod names;
mod values;

use cel::{Context, Program};
use serde_json::Value;
use skep_k8s_memory::{Fault, object};

use super::{before, join};

/// The rules of a schema and of what is below it.
#[derive(Debug, Default)]
pub(super) struct Rules {
    here: Vec<Rule>,
    fields: Vec<(String, Rules)>,
    items: Option<Box<Rules>>,
    values: Option<Box<Rules>>,
}

/// A rule.
#[derive(Debug)]
struct Rule {
    text: String,
    program: Program,
    message: String,
    uses_old: bool,
}

impl Rule {
    fn of(rule: &Value) -> Option<Self> {
        let text = object::text(rule, &["rule"]).trim().to_owned();
        let program = library::compile(&text).ok()?;
        Some(Rule {
            uses_old: names::uses_old(&program),
            message: object::text(rule, &["message"]).trim().to_owned(),
            program,
            text,
        })
    }

    fn check(&self, schema: &Value, value: &Value, old: Option<&Value>, path: &str) -> Option<Fault> {
        let mut context = Context::with_env(library::environment());
        context.add_variable_from_value("self", values::of(schema, value));
        if self.uses_old {
            context.add_variable_from_value("oldSelf", values::of(schema, old?));
        }
        let (message, text) = (&self.message, &self.text);
        let name = if message.is_empty() { text } else { message };
        let detail = match self.program.execute(&context) {
            Ok(cel::Value::Bool(true)) => return None,
            Ok(cel::Value::Bool(false)) if message.is_empty() => format!("failed rule: {text}"),
            Ok(cel::Value::Bool(false)) => message.clone(),
            Ok(other) => format!("rule returned {:?}, not a bool: {name}", other.type_of()),
            Err(error) => format!("{error} evaluating rule: {name}"),
        };
        let field = if path.is_empty() { "<nil>" } else { path };
        // As API servers do: the type stands for the value, which may be large.
        Some(Fault::invalid(
            field,
            &object::text(schema, &["type"]).into(),
            &detail,
        ))
    }
}

impl Rules {
    /// Compiles the rules of a schema.
    pub(super) fn of(schema: &Value) -> Self {
        let below = |key: &str| {
            let rules = Rules::of(schema.get(key).filter(|below| below.is_object())?);
            (!rules.is_empty()).then(|| Box::new(rules))
        };
        let fields = schema.get("properties").and_then(Value::as_object);
        Rules {
            here: object::items(schema, &["x-kubernetes-validations"])
                .iter()
                .filter_map(Rule::of)
                .collect(),
            fields: fields
                .into_iter()
                .flatten()
                .map(|(name, below)| (name.clone(), Rules::of(below)))
                .filter(|(_, rules)| !rules.is_empty())
                .collect(),
            items: below("items"),
            values: below("additionalProperties"),
        }
    }

    /// True if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.here.is_empty() && self.fields.is_empty() && self.items.is_none() && self.values.is_none()
    }

    /// Checks an object. What is as in `old` is not checked again.
    pub(super) fn check(&self, schema: &Value, value: &Value, old: Option<&Value>, faults: &mut Vec<Fault>) {
        self.check_at(schema, value, old, "", faults);
    }

    fn check_at(
        &self,
        schema: &Value,
        value: &Value,
        old: Option<&Value>,
        path: &str,
        faults: &mut Vec<Fault>,
    ) {
        if value.is_null() || old == Some(value) {
            return;
        }
        for rule in &self.here {
            faults.extend(rule.check(schema, value, old, path));
        }
        for (name, rules) in &self.fields {
            if let Some(value) = value.get(name) {
                let old = old.and_then(|old| old.get(name));
                rules.check_at(&schema["properties"][name], value, old, &join(path, name), faults);
            }
        }
        if let (Some(rules), Some(items)) = (&self.items, value.as_array()) {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                rules.check_at(&schema["items"], item, before(schema, item, old), &path, faults);
            }
        }
        if let (Some(rules), Some(map)) = (&self.values, value.as_object()) {
            for (key, value) in map {
                let old = old.and_then(|old| old.get(key));
                rules.check_at(
                    &schema["additionalProperties"],
                    value,
                    old,
                    &join(path, key),
                    faults,
                );
            }
        }
    }
}

/// Checks the rules that stand at a schema of a definition. `has_old` is false below lists whose items have no identity:
/// there is no item before.
pub(super) fn check(schema: &Value, has_old: bool, path: &str, faults: &mut Vec<Fault>) {
    for (index, rule) in object::items(schema, &["x-kubernetes-validations"])
        .iter()
        .enumerate()
    {
        let path = format!("{path}.x-kubernetes-validations[{index}]");
        let text = object::text(rule, &["rule"]);
        if text.trim().is_empty() {
            faults.push(Fault::required(format!("{path}.rule"), "rule is not specified"));
        } else {
            let mut found = names::faults(text, schema);
            if found.is_empty()
                && !has_old
                && library::compile(text).is_ok_and(|program| names::uses_old(&program))
            {
                found = vec!["oldSelf cannot be used on the uncorrelatable portion of the schema".to_owned()];
            }
            faults.extend(
                found
                    .iter()
                    .map(|detail| Fault::invalid(format!("{path}.rule"), &text.into(), detail)),
            );
        }
        let message = object::text(rule, &["message"]);
        if rule.get("message").is_some() && message.trim().is_empty() {
            let detail = "message must be non-empty if specified";
            faults.push(Fault::invalid(format!("{path}.message"), &message.into(), detail));
        } else if message.trim().contains('\n') {
            let detail = "message must not contain line breaks";
            faults.push(Fault::invalid(format!("{path}.message"), &message.into(), detail));
        }
        for key in ["fieldPath", "messageExpression", "optionalOldSelf", "reason"] {
            if rule.get(key).is_some() {
                faults.push(Fault::forbidden(
                    format!("{path}.{key}"),
                    "not supported by this server",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests;
