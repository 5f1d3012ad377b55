// SPDX-License-Identifier: Apache-2.0

//! Shapes of objects: which fields a type has, and how lists of them merge.
//!
//! The built-in types come from `generated/schema.txt`; those of custom resources from their definitions. One shape
//! serves decoding (unknown fields, wrong types), strategic merge, server-side apply and the OpenAPI documents.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::time::{self, Precision};

/// What values a field takes.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Anything; nothing below is known, lists are replaced as a whole.
    Any,
    /// A single value.
    Scalar(Scalar),
    /// A struct with named fields.
    Object(Arc<Object>),
    /// A built-in type by name. Types may contain themselves, hence the name.
    Named(&'static str),
    /// A list.
    List(Arc<List>),
    /// A map from text to values of one shape. Atomic maps have one owner and are replaced as a whole by apply.
    Map(Arc<Shape>, bool),
}

/// Kinds of single values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Scalar {
    Text,
    Integer,
    Long,
    Number,
    Bool,
    Time,
    MicroTime,
    Bytes,
    Quantity,
    IntOrText,
}

/// A list and how two versions of it merge.
#[derive(Debug)]
pub struct List {
    /// Shape of the items.
    pub item: Shape,
    /// How two versions merge.
    pub merge: Merge,
    /// Defaults of the key fields of items.
    pub key_defaults: Vec<(String, Value)>,
}

impl List {
    /// The value of the key `name` in items that leave it out, if it has a default.
    pub(crate) fn key_default(&self, name: &str) -> Option<Value> {
        let found = self.key_defaults.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone())
    }
}

/// How two versions of a list merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The new one replaces the old one.
    Atomic,
    /// Items are values; each belongs to who put it there.
    Set,
    /// Items are objects with these key fields. Strategic merge uses the first only.
    Keys(Vec<String>),
}

/// A struct.
#[derive(Debug, Default)]
pub struct Object {
    /// Name of the type, such as `core.v1.ServiceSpec`; empty if it has none.
    pub name: &'static str,
    /// What it is for.
    pub description: String,
    /// Its fields in the order of their names.
    pub fields: Vec<Field>,
    /// Fields that are not listed are kept too.
    pub keeps_unknown: bool,
    /// One owner for all of it in server-side apply.
    pub atomic: bool,
}

/// A field of a struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// Name in JSON.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// Must be there.
    pub required: bool,
    /// What it is for.
    pub description: String,
    /// Its number in protobuf, after those of the messages it is nested in there; empty if unknown.
    pub number: Vec<u32>,
}

impl Object {
    /// The field called `name`.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields
            .binary_search_by(|f| f.name.as_str().cmp(name))
            .ok()
            .map(|i| &self.fields[i])
    }
}

/// Structs that have one owner as a whole in server-side apply.
const ATOMIC: &[&str] = &[
    "admissionregistration.v1.MatchResources",
    "admissionregistration.v1.NamedRuleWithOperations",
    "admissionregistration.v1.ParamKind",
    "admissionregistration.v1.ParamRef",
    "autoscaling.v1.CrossVersionObjectReference",
    "core.v1.ConfigMapKeySelector",
    "core.v1.EndpointAddress",
    "core.v1.EndpointPort",
    "core.v1.LocalObjectReference",
    "core.v1.NodeSelector",
    "core.v1.NodeSelectorTerm",
    "core.v1.ObjectFieldSelector",
    "core.v1.ObjectReference",
    "core.v1.ResourceFieldSelector",
    "core.v1.ScopeSelector",
    "core.v1.ScopedResourceSelectorRequirement",
    "core.v1.SecretKeySelector",
    "core.v1.SecretReference",
    "core.v1.TopologySelectorTerm",
    "core.v1.TypedLocalObjectReference",
    "discovery.v1.EndpointPort",
    "meta.v1.LabelSelector",
    "meta.v1.OwnerReference",
    "rbac.v1.RoleRef",
    "rbac.v1.Subject",
];

static TEXT: &str = include_str!("../generated/schema.txt");

/// A built-in kind, as the generated file names it.
#[derive(Debug)]
pub(crate) struct BuiltinKind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespaced: bool,
    pub(crate) type_name: &'static str,
}

pub(crate) struct Builtin {
    pub(crate) kinds: Vec<BuiltinKind>,
    pub(crate) types: HashMap<&'static str, Arc<Object>>,
}

