// SPDX-License-Identifier: Apache-2.0

//! Custom resources by the schemas of their definitions: unknown fields go, defaults are filled in, what is left is
//! judged by the schema, the kinds of its lists and its rules.

mod defaults;
mod formats;
mod lists;
mod patterns;
mod prune;
mod rules;
mod validate;

use serde_json::Value;

pub(crate) use defaults::{fill, has_defaults, lacks_defaults};
pub(super) use patterns::compile as compile_pattern;
pub(super) use prune::prune;
pub(super) use rules::check as check_rules;

use crate::error::Fault;
use patterns::Patterns;
use rules::Rules;

/// What is made of a schema once, to judge objects by it.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    patterns: Patterns,
    rules: Rules,
    pub(crate) has_defaults: bool,
}

impl Judge {
    /// Compiles the patterns and rules of a schema. What cannot be compiled was refused with the definition.
    pub(crate) fn new(schema: &Value) -> Self {
        Judge {
            patterns: Patterns::of(schema),
            rules: Rules::of(schema),
            has_defaults: has_defaults(schema),
        }
    }

    /// Faults of an object. What has not changed since `old` is not judged again.
    pub(super) fn faults(&self, schema: &Value, value: &Value, old: Option<&Value>) -> Vec<Fault> {
        let mut faults = validate::validate(&self.patterns, schema, value, old);
        lists::check(schema, value, &mut faults);
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
        self.rules.judge(schema, value, old, &mut faults);
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

/// The item of `old` that is the one before of an item of a list: by its keys, if the list is a map.
fn before<'a>(schema: &Value, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    let keys = lists::keys(schema)?;
    let old = old?.as_array()?;
    old.iter()
        .find(|candidate| keys.iter().all(|key| candidate.get(key) == item.get(key)))
}
