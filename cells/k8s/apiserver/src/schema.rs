// SPDX-License-Identifier: Apache-2.0

//! Validation of custom resources by OpenAPI schema: types and bounds, lists that are sets or maps, CEL rules.

mod formats;
mod lists;
mod patterns;
mod rules;
mod structural;
mod validate;

use serde_json::Value;
use skep_k8s_memory::{Fault, SchemaCompiler, Validator};

use patterns::Patterns;
use rules::Rules;

/// Validates custom resources and their definitions as a real server does.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenApiSchemas;

impl SchemaCompiler for OpenApiSchemas {
    fn check(&self, versions: &[Value]) -> Vec<Fault> {
        let mut faults = Vec::new();
        structural::check(versions, &mut faults);
        faults
    }

    fn compile(&self, schema: &Value) -> Box<dyn Validator> {
        Box::new(Compiled::new(schema))
    }
}

/// A schema with its patterns and rules.
#[derive(Debug)]
struct Compiled {
    schema: Value,
    patterns: Patterns,
    rules: Rules,
}

impl Compiled {
    /// What cannot be compiled was refused with the definition.
    fn new(schema: &Value) -> Self {
        Self {
            patterns: Patterns::of(schema),
            rules: Rules::of(schema),
            schema: schema.clone(),
        }
    }
}

impl Validator for Compiled {
    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Fault> {
        let mut faults = validate::validate(&self.patterns, &self.schema, object, old);
        lists::check(&self.schema, object, &mut faults);
        if self.rules.is_empty() {
            return faults;
        }
        if faults.iter().any(blocks_rules) {
            faults.push(Fault {
                field: "<nil>".to_owned(),
                reason: "FieldValueInvalid",
                detail: "Invalid value: \"null\": some validation rules were not checked because the object was invalid; \
                         correct the existing errors to complete validation"
                    .to_owned(),
            });
            return faults;
        }
        self.rules.check(&self.schema, object, old, &mut faults);
        faults
    }
}

/// True for faults after which rules could meet values that their schema rules out.
fn blocks_rules(fault: &Fault) -> bool {
    matches!(
        fault.reason,
        "FieldValueRequired" | "FieldValueTooLong" | "FieldValueTooMany" | "FieldValueTypeInvalid"
    )
}

/// The path of a field.
fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn says(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool) == Some(true)
}

/// The item of `old` that precedes an item of a list: by its keys, if the list is a map.
fn before<'a>(schema: &Value, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    let keys = lists::keys(schema)?;
    let old = old?.as_array()?;
    old.iter()
        .find(|candidate| keys.iter().all(|key| candidate.get(key) == item.get(key)))
}

#[cfg(test)]
mod tests;