pub(crate) fn builtin() -> &'static Builtin {
    static BUILTIN: OnceLock<Builtin> = OnceLock::new();
    BUILTIN.get_or_init(|| parse(TEXT))
}

fn parse(text: &'static str) -> Builtin {
    let mut kinds = Vec::new();
    let mut types = HashMap::new();
    let mut current: Option<Object> = None;
    for line in text.lines() {
        let columns: Vec<&'static str> = line.split('\t').collect();
        match columns[..] {
            ["K", group, version, kind, plural, scope, type_name] => {
                kinds.push(BuiltinKind {
                    group,
                    version,
                    kind,
                    plural,
                    namespaced: scope == "N",
                    type_name,
                });
            }
            ["T", name, description] => {
                let next = Object {
                    name,
                    description: description.to_owned(),
                    ..Object::default()
                };
                finish(&mut types, current.replace(next));
            }
            ["F", name, ty, flags, description] => {
                if let Some(object) = current.as_mut() {
                    object.fields.push(Field {
                        name: name.to_owned(),
                        shape: shape(ty, flags),
                        required: flags.split(' ').any(|f| f == "r"),
                        description: description.to_owned(),
                        number: number(flags),
                    });
                }
            }
            _ => {}
        }
    }
    finish(&mut types, current);
    Builtin { kinds, types }
}

fn number(flags: &str) -> Vec<u32> {
    let path = flags
        .split(' ')
        .find_map(|f| f.strip_prefix('#'))
        .unwrap_or_default();
    path.split('.').filter_map(|n| n.parse().ok()).collect()
}

fn finish(types: &mut HashMap<&'static str, Arc<Object>>, object: Option<Object>) {
    if let Some(mut object) = object {
        object.fields.sort_by(|a, b| a.name.cmp(&b.name));
        object.atomic = ATOMIC.contains(&object.name);
        object.keeps_unknown = object.name == "apiextensions.v1.JSONSchemaProps";
        types.insert(object.name, Arc::new(object));
    }
}

fn shape(ty: &'static str, flags: &str) -> Shape {
    if let Some(item) = ty.strip_prefix("[]") {
        let mut merge = Merge::Atomic;
        for flag in flags.split(' ') {
            if flag == "set" {
                merge = Merge::Set;
            } else if let Some(keys) = flag.strip_prefix("map=") {
                merge = Merge::Keys(keys.split(',').map(str::to_owned).collect());
            }
        }
        // Of all keys of built-in lists, only protocols have a default.
        let has_protocol = matches!(&merge, Merge::Keys(keys) if keys.iter().any(|key| key == "protocol"));
        return Shape::List(Arc::new(List {
            item: shape(item, ""),
            merge,
            key_defaults: has_protocol
                .then(|| ("protocol".to_owned(), "TCP".into()))
                .into_iter()
                .collect(),
        }));
    }
    if let Some(item) = ty.strip_prefix("{}") {
        return Shape::Map(Arc::new(shape(item, "")), flags.split(' ').any(|f| f == "atomic"));
    }
    match ty {
        "string" => Shape::Scalar(Scalar::Text),
        "integer" => Shape::Scalar(Scalar::Integer),
        "int64" => Shape::Scalar(Scalar::Long),
        "number" => Shape::Scalar(Scalar::Number),
        "boolean" => Shape::Scalar(Scalar::Bool),
        "time" => Shape::Scalar(Scalar::Time),
        "microtime" => Shape::Scalar(Scalar::MicroTime),
        "bytes" => Shape::Scalar(Scalar::Bytes),
        "quantity" => Shape::Scalar(Scalar::Quantity),
        "intstr" => Shape::Scalar(Scalar::IntOrText),
        "any" => Shape::Any,
        name => Shape::Named(name),
    }
}

impl Shape {
    /// The struct behind this shape, if it is one.
    pub fn object(&self) -> Option<Arc<Object>> {
        match self {
            Shape::Object(object) => Some(object.clone()),
            Shape::Named(name) => builtin().types.get(name).cloned(),
            _ => None,
        }
    }

    /// The shape of the field or map entry `key`; `Any` if it is not known.
    pub fn child(&self, key: &str) -> Shape {
        match self {
            Shape::Map(value, _) => (**value).clone(),
            Shape::Object(_) | Shape::Named(_) => self
                .object()
                .and_then(|object| object.field(key).map(|f| f.shape.clone()))
                .unwrap_or(Shape::Any),
            _ => Shape::Any,
        }
    }

