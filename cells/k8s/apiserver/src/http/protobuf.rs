// SPDX-License-Identifier: Apache-2.0

//! Bodies in protobuf, which clients with built-in types send: read by the numbers that the schema has.
//!
//! Answers are always JSON. Go's encoder writes zero values of plain fields, too; JSON leaves them out, and so does
//! this reader where a zero cannot mean anything.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::schema::{Object, Scalar, Shape};

/// The first bytes of a body.
const MAGIC: &[u8] = b"k8s\0";

/// Deepest nesting of messages.
const DEPTH: usize = 64;

/// The type of such bodies.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Plain numbers and flags for which zero is the same as nothing.
const PLAIN: &[&str] = &[
    "availableReplicas",
    "collisionCount",
    "containerPort",
    "count",
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
    "unschedulable",
    "updatedReplicas",
];

/// Texts for which empty is not the same as nothing.
const MAY_BE_EMPTY: &[&str] = &["storageClassName", "ingressClassName"];

enum Wire<'a> {
    Varint(u64),
    Fixed(f64),
    Bytes(&'a [u8]),
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
    let shape = shape(&api_version, &kind)
        .ok_or_else(|| ApiError::unsupported_media_type("application/json, application/yaml"))?;
    let mut value = message(&shape, raw, 0)?;
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".to_owned(), api_version.into());
        map.insert("kind".to_owned(), kind.into());
    }
    Ok(value)
}

fn message(shape: &Shape, bytes: &[u8], depth: usize) -> Result<Value, ApiError> {
    let Some(object) = shape.object() else {
        return Ok(Value::Object(Map::new()));
    };
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
            read_field(&field.name, &field.shape, wire, map, depth)?;
        } else if let Wire::Bytes(inner) = wire
            && object
                .fields
                .iter()
                .any(|f| f.number.len() > path.len() && f.number.starts_with(&path))
        {
            into_map(object, &path, inner, map, depth + 1)?;
        }
    }
    Ok(())
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

/// One value; nothing if it stands for none.
fn single(shape: &Shape, wire: Wire<'_>, depth: usize) -> Result<Option<Value>, ApiError> {
    Ok(match (shape, wire) {
        (Shape::Scalar(Scalar::Bool), Wire::Varint(n)) => Some((n != 0).into()),
        (Shape::Scalar(Scalar::Integer | Scalar::Long), Wire::Varint(n)) => Some((n as i64).into()),
        (Shape::Scalar(Scalar::Number), Wire::Fixed(n)) => Some(n.into()),
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
        (Shape::Scalar(Scalar::Time), Wire::Bytes(bytes)) => {
            let (mut seconds, mut nanos) = (None, 0);
            for (number, wire) in fields(bytes)? {
                match (number, wire) {
                    (1, Wire::Varint(n)) => seconds = Some(n as i64),
                    (2, Wire::Varint(n)) => nanos = n as i32,
                    _ => {}
                }
            }
            match seconds {
                Some(seconds) => {
                    let time = jiff::Timestamp::new(seconds, nanos).map_err(|_| malformed())?;
                    Some(time.to_string().into())
                }
                None => None,
            }
        }
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
        // JSON within protobuf is the first field of its message.
        (Shape::Any, Wire::Bytes(bytes)) => {
            let raw = fields(bytes)?
                .into_iter()
                .find_map(|(number, wire)| match (number, wire) {
                    (1, Wire::Bytes(raw)) => Some(raw),
                    _ => None,
                });
            raw.and_then(|raw| serde_json::from_slice(raw).ok())
        }
        (shape @ (Shape::Named(_) | Shape::Object(_)), Wire::Bytes(bytes)) => {
            Some(message(shape, bytes, depth + 1)?)
        }
        _ => return Err(malformed()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn put(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
        out.push(number << 3 | 2);
        out.push(u8::try_from(bytes.len()).unwrap());
        out.extend_from_slice(bytes);
    }

    fn wrap(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let (mut meta, mut body) = (Vec::new(), MAGIC.to_vec());
        put(&mut meta, 1, api_version.as_bytes());
        put(&mut meta, 2, kind.as_bytes());
        put(&mut body, 1, &meta);
        put(&mut body, 2, raw);
        body
    }

    #[test]
    fn reads_a_service() {
        let mut metadata = Vec::new();
        put(&mut metadata, 1, b"web");
        put(&mut metadata, 3, b"");
        let mut label = Vec::new();
        put(&mut label, 1, b"app");
        put(&mut label, 2, b"x");
        put(&mut metadata, 11, &label);
        put(&mut metadata, 8, b"");
        let mut port = Vec::new();
        put(&mut port, 1, b"http");
        port.extend([3 << 3, 80]);
        put(&mut port, 4, &[8, 1, 16, 0, 26, 3, b'w', b'e', b'b']);
        port.extend([5 << 3, 0]);
        let (mut spec, mut raw) = (Vec::new(), Vec::new());
        put(&mut spec, 1, &port);
        put(&mut raw, 1, &metadata);
        put(&mut raw, 2, &spec);

        let value = decode(&wrap("v1", "Service", &raw), |_, _| {
            Some(Shape::Named("core.v1.Service"))
        })
        .unwrap();

        assert_eq!(
            value,
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": { "name": "web", "labels": { "app": "x" } },
                "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": "web" }] },
            })
        );
    }

    #[test]
    fn reads_messages_that_json_does_not_show() {
        // Volume { name: "v", volumeSource: { emptyDir: { medium: "Memory" } } }
        let (mut empty, mut source, mut volume) = (Vec::new(), Vec::new(), Vec::new());
        put(&mut empty, 1, b"Memory");
        put(&mut source, 2, &empty);
        put(&mut volume, 1, b"v");
        put(&mut volume, 2, &source);

        let value = message(&Shape::Named("core.v1.Volume"), &volume, 0).unwrap();

        assert_eq!(value, json!({ "name": "v", "emptyDir": { "medium": "Memory" } }));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&wrap("v1", "Pod", &bytes), |_, _| Some(Shape::Named("core.v1.Pod")));
            let _ = decode(&bytes, |_, _| Some(Shape::Named("core.v1.Pod")));
        }
    }
}
