// SPDX-License-Identifier: Apache-2.0

//! Bodies in protobuf, which clients with built-in types send: read by the numbers that the schema has.
//!
//! Answers are always JSON. Go's encoder writes zero values of plain fields, too; JSON leaves them out, and so does
//! this reader where a zero cannot mean anything.
//!
//! Nothing is dropped in silence. A field that the schema does not have gets its number as name, `#17`, which decoding
//! reports and drops as it does an unknown field of JSON. A type that the schema does not have is an error.

use serde_json::{Map, Value};
use skep_k8s_memory::{
    ApiError,
    schema::{Object, Scalar, Shape},
    time::{self, Precision},
};

/// The first bytes of a body.
const MAGIC: &[u8] = b"k8s\0";

/// Deepest nesting of messages.
const DEPTH: usize = 64;

/// The type of such bodies.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The type of schemas in definitions.
const SCHEMA: Shape = Shape::Named("apiextensions.v1.JSONSchemaProps");

/// Plain numbers and flags for which zero is the same as nothing.
const PLAIN: &[&str] = &[
    "availableReplicas",
    "collisionCount",
    "containerPort",
    "count",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "failureThreshold",
    "fullyLabeledReplicas",
    "generation",
    "healthCheckNodePort",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "minReadySeconds",
    "nodePort",
    "nullable",
    "observedGeneration",
    "paused",
    "periodSeconds",
    "publishNotReadyAddresses",
    "readOnly",
    "readyReplicas",
    "stdin",
    "stdinOnce",
    "successThreshold",
    "timeoutSeconds",
    "tty",
    "unavailableReplicas",
    "uniqueItems",
    "unschedulable",
    "updatedReplicas",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
];

/// Texts for which empty is not the same as nothing.
const MAY_BE_EMPTY: &[&str] = &["storageClassName", "ingressClassName"];

enum Wire<'a> {
    Varint(u64),
    Fixed(f64),
    Bytes(&'a [u8]),
}