    /// True if this is a struct with a field `key`.
    pub(crate) fn has_field(&self, key: &str) -> bool {
        self.object().is_some_and(|object| object.field(key).is_some())
    }

    /// The shape of a whole object of this shape: every kind has the standard metadata.
    pub(crate) fn of_resource(&self) -> Shape {
        let object = match self {
            Shape::Object(object) => Some(object),
            Shape::Any => None,
            _ => return self.clone(),
        };
        let known = object.map_or(&[][..], |object| &object.fields);
        let mut fields: Vec<Field> = known.iter().filter(|f| f.name != "metadata").cloned().collect();
        fields.push(Field {
            name: "metadata".to_owned(),
            shape: Shape::Named("meta.v1.ObjectMeta"),
            required: false,
            description: String::new(),
            number: Vec::new(),
        });
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        Shape::Object(Arc::new(Object {
            fields,
            keeps_unknown: object.is_none_or(|object| object.keeps_unknown),
            ..Object::default()
        }))
    }

    /// Shape and merge rule of the items, if this is a list.
    pub fn items(&self) -> (Shape, Merge) {
        match self {
            Shape::List(list) => (list.item.clone(), list.merge.clone()),
            _ => (Shape::Any, Merge::Atomic),
        }
    }

    /// True if server-side apply treats it as one value.
    pub fn is_atomic(&self) -> bool {
        match self {
            Shape::Map(_, atomic) => *atomic,
            Shape::List(list) => list.merge == Merge::Atomic,
            Shape::Object(_) | Shape::Named(_) => self.object().is_some_and(|o| o.atomic),
            Shape::Scalar(_) | Shape::Any => false,
        }
    }

    /// Reads the shape out of the OpenAPI schema of a custom resource.
    pub fn of_openapi(schema: &Value) -> Shape {
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
        if flag("x-kubernetes-int-or-string") {
            return Shape::Scalar(Scalar::IntOrText);
        }
        let atomic = schema.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic");
        match schema.get("type").and_then(Value::as_str) {
            Some("object") => {
                if let Some(additional) = schema.get("additionalProperties").filter(|v| v.is_object()) {
                    return Shape::Map(Arc::new(Shape::of_openapi(additional)), atomic);
                }
                let mut fields: Vec<Field> = schema
                    .get("properties")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flatten()
                    .map(|(name, schema)| Field {
                        name: name.clone(),
                        shape: Shape::of_openapi(schema),
                        required: false,
                        description: String::new(),
                        number: Vec::new(),
                    })
                    .collect();
                fields.sort_by(|a, b| a.name.cmp(&b.name));
                Shape::Object(Arc::new(Object {
                    fields,
                    keeps_unknown: flag("x-kubernetes-preserve-unknown-fields"),
                    atomic,
                    ..Object::default()
                }))
            }
            Some("array") => {
                let item = schema.get("items").map_or(Shape::Any, Shape::of_openapi);
                let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                let merge = match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
                    Some("set") => Merge::Set,
                    Some("map") => Merge::Keys(
                        keys.into_iter()
                            .flatten()
                            .filter_map(|k| k.as_str().map(str::to_owned))
                            .collect(),
                    ),
                    _ => Merge::Atomic,
                };
                let keys: &[String] = if let Merge::Keys(keys) = &merge { keys } else { &[] };
                let key_defaults = keys
                    .iter()
                    .filter_map(|key| {
                        let default = schema.get("items")?.get("properties")?.get(key)?.get("default")?;
                        Some((key.clone(), default.clone()))
                    })
                    .collect();
                Shape::List(Arc::new(List {
                    item,
                    merge,
                    key_defaults,
                }))
            }
            Some("string") => Shape::Scalar(Scalar::Text),
            Some("integer") => Shape::Scalar(Scalar::Long),
            Some("number") => Shape::Scalar(Scalar::Number),
            Some("boolean") => Shape::Scalar(Scalar::Bool),
            _ => Shape::Any,
        }
    }
}

/// Faults that decoding finds.
#[derive(Debug, Default)]
pub struct Decoded {
    /// Paths of fields that no type has, and that were therefore dropped.
    pub unknown: Vec<String>,
}

/// Brings `value` to `shape` as decoding into a Go struct does: unknown fields and nulls go, wrong types are errors.
pub fn decode(shape: &Shape, value: &mut Value, kind: &str) -> Result<Decoded, String> {
    let mut decoded = Decoded::default();
    walk(shape, value, kind, &mut String::new(), &mut decoded)?;
    Ok(decoded)
}

