// SPDX-License-Identifier: Apache-2.0

//! Reading: a JSON value as a deserializer with Go's rules.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Visitor};
use serde_json::{Error, Value};

/// A JSON value, read with Go's rules.
pub(super) struct Lenient(pub(super) Value);

impl Lenient {
    /// What a field of that kind is without a value.
    fn or(self, zero: Value) -> Self {
        if self.0.is_null() { Self(zero) } else { self }
    }
}

impl IntoDeserializer<'_, Error> for Lenient {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

fn list<'de, V: Visitor<'de>>(items: Vec<Value>, visitor: V) -> Result<V::Value, Error> {
    let mut items = SeqDeserializer::new(items.into_iter().map(Lenient));
    let value = visitor.visit_seq(&mut items)?;
    items.end()?;
    Ok(value)
}

fn map<'de, V: Visitor<'de>>(
    entries: impl Iterator<Item = (String, Value)>,
    visitor: V,
) -> Result<V::Value, Error> {
    let mut entries = MapDeserializer::new(entries.map(|(key, value)| (key, Lenient(value))));
    let value = visitor.visit_map(&mut entries)?;
    entries.end()?;
    Ok(value)
}

/// The field of a name: the one spelled exactly so, else the first one that differs only in case.
fn field(fields: &'static [&'static str], name: &str) -> Option<usize> {
    fields
        .iter()
        .position(|field| *field == name)
        .or_else(|| fields.iter().position(|field| field.eq_ignore_ascii_case(name)))
}

macro_rules! zeroes {
    ($($method:ident: $zero:expr;)*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.or($zero).deserialize_any(visitor)
        }
    )* };
}

impl<'de> Deserializer<'de> for Lenient {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => list(items, visitor),
            Value::Object(entries) => map(entries.into_iter(), visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let entries = match self.0 {
            Value::Null => serde_json::Map::new(),
            Value::Object(entries) => entries,
            _ => return Err(Error::custom(format_args!("expected an object, {name}"))),
        };
        let mut values: Vec<Option<Value>> = vec![None; fields.len()];
        for (key, value) in entries {
            match field(fields, &key) {
                Some(at) if !value.is_null() => values[at] = Some(value),
                _ => {}
            }
        }
        let entries = fields.iter().zip(values);
        map(
            entries.filter_map(|(field, value)| Some(((*field).to_owned(), value?))),
            visitor,
        )
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    zeroes! {
        deserialize_bool: Value::Bool(false);
        deserialize_u8: Value::from(0);
        deserialize_u16: Value::from(0);
        deserialize_u32: Value::from(0);
        deserialize_u64: Value::from(0);
        deserialize_i8: Value::from(0);
        deserialize_i16: Value::from(0);
        deserialize_i32: Value::from(0);
        deserialize_i64: Value::from(0);
        deserialize_f32: Value::from(0);
        deserialize_f64: Value::from(0);
        deserialize_str: Value::String(String::new());
        deserialize_string: Value::String(String::new());
        deserialize_seq: Value::Array(Vec::new());
        deserialize_map: Value::Object(serde_json::Map::new());
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier ignored_any
    }
}
