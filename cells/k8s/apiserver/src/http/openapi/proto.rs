// SPDX-License-Identifier: Apache-2.0

//! The document of OpenAPI version 2 in protobuf, the only form in which kubectl before 1.27 reads it.
//!
//! The numbers are those of the message types `openapi.v2.*` that gnostic defines.

use serde_json::{Map, Value};

/// Media type of the document.
pub(in crate::http) const MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The name under which clients ask for it; `@` must not be in the type of an answer.
const ASKED_FOR: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// True if this `Accept` header asks for the document in protobuf.
pub(in crate::http) fn is_wanted(accept: &str) -> bool {
    accept.contains(ASKED_FOR) || accept.contains(MEDIA_TYPE)
}

/// The document in protobuf.
pub(in crate::http) fn encode(document: &Value) -> Vec<u8> {
    let mut message = Message::default();
    message.text(1, document.get("swagger"));
    if let Some(info) = document.get("info") {
        message.nested(2, |m| {
            m.text(1, info.get("title"));
            m.text(2, info.get("version"));
        });
    }
    message.nested(8, |m| {
        for (name, item) in document
            .get("paths")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            m.nested(2, |m| {
                m.bytes(1, name.as_bytes());
                m.nested(2, |m| m.path(item));
            });
        }
    });
    message.nested(9, |m| m.named_schemas(1, document.get("definitions")));
    message.0
}

#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8 & 0x7f) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.varint(u64::from(number) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, number: u32, text: Option<&Value>) {
        if let Some(text) = text.and_then(Value::as_str) {
            self.bytes(number, text.as_bytes());
        }
    }

    fn nested(&mut self, number: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.bytes(number, &inner.0);
    }

    fn named_schemas(&mut self, number: u32, schemas: Option<&Value>) {
        for (name, schema) in schemas.and_then(Value::as_object).into_iter().flatten() {
            self.nested(number, |m| {
                m.bytes(1, name.as_bytes());
                m.nested(2, |m| m.schema(schema));
            });
        }
    }

    /// What can be done with a path; only patches are listed, which is where clients look.
    fn path(&mut self, item: &Value) {
        let Some(patch) = item.get("patch") else { return };
        self.nested(8, |m| {
            for parameter in patch
                .get("parameters")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                // A parameter, not in the body, in the query.
                m.nested(8, |m| {
                    m.nested(1, |m| {
                        m.nested(2, |m| {
                            m.nested(3, |m| {
                                m.text(2, parameter.get("in"));
                                m.text(4, parameter.get("name"));
                                m.text(6, parameter.get("type"));
                            });
                        });
                    });
                });
            }
            m.extensions(13, patch);
        });
    }

    fn extensions(&mut self, number: u32, object: &Value) {
        let fields = object.as_object().into_iter().flat_map(Map::iter);
        for (name, value) in fields.filter(|(name, _)| name.starts_with("x-")) {
            self.nested(number, |m| {
                m.bytes(1, name.as_bytes());
                // JSON is YAML.
                m.nested(2, |m| m.bytes(2, value.to_string().as_bytes()));
            });
        }
    }

    fn schema(&mut self, schema: &Value) {
        self.text(1, schema.get("$ref"));
        self.text(2, schema.get("format"));
        self.text(4, schema.get("description"));
        for field in schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.text(19, Some(field));
        }
        // What keeps unknown fields has nothing that could be checked.
        let is_open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
        if let Some(value) = schema.get("additionalProperties").filter(|_| !is_open) {
            self.nested(21, |m| match value {
                Value::Bool(flag) => {
                    m.varint(2 << 3);
                    m.varint(u64::from(*flag));
                }
                schema => m.nested(1, |m| m.schema(schema)),
            });
        }
        if let Some(ty) = schema.get("type").filter(|ty| ty.is_string()) {
            self.nested(22, |m| m.text(1, Some(ty)));
        }
        if let Some(items) = schema.get("items") {
            self.nested(23, |m| m.nested(1, |m| m.schema(items)));
        }
        if let Some(properties) = schema.get("properties").filter(|_| !is_open) {
            self.nested(25, |m| m.named_schemas(1, Some(properties)));
        }
        self.extensions(31, schema);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn encodes_schemas_by_number() {
        let document = json!({ "swagger": "2.0", "paths": { "/a": { "patch": {
            "parameters": [{ "name": "dryRun", "in": "query" }], "x-k": "v",
        } } }, "definitions": { "A": {
            "type": "object", "required": ["b"], "x-k": [1],
            "properties": { "b": { "$ref": "R" }, "c": { "items": { "type": "string" } } },
            "additionalProperties": true,
        } } });

        let bytes = encode(&document);

        assert!(bytes.starts_with(b"\x0a\x032.0\x42"), "version, then paths");
        let found = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        assert!(
            found(b"\x42\x15\x0a\x13\x12\x11\x1a\x0f\x12\x05query\x22\x06dryRun"),
            "parameter in the query"
        );
        assert!(
            found(b"\x6a\x0c\x0a\x03x-k\x12\x05\x12\x03\"v\""),
            "extension of an operation"
        );
        assert!(found(b"\x9a\x01\x01b"), "required");
        assert!(found(b"\xaa\x01\x02\x10\x01"), "additional properties");
        assert!(found(b"\xb2\x01\x08\x0a\x06object"), "type");
        assert!(found(b"\x0a\x01b\x12\x03\x0a\x01R"), "property with reference");
        assert!(found(b"\xfa\x01\x0c\x0a\x03x-k\x12\x05\x12\x03[1]"), "extension");
    }

    #[test]
    fn leaves_out_what_cannot_be_checked() {
        let open = json!({ "definitions": { "A": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": { "secret": {} },
        } } });

        let bytes = encode(&open);
        assert!(!bytes.windows(6).any(|window| window == b"secret"));
    }
}
