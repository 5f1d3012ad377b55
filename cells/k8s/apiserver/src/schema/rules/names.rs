// SPDX-License-Identifier: Apache-2.0

//! Names in rules: variables, fields, functions. A definition with a name that does not exist is refused.

use cel::Program;
use cel::common::ast::{EntryExpr, Expr, IdedExpr};
use serde_json::Value;

use super::{library, values};

/// Whether an expression looks at the state before.
pub(super) fn uses_old(program: &Program) -> bool {
    program.references().has_variable("oldSelf")
}

/// What is wrong with an expression over `self` of this schema, in the words of an API server.
pub(super) fn faults(text: &str, schema: &Value) -> Vec<String> {
    let program = match library::compile(text) {
        Ok(program) => program,
        Err(errors) => return vec![format!("compilation failed: {errors}")],
    };
    let mut check = Check {
        scope: vec![
            ("self".to_owned(), Some(schema)),
            ("oldSelf".to_owned(), Some(schema)),
        ],
        found: Vec::new(),
    };
    check.walk(program.expression());
    let place = |(id, detail): (u64, String)| {
        let column = program
            .source_info()
            .offset_for(id)
            .map_or(1, |(start, _)| start + 1);
        format!("compilation failed: ERROR: <input>:1:{column}: {detail}")
    };
    check.found.into_iter().map(place).collect()
}

struct Check<'a> {
    /// Variables with the schema of their values, if it is known.
    scope: Vec<(String, Option<&'a Value>)>,
    found: Vec<(u64, String)>,
}

impl<'a> Check<'a> {
    /// Checks an expression; returns the schema of its values, if it is known.
    fn walk(&mut self, node: &IdedExpr) -> Option<&'a Value> {
        match &node.expr {
            Expr::Ident(name) => {
                if name.starts_with('@') || name.starts_with('#') || library::TYPES.contains(&name.as_str()) {
                    return None;
                }
                let known = self.scope.iter().rev().find(|(known, _)| known == name);
                if known.is_none() {
                    let detail = format!("undeclared reference to '{name}' (in container '')");
                    self.found.push((node.id, detail));
                }
                known.and_then(|(_, schema)| *schema)
            }
            Expr::Select(select) => {
                let schema = self.walk(&select.operand)?;
                match field(schema, &select.field) {
                    Field::Known(below) => Some(below),
                    Field::Any => None,
                    Field::Undefined => {
                        self.found
                            .push((node.id, format!("undefined field '{}'", select.field)));
                        None
                    }
                }
            }
            Expr::Call(call) => {
                let name = call.func_name.as_str();
                // `sets.contains(…)` is a function of a namespace, not of a variable.
                let namespace = match call.target.as_deref().map(|target| &target.expr) {
                    Some(Expr::Ident(namespace)) if library::NAMESPACES.contains(&namespace.as_str()) => {
                        Some(namespace)
                    }
                    _ => None,
                };
                let full =
                    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}.{name}"));
                if name.starts_with(|c: char| c.is_ascii_alphabetic()) && !library::has_function(&full) {
                    let detail = format!("undeclared reference to '{full}' (in container '')");
                    self.found.push((node.id, detail));
                }
                let target = match (&call.target, namespace) {
                    (Some(target), None) => self.walk(target),
                    _ => None,
                };
                let arguments: Vec<_> = call.args.iter().map(|argument| self.walk(argument)).collect();
                match (name, target, arguments.first().copied().flatten()) {
                    ("_[_]", _, Some(list)) => list.get("items").or_else(|| list.get("additionalProperties")),
                    _ => None,
                }
            }
            Expr::Comprehension(fold) => {
                let range = self.walk(&fold.iter_range);
                let item = range.and_then(|list| list.get("items"));
                self.walk(&fold.accu_init);
                let depth = self.scope.len();
                self.scope.push((fold.iter_var.clone(), item));
                if let Some(second) = &fold.iter_var2 {
                    self.scope.push((second.clone(), None));
                }
                self.scope.push((fold.accu_var.clone(), None));
                self.walk(&fold.loop_cond);
                self.walk(&fold.loop_step);
                self.walk(&fold.result);
                self.scope.truncate(depth);
                None
            }
            Expr::List(list) => {
                for element in &list.elements {
                    self.walk(element);
                }
                None
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    match &entry.expr {
                        EntryExpr::StructField(field) => {
                            self.walk(&field.value);
                        }
                        EntryExpr::MapEntry(entry) => {
                            self.walk(&entry.key);
                            self.walk(&entry.value);
                        }
                    }
                }
                None
            }
            Expr::Struct(made) => {
                let detail = format!("undeclared reference to '{}' (in container '')", made.type_name);
                self.found.push((node.id, detail));
                None
            }
            Expr::Literal(_) | Expr::Unspecified => None,
        }
    }
}

enum Field<'a> {
    Known(&'a Value),
    Any,
    Undefined,
}

fn field<'a>(schema: &'a Value, name: &str) -> Field<'a> {
    if let Some(below) = schema
        .get("additionalProperties")
        .filter(|below| below.is_object())
    {
        return Field::Known(below);
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let found = properties.and_then(|known| known.iter().find(|(known, _)| values::escaped(known) == name));
    match found {
        Some((_, below)) => Field::Known(below),
        None if schema.get("type").is_some_and(|ty| ty == "object") => Field::Undefined,
        None => Field::Any,
    }
}