fn walk(
    shape: &Shape,
    value: &mut Value,
    kind: &str,
    path: &mut String,
    out: &mut Decoded,
) -> Result<(), String> {
    match shape {
        Shape::Any => Ok(()),
        Shape::Scalar(Scalar::Time) => read_time(value, Precision::Seconds, kind, path),
        Shape::Scalar(Scalar::MicroTime) => read_time(value, Precision::Micros, kind, path),
        Shape::Scalar(scalar) => check_scalar(*scalar, value).map_err(|go| wrong_type(value, kind, path, go)),
        Shape::Map(item, _) => {
            let got = value.clone_kind();
            let Some(map) = value.as_object_mut() else {
                return Err(mismatch(got, kind, path, "map[string]…"));
            };
            // A null in a map of values is the zero value in Go, and stays as that.
            for (key, entry) in map.iter_mut() {
                if entry.is_null() {
                    if let Some(zero) = zero(item) {
                        *entry = zero;
                    }
                    continue;
                }
                scoped(path, key, |path| walk(item, entry, kind, path, out))?;
            }
            Ok(())
        }
        Shape::List(list) => {
            let got = value.clone_kind();
            let Some(items) = value.as_array_mut() else {
                return Err(mismatch(got, kind, path, "[]…"));
            };
            for (index, item) in items.iter_mut().enumerate() {
                if item.is_null() {
                    if let Some(zero) = zero(&list.item) {
                        *item = zero;
                    }
                    continue;
                }
                let length = path.len();
                path.push_str(&format!("[{index}]"));
                let result = walk(&list.item, item, kind, path, out);
                path.truncate(length);
                result?;
            }
            Ok(())
        }
        Shape::Object(_) | Shape::Named(_) => {
            let Some(object) = shape.object() else {
                return Ok(());
            };
            let got = value.clone_kind();
            let Some(map) = value.as_object_mut() else {
                return Err(mismatch(got, kind, path, object.name));
            };
            let mut drop: Vec<String> = Vec::new();
            for (key, entry) in map.iter_mut() {
                match object.field(key) {
                    Some(_) if entry.is_null() => drop.push(key.clone()),
                    Some(field) => scoped(path, key, |path| walk(&field.shape, entry, kind, path, out))?,
                    None if object.keeps_unknown => {}
                    None => {
                        scoped(path, key, |path| {
                            out.unknown.push(path.clone());
                            Ok(())
                        })?;
                        drop.push(key.clone());
                    }
                }
            }
            for key in drop {
                map.shift_remove(&key);
            }
            Ok(())
        }
    }
}

/// Brings a time to its only form.
fn read_time(value: &mut Value, precision: Precision, kind: &str, path: &str) -> Result<(), String> {
    let Some(text) = value.as_str() else {
        return Err(wrong_type(value, kind, path, "string"));
    };
    *value = time::normalize(text, precision)?.into();
    Ok(())
}

fn scoped(
    path: &mut String,
    key: &str,
    f: impl FnOnce(&mut String) -> Result<(), String>,
) -> Result<(), String> {
    let length = path.len();
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
    let result = f(path);
    path.truncate(length);
    result
}

fn zero(shape: &Shape) -> Option<Value> {
    Some(match shape {
        Shape::Scalar(Scalar::Text) => Value::String(String::new()),
        Shape::Scalar(Scalar::Bytes) => Value::String(String::new()),
        Shape::Scalar(Scalar::Quantity) => Value::String("0".to_owned()),
        Shape::Scalar(Scalar::Bool) => Value::Bool(false),
        Shape::Scalar(Scalar::Integer | Scalar::Long | Scalar::Number | Scalar::IntOrText) => Value::from(0),
        Shape::Object(_) | Shape::Named(_) => Value::Object(serde_json::Map::new()),
        _ => return None,
    })
}

/// Adds to every struct of a built-in type the single values that Go always writes, zero where they are missing. Clients
/// with typed models insist on them.
pub(crate) fn fill_required(shape: &Shape, value: &mut Value) {
    match (shape, value) {
        (Shape::List(list), Value::Array(items)) => {
            items.iter_mut().for_each(|item| fill_required(&list.item, item));
        }
        (Shape::Map(item, _), Value::Object(map)) => {
            map.values_mut().for_each(|value| fill_required(item, value));
        }
        (Shape::Named(_), Value::Object(map)) => {
            let Some(object) = shape.object() else { return };
            for field in &object.fields {
                match map.get_mut(&field.name) {
                    Some(value) => fill_required(&field.shape, value),
                    None if field.required && matches!(field.shape, Shape::Scalar(_)) => {
                        if let Some(zero) = zero(&field.shape) {
                            map.insert(field.name.clone(), zero);
                        }
                    }
                    None => {}
                }
            }
        }
        _ => {}
    }
}

