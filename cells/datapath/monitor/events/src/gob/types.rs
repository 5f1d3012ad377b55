// SPDX-License-Identifier: Apache-2.0

//! Types of a stream: those that every stream knows, and those that it defines.

use std::collections::HashMap;

use super::{GobError, Value};

/// Ids of types that every stream knows.
pub(super) mod id {
    pub(crate) const BOOL: i64 = 1;
    pub(crate) const INT: i64 = 2;
    pub(crate) const UINT: i64 = 3;
    pub(crate) const FLOAT: i64 = 4;
    pub(crate) const BYTES: i64 = 5;
    pub(crate) const TEXT: i64 = 6;
    pub(crate) const WIRE_TYPE: i64 = 16;
    pub(super) const ARRAY_TYPE: i64 = 17;
    pub(super) const COMMON_TYPE: i64 = 18;
    pub(super) const SLICE_TYPE: i64 = 19;
    pub(super) const STRUCT_TYPE: i64 = 20;
    pub(super) const FIELD_TYPE: i64 = 21;
    pub(super) const FIELD_TYPES: i64 = 22;
    pub(super) const MAP_TYPE: i64 = 23;
    /// Types that encode themselves. Their description has an id that no stream uses.
    pub(super) const OPAQUE_TYPE: i64 = 24;
    /// The first id that a stream may define.
    pub(super) const FIRST_DEFINED: i64 = 64;
}

/// Types of a stream, at most: far more than any event has.
const MAX_TYPES: usize = 1024;

/// What a type is made of.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Type {
    List(i64),
    Map(i64, i64),
    Struct(Vec<(String, i64)>),
    Opaque,
}

#[derive(Debug, Clone)]
pub(super) struct Types(HashMap<i64, Type>);

impl Default for Types {
    fn default() -> Self {
        let of = |fields: &[(&str, i64)]| {
            Type::Struct(
                fields
                    .iter()
                    .map(|(name, of)| ((*name).to_owned(), *of))
                    .collect(),
            )
        };
        let common = ("Common", id::COMMON_TYPE);
        Self(HashMap::from([
            (
                id::WIRE_TYPE,
                of(&[
                    ("Array", id::ARRAY_TYPE),
                    ("Slice", id::SLICE_TYPE),
                    ("Struct", id::STRUCT_TYPE),
                    ("Map", id::MAP_TYPE),
                    ("GobEncoder", id::OPAQUE_TYPE),
                    ("BinaryMarshaler", id::OPAQUE_TYPE),
                    ("TextMarshaler", id::OPAQUE_TYPE),
                ]),
            ),
            (id::ARRAY_TYPE, of(&[common, ("Elem", id::INT), ("Len", id::INT)])),
            (id::COMMON_TYPE, of(&[("Name", id::TEXT), ("Id", id::INT)])),
            (id::SLICE_TYPE, of(&[common, ("Elem", id::INT)])),
            (id::STRUCT_TYPE, of(&[common, ("Fields", id::FIELD_TYPES)])),
            (id::FIELD_TYPE, of(&[("Name", id::TEXT), ("Id", id::INT)])),
            (id::FIELD_TYPES, Type::List(id::FIELD_TYPE)),
            (id::MAP_TYPE, of(&[common, ("Key", id::INT), ("Elem", id::INT)])),
            (id::OPAQUE_TYPE, of(&[common])),
        ]))
    }
}

impl Types {
    pub(super) fn get(&self, id: i64) -> Option<&Type> {
        self.0.get(&id)
    }

    /// Adds the type that a definition describes.
    pub(super) fn define(&mut self, id: i64, definition: &Value) -> Result<(), GobError> {
        if id < id::FIRST_DEFINED || self.0.contains_key(&id) || self.0.len() > MAX_TYPES {
            return Err(GobError::InvalidDefinition(id));
        }
        let defined = described(definition).ok_or(GobError::InvalidDefinition(id))?;
        self.0.insert(id, defined);
        Ok(())
    }
}

fn described(definition: &Value) -> Option<Type> {
    let Value::Struct(kinds) = definition else {
        return None;
    };
    let [(kind, body)] = kinds.as_slice() else {
        return None;
    };
    Some(match kind.as_str() {
        "Array" | "Slice" => Type::List(body.int("Elem")),
        "Map" => Type::Map(body.int("Key"), body.int("Elem")),
        "Struct" => {
            let fields = body.list("Fields").iter();
            Type::Struct(
                fields
                    .map(|field| (field.text("Name"), field.int("Id")))
                    .collect(),
            )
        }
        _ => Type::Opaque,
    })
}