impl Wire<'_> {
    /// Whether it is the zero value, which says nothing.
    fn is_zero(&self) -> bool {
        match self {
            Wire::Varint(n) => *n == 0,
            Wire::Fixed(n) => *n == 0.0,
            Wire::Bytes(bytes) => bytes.is_empty(),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    /// The next field; nothing at the end or where the bytes make no sense.
    fn field(&mut self) -> Option<(u32, Wire<'a>)> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok()?;
        let wire = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed(f64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed(f64::from(f32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            _ => return None,
        };
        Some((number, wire))
    }
}

/// All fields of a message; an error if it is malformed.
fn fields(bytes: &[u8]) -> Result<Vec<(u32, Wire<'_>)>, ApiError> {
    let mut reader = Reader(bytes);
    let mut fields = Vec::new();
    while !reader.0.is_empty() {
        fields.push(reader.field().ok_or_else(malformed)?);
    }
    Ok(fields)
}

fn malformed() -> ApiError {
    ApiError::bad_request("the body is not valid protobuf")
}

/// What cannot be read as protobuf can be sent as JSON.
fn unsupported() -> ApiError {
    ApiError::unsupported_media_type("application/json, application/yaml")
}

fn text(bytes: &[u8]) -> Result<String, ApiError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| malformed())
}

/// Reads a body. `shape` returns the type of objects by `apiVersion` and `kind`.
pub(super) fn decode(
    body: &[u8],
    shape: impl FnOnce(&str, &str) -> Option<Shape>,
) -> Result<Value, ApiError> {
    let envelope = body.strip_prefix(MAGIC).ok_or_else(malformed)?;
    let (mut api_version, mut kind, mut raw): (String, String, &[u8]) = (String::new(), String::new(), &[]);
    for (number, wire) in fields(envelope)? {
        match (number, wire) {
            (1, Wire::Bytes(meta)) => {
                for (number, wire) in fields(meta)? {
                    match (number, wire) {
                        (1, Wire::Bytes(bytes)) => api_version = text(bytes)?,
                        (2, Wire::Bytes(bytes)) => kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let shape = shape(&api_version, &kind).ok_or_else(unsupported)?;
    let mut value = message(&shape, raw, 0)?;
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".to_owned(), api_version.into());
        map.insert("kind".to_owned(), kind.into());
    }
    Ok(value)
}

fn message(shape: &Shape, bytes: &[u8], depth: usize) -> Result<Value, ApiError> {
    let object = shape.object().ok_or_else(unsupported)?;
    let mut map = Map::new();
    into_map(&object, &[], bytes, &mut map, depth)?;
    Ok(Value::Object(map))
}

/// Reads fields into `map`. `outer` are the numbers of the messages around that JSON does not show.
fn into_map(
    object: &Object,
    outer: &[u32],
    bytes: &[u8],
    map: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ApiError> {
    if depth > DEPTH {
        return Err(malformed());
    }
    for (number, wire) in fields(bytes)? {
        let path: Vec<u32> = outer.iter().copied().chain([number]).collect();
        if let Some(field) = object.fields.iter().find(|f| f.number == path) {
            match (&field.shape, wire) {
                (Shape::Any, Wire::Bytes(bytes)) => {
                    if let Some(value) = alternatives(&field.name, bytes, depth)? {
                        map.insert(field.name.clone(), value);
                    }
                }
                (shape, wire) => read_field(&field.name, shape, wire, map, depth)?,
            }
        } else if let Wire::Bytes(inner) = wire
            && object
                .fields
                .iter()
                .any(|f| f.number.len() > path.len() && f.number.starts_with(&path))
        {
            into_map(object, &path, inner, map, depth + 1)?;
        } else if !wire.is_zero() {
            if object.keeps_unknown {
                return Err(unsupported());
            }
            let numbers: Vec<String> = path.iter().map(u32::to_string).collect();
            map.insert(format!("#{}", numbers.join(".")), Value::Null);
        }
    }
    Ok(())
}

/// A field that has more than one form in JSON: a message with a field for each form. The names are unique among fields
/// without a shape; others are JSON itself.
fn alternatives(name: &str, bytes: &[u8], depth: usize) -> Result<Option<Value>, ApiError> {
    let schema = |bytes| message(&SCHEMA, bytes, depth + 1);
    Ok(Some(match name {
        // A list of schemas, of which there may be none.
        "items" => {
            let (mut one, mut several) = (None, Vec::new());
            for field in fields(bytes)? {
                match field {
                    (1, Wire::Bytes(bytes)) => one = Some(schema(bytes)?),
                    (2, Wire::Bytes(bytes)) => several.push(schema(bytes)?),
                    _ => return Err(malformed()),
                }
            }
            one.unwrap_or(Value::Array(several))
        }
        "additionalItems" | "additionalProperties" => {
            let (mut allows, mut one) = (false, None);
            for field in fields(bytes)? {
                match field {
                    (1, Wire::Varint(n)) => allows = n != 0,
                    (2, Wire::Bytes(bytes)) => one = Some(schema(bytes)?),
                    _ => return Err(malformed()),
                }
            }
            one.unwrap_or(Value::Bool(allows))
        }
        // Of a version that has one it is an empty object.
        "status" if bytes.is_empty() => Value::Object(Map::new()),
        _ => return json(bytes),
    }))
}

/// JSON within protobuf: the first field of its message.
fn json(bytes: &[u8]) -> Result<Option<Value>, ApiError> {
    let mut value = None;
    for field in fields(bytes)? {
        match field {
            (1, Wire::Bytes([])) => {}
            (1, Wire::Bytes(raw)) => value = Some(serde_json::from_slice(raw).map_err(|_| malformed())?),
            _ => return Err(malformed()),
        }
    }
    Ok(value)
}

fn read_field(
    name: &str,
    shape: &Shape,
    wire: Wire<'_>,
    map: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ApiError> {
    match shape {
        Shape::List(list) => {
            let items = map.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            if let (Some(items), Some(item)) = (items.as_array_mut(), single(&list.item, wire, depth)?) {
                items.push(item);
            }
        }
        Shape::Map(item, _) => {
            let Wire::Bytes(entry) = wire else {
                return Err(malformed());
            };
            let (mut key, mut value) = (String::new(), None);
            for (number, wire) in fields(entry)? {
                match (number, wire) {
                    (1, Wire::Bytes(bytes)) => key = text(bytes)?,
                    (2, wire) => value = single(item, wire, depth)?,
                    _ => {}
                }
            }
            let entries = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
            if let Some(entries) = entries.as_object_mut() {
                entries.insert(key, value.unwrap_or_else(|| "".into()));
            }
        }
        _ => {
            let Some(value) = single(shape, wire, depth)? else {
                return Ok(());
            };
            let is_nothing = match &value {
                Value::String(text) => text.is_empty() && !MAY_BE_EMPTY.contains(&name),
                Value::Bool(false) => PLAIN.contains(&name),
                Value::Number(number) => {
                    number.as_i64() == Some(0)
                        && (PLAIN.contains(&name) || matches!(shape, Shape::Scalar(Scalar::IntOrText)))
                }
                _ => false,
            };
            if !is_nothing {
                map.insert(name.to_owned(), value);
            }
        }
    }
    Ok(())
}

fn read_time(bytes: &[u8], precision: Precision) -> Result<Value, ApiError> {
    let (mut seconds, mut nanos) = (0, 0);
    for (number, wire) in fields(bytes)? {
        match (number, wire) {
            (1, Wire::Varint(n)) => seconds = n as i64,
            (2, Wire::Varint(n)) => nanos = n as i32,
            _ => {}
        }
    }
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|_| malformed())?;
    Ok(time::text(time, precision).into())
}

/// A number as Go writes it: without a fraction if it has none.
fn number(n: f64) -> Value {
    let whole = n as i64;
    if whole as f64 == n { whole.into() } else { n.into() }
}

/// One value; nothing if it stands for none.
fn single(shape: &Shape, wire: Wire<'_>, depth: usize) -> Result<Option<Value>, ApiError> {
    Ok(match (shape, wire) {
        (Shape::Scalar(Scalar::Bool), Wire::Varint(n)) => Some((n != 0).into()),
        (Shape::Scalar(Scalar::Integer | Scalar::Long), Wire::Varint(n)) => Some((n as i64).into()),
        (Shape::Scalar(Scalar::Number), Wire::Fixed(n)) => Some(number(n)),
        (Shape::Scalar(Scalar::Text), Wire::Bytes(bytes)) => Some(text(bytes)?.into()),
        (Shape::Scalar(Scalar::Bytes), Wire::Bytes(bytes)) => {
            use base64::Engine;
            Some(base64::engine::general_purpose::STANDARD.encode(bytes).into())
        }
        (Shape::Scalar(Scalar::Quantity), Wire::Bytes(bytes)) => {
            let mut quantity = String::new();
            for (number, wire) in fields(bytes)? {
                if let (1, Wire::Bytes(bytes)) = (number, wire) {
                    quantity = text(bytes)?;
                }
            }
            Some(quantity.into())
        }
        // An empty message is Go's zero time.
        (Shape::Scalar(Scalar::Time | Scalar::MicroTime), Wire::Bytes([])) => None,
        (Shape::Scalar(Scalar::Time), Wire::Bytes(bytes)) => Some(read_time(bytes, Precision::Seconds)?),
        (Shape::Scalar(Scalar::MicroTime), Wire::Bytes(bytes)) => Some(read_time(bytes, Precision::Micros)?),
        (Shape::Scalar(Scalar::IntOrText), Wire::Bytes(bytes)) => {
            let (mut is_text, mut number, mut string) = (false, 0i64, String::new());
            for (field, wire) in fields(bytes)? {
                match (field, wire) {
                    (1, Wire::Varint(n)) => is_text = n == 1,
                    (2, Wire::Varint(n)) => number = n as i64,
                    (3, Wire::Bytes(bytes)) => string = text(bytes)?,
                    _ => {}
                }
            }
            Some(if is_text { string.into() } else { number.into() })
        }
        (Shape::Any, Wire::Bytes(bytes)) => json(bytes)?,
        (shape @ (Shape::Named(_) | Shape::Object(_)), Wire::Bytes(bytes)) => {
            Some(message(shape, bytes, depth + 1)?)
        }
        _ => return Err(malformed()),
    })
}

#[cfg(test)]
mod tests;