fn check_scalar(scalar: Scalar, value: &Value) -> Result<(), &'static str> {
    let (fits, go) = match scalar {
        Scalar::Text => (value.is_string(), "string"),
        Scalar::Integer => (value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()), "int32"),
        Scalar::Long => (value.is_i64(), "int64"),
        Scalar::Number => (value.is_number(), "float64"),
        Scalar::Bool => (value.is_boolean(), "bool"),
        Scalar::Time | Scalar::MicroTime => (value.is_string(), "string"),
        Scalar::Bytes => (value.as_str().is_some_and(is_base64), "[]byte (base64)"),
        Scalar::Quantity => (
            value.is_number() || value.as_str().is_some_and(is_quantity),
            "resource.Quantity",
        ),
        Scalar::IntOrText => (
            value.is_string() || value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            "intstr.IntOrString",
        ),
    };
    if fits { Ok(()) } else { Err(go) }
}

fn is_base64(text: &str) -> bool {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

fn is_quantity(text: &str) -> bool {
    let number = text.trim_start_matches(['+', '-']);
    let end = number
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(number.len());
    let (digits, suffix) = number.split_at(end);
    let exponent = || {
        suffix
            .strip_prefix(['e', 'E'])
            .is_some_and(|e| e.parse::<i32>().is_ok())
    };
    digits.chars().any(|c| c.is_ascii_digit())
        && digits.matches('.').count() <= 1
        && (matches!(
            suffix,
            "" | "n"
                | "u"
                | "m"
                | "k"
                | "M"
                | "G"
                | "T"
                | "P"
                | "E"
                | "Ki"
                | "Mi"
                | "Gi"
                | "Ti"
                | "Pi"
                | "Ei"
        ) || exponent())
}

fn wrong_type(value: &Value, kind: &str, path: &str, go: &str) -> String {
    mismatch(value.clone_kind(), kind, path, go)
}

fn mismatch(got: &str, kind: &str, path: &str, go: &str) -> String {
    // Go leaves out the indices of lists.
    let mut plain = String::with_capacity(path.len());
    let mut inside = false;
    for c in path.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            c if !inside => plain.push(c),
            _ => {}
        }
    }
    format!("json: cannot unmarshal {got} into Go struct field {kind}.{plain} of type {go}")
}

trait JsonKind {
    fn clone_kind(&self) -> &'static str;
}

impl JsonKind for Value {
    fn clone_kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_named_type_exists() {
        fn check(shape: &Shape) {
            match shape {
                Shape::Named(name) => assert!(builtin().types.contains_key(name), "{name} is not defined"),
                Shape::List(list) => check(&list.item),
                Shape::Map(item, _) => check(item),
                _ => {}
            }
        }
        for object in builtin().types.values() {
            for field in &object.fields {
                check(&field.shape);
            }
        }
        for name in ATOMIC {
            assert!(builtin().types.contains_key(name), "{name}");
        }
        for kind in &builtin().kinds {
            assert!(builtin().types.contains_key(kind.type_name), "{}", kind.type_name);
        }
    }

    #[test]
    fn drops_and_names_unknown_fields() {
        let mut service =
            json!({ "spec": { "ports": [{ "port": 80, "prot": "TCP" }], "clusterIP": null, "x": 1 } });

        let decoded = decode(&Shape::Named("core.v1.Service"), &mut service, "Service").unwrap();

        assert_eq!(decoded.unknown, ["spec.ports[0].prot", "spec.x"]);
        assert_eq!(service, json!({ "spec": { "ports": [{ "port": 80 }] } }));
    }

    #[test]
    fn refuses_wrong_types() {
        let mut service = json!({ "spec": { "ports": [{ "port": "eighty" }] } });

        let error = decode(&Shape::Named("core.v1.Service"), &mut service, "Service").unwrap_err();

        assert_eq!(
            error,
            "json: cannot unmarshal string into Go struct field Service.spec.ports.port of type int32"
        );
    }

    #[test]
    fn knows_quantities() {
        for good in ["100m", "1.5Gi", "2", "1e3", "-5k", "128974848"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "Gi", "1.2.3", "5 G", "abc"] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }
}
