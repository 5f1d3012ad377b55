// SPDX-License-Identifier: Apache-2.0

//! Validation rules (`x-kubernetes-validations`): expressions in CEL.
//!
//! `cel` parses and evaluates them. What is added here is what an API server adds: its functions ([`library`]), values
//! by schema ([`values`]), the check of names before a definition is accepted ([`names`]). An API server also estimates
//! what rules cost and refuses expensive ones; that is not done.

mod library;
mod names;
mod values;

use cel::{Context, Program};
use serde_json::Value;

use super::{before, join, says};
use crate::error::Fault;
use crate::object;

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
    message_program: Option<Program>,
    reason: String,
    field_path: String,
    uses_old: bool,
    old_is_optional: bool,
}

impl Rule {
    fn of(rule: &Value) -> Option<Self> {
        let text = object::text(rule, &["rule"]).trim().to_owned();
        let program = library::compile(&text).ok()?;
        let message_program = match object::text(rule, &["messageExpression"]) {
            "" => None,
            text => Some(library::compile(text).ok()?),
        };
        Some(Rule {
            uses_old: names::uses_old(&program),
            old_is_optional: says(rule, "optionalOldSelf"),
            message: object::text(rule, &["message"]).trim().to_owned(),
            reason: object::text(rule, &["reason"]).to_owned(),
            field_path: object::text(rule, &["fieldPath"]).to_owned(),
            message_program,
            program,
            text,
        })
    }

    fn judge(&self, schema: &Value, value: &Value, old: Option<&Value>, path: &str, faults: &mut Vec<Fault>) {
        if self.uses_old && !self.old_is_optional && old.is_none() {
            return;
        }
        let mut context = Context::with_env(library::environment());
        context.add_variable_from_value("self", values::of(schema, value));
        if self.uses_old {
            let old = old.map(|old| values::of(schema, old));
            context.add_variable_from_value(
                "oldSelf",
                if self.old_is_optional {
                    values::optional(old)
                } else {
                    old.unwrap_or(cel::Value::Null)
                },
            );
        }
        let detail = match self.program.execute(&context) {
            Ok(cel::Value::Bool(true)) => return,
            Ok(cel::Value::Bool(false)) => self.detail(&context),
            Ok(other) => format!("rule returned {:?}, not a bool: {}", other.type_of(), self.name()),
            Err(error) => format!("{error} evaluating rule: {}", self.name()),
        };
        faults.push(self.fault(schema, path, &detail));
    }

    /// How the rule is called in errors.
    fn name(&self) -> &str {
        if self.message.is_empty() {
            &self.text
        } else {
            &self.message
        }
    }

    fn detail(&self, context: &Context<'_, '_>) -> String {
        if let Some(program) = &self.message_program
            && let Ok(cel::Value::String(text)) = program.execute(context)
            && !text.trim().is_empty()
            && !text.contains('\n')
        {
            return text.trim().to_owned();
        }
        if self.message.is_empty() {
            format!("failed rule: {}", self.text)
        } else {
            self.message.clone()
        }
    }

    fn fault(&self, schema: &Value, path: &str, detail: &str) -> Fault {
        let field = format!("{path}{}", values::shown_path(&self.field_path));
        let field = match field.trim_start_matches('.') {
            "" => "<nil>",
            field => field,
        };
        // As API servers do: the type stands for the value, which may be large.
        let value = Value::from(object::text(schema, &["type"]));
        match self.reason.as_str() {
            "FieldValueRequired" => Fault::required(field, detail),
            "FieldValueForbidden" => Fault::forbidden(field, detail),
            "FieldValueDuplicate" => Fault::duplicate(field, &value),
            _ => Fault::invalid(field, &value, detail),
        }
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

    /// Judges an object. What is as in `old` is not judged again.
    pub(super) fn judge(&self, schema: &Value, value: &Value, old: Option<&Value>, faults: &mut Vec<Fault>) {
        self.judge_at(schema, value, old, "", faults);
    }

    fn judge_at(
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
            rule.judge(schema, value, old, path, faults);
        }
        for (name, rules) in &self.fields {
            if let Some(value) = value.get(name) {
                let old = old.and_then(|old| old.get(name));
                rules.judge_at(&schema["properties"][name], value, old, &join(path, name), faults);
            }
        }
        if let (Some(rules), Some(items)) = (&self.items, value.as_array()) {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                rules.judge_at(&schema["items"], item, before(schema, item, old), &path, faults);
            }
        }
        if let (Some(rules), Some(map)) = (&self.values, value.as_object()) {
            for (key, value) in map {
                let old = old.and_then(|old| old.get(key));
                rules.judge_at(
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
pub(in crate::server) fn check(schema: &Value, has_old: bool, path: &str, faults: &mut Vec<Fault>) {
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
        let expression = object::text(rule, &["messageExpression"]);
        if !expression.is_empty() {
            for detail in names::faults(expression, schema) {
                let field = format!("{path}.messageExpression");
                faults.push(Fault::invalid(field, &expression.into(), &detail));
            }
        }
        let reason = object::text(rule, &["reason"]);
        let reasons = [
            "FieldValueForbidden",
            "FieldValueInvalid",
            "FieldValueDuplicate",
            "FieldValueRequired",
        ];
        if !reason.is_empty() && !reasons.contains(&reason) {
            faults.push(Fault::not_supported(
                format!("{path}.reason"),
                &reason.into(),
                &reasons,
            ));
        }
        let field_path = object::text(rule, &["fieldPath"]);
        if !field_path.is_empty() && !values::has_path(schema, field_path) {
            let detail = "fieldPath must be a valid path";
            faults.push(Fault::invalid(
                format!("{path}.fieldPath"),
                &field_path.into(),
                detail,
            ));
        }
    }
}

#[cfg(test)]
mod tests;
