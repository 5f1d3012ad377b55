// SPDX-License-Identifier: Apache-2.0

//! A value on its way to YAML, and the serde serializer that makes it.

use std::fmt::Display;

use serde::ser::{self, Serialize};

/// Why a value has no YAML form.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The value's own `Serialize` failed.
    #[error("{0}")]
    Custom(String),
}

impl ser::Error for Error {
    fn custom<T: Display>(message: T) -> Self {
        Self::Custom(message.to_string())
    }
}

/// A YAML value. Mappings keep their order.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// A text, quoted where it would be read as something else.
    Text(String),
    /// A scalar that is never quoted: a time.
    Plain(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping.
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// The YAML form of a value.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        value.serialize(Serializer)
    }
}

/// Name of the newtype struct by which the serializer knows [`Plain`].
const PLAIN: &str = "$hive_script::Plain";

/// A scalar that YAML shows as it is, without quotes. Other formats see a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain<T>(pub T);

impl<T: Display> Serialize for Plain<T> {
    fn serialize<S: ser::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(PLAIN, &self.0.to_string())
    }
}

struct Serializer;

/// Collects the parts of a list, a mapping, or of either inside an enum variant.
struct Collector {
    variant: Option<&'static str>,
    items: Vec<Node>,
    entries: Vec<(Node, Node)>,
    key: Option<Node>,
    is_map: bool,
}

impl Collector {
    fn new(variant: Option<&'static str>, is_map: bool) -> Self {
        Self {
            variant,
            items: Vec::new(),
            entries: Vec::new(),
            key: None,
            is_map,
        }
    }

    fn finish(self) -> Node {
        let node = if self.is_map {
            Node::Map(self.entries)
        } else {
            Node::List(self.items)
        };
        match self.variant {
            Some(variant) => tagged(variant, node),
            None => node,
        }
    }
}

fn tagged(variant: &'static str, node: Node) -> Node {
    Node::Map(vec![(Node::Text(variant.to_owned()), node)])
}

impl ser::Serializer for Serializer {
    type Ok = Node;
    type Error = Error;
    type SerializeSeq = Collector;
    type SerializeTuple = Collector;
    type SerializeTupleStruct = Collector;
    type SerializeTupleVariant = Collector;
    type SerializeMap = Collector;
    type SerializeStruct = Collector;
    type SerializeStructVariant = Collector;

    fn serialize_bool(self, v: bool) -> Result<Node, Error> {
        Ok(Node::Bool(v))
    }
    fn serialize_i8(self, v: i8) -> Result<Node, Error> {
        Ok(Node::Int(v.into()))
    }
    fn serialize_i16(self, v: i16) -> Result<Node, Error> {
        Ok(Node::Int(v.into()))
    }
    fn serialize_i32(self, v: i32) -> Result<Node, Error> {
        Ok(Node::Int(v.into()))
    }
    fn serialize_i64(self, v: i64) -> Result<Node, Error> {
        Ok(Node::Int(v.into()))
    }
    fn serialize_i128(self, v: i128) -> Result<Node, Error> {
        Ok(Node::Int(v))
    }
    fn serialize_u8(self, v: u8) -> Result<Node, Error> {
        Ok(Node::Int(v.into()))
    }
    fn serialize_u16(self, v: u16) -> Result<Node, Error> {
        Ok(Node::Int(v.into()))
    }
    fn serialize_u32(self, v: u32) -> Result<Node, Error> {
        Ok(Node::Int(v.into()))
    }
    fn serialize_u64(self, v: u64) -> Result<Node, Error> {
        Ok(Node::Int(v.into()))
    }
    fn serialize_f32(self, v: f32) -> Result<Node, Error> {
        // Through text, so that 0.1_f32 is not 0.10000000149011612.
        Ok(Node::Float(v.to_string().parse().unwrap_or(f64::from(v))))
    }
    fn serialize_f64(self, v: f64) -> Result<Node, Error> {
        Ok(Node::Float(v))
    }
    fn serialize_char(self, v: char) -> Result<Node, Error> {
        Ok(Node::Text(v.to_string()))
    }
    fn serialize_str(self, v: &str) -> Result<Node, Error> {
        Ok(Node::Text(v.to_owned()))
    }
    fn serialize_bytes(self, v: &[u8]) -> Result<Node, Error> {
        Ok(Node::List(
            v.iter().map(|byte| Node::Int((*byte).into())).collect(),
        ))
    }
    fn serialize_none(self) -> Result<Node, Error> {
        Ok(Node::Null)
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Node, Error> {
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<Node, Error> {
        Ok(Node::Null)
    }
    fn serialize_unit_struct(self, _name: &'static str) -> Result<Node, Error> {
        Ok(Node::Null)
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Node, Error> {
        Ok(Node::Text(variant.to_owned()))
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Node, Error> {
        match value.serialize(self)? {
            Node::Text(text) if name == PLAIN => Ok(Node::Plain(text)),
            node => Ok(node),
        }
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Node, Error> {
        Ok(tagged(variant, value.serialize(self)?))
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Collector, Error> {
        Ok(Collector::new(None, false))
    }
    fn serialize_tuple(self, _: usize) -> Result<Collector, Error> {
        Ok(Collector::new(None, false))
    }
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Collector, Error> {
        Ok(Collector::new(None, false))
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Collector, Error> {
        Ok(Collector::new(Some(variant), false))
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Collector, Error> {
        Ok(Collector::new(None, true))
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Collector, Error> {
        Ok(Collector::new(None, true))
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Collector, Error> {
        Ok(Collector::new(Some(variant), true))
    }
}

macro_rules! collect_items {
    ($($trait:ident :: $method:ident),*) => {$(
        impl ser::$trait for Collector {
            type Ok = Node;
            type Error = Error;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.items.push(value.serialize(Serializer)?);
                Ok(())
            }
            fn end(self) -> Result<Node, Error> {
                Ok(self.finish())
            }
        }
    )*};
}

collect_items!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

macro_rules! collect_fields {
    ($($trait:ident),*) => {$(
        impl ser::$trait for Collector {
            type Ok = Node;
            type Error = Error;
            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
                self.entries.push((Node::Text(key.to_owned()), value.serialize(Serializer)?));
                Ok(())
            }
            fn end(self) -> Result<Node, Error> {
                Ok(self.finish())
            }
        }
    )*};
}

collect_fields!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for Collector {
    type Ok = Node;
    type Error = Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = Some(key.serialize(Serializer)?);
        Ok(())
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = self.key.take().unwrap_or(Node::Null);
        self.entries.push((key, value.serialize(Serializer)?));
        Ok(())
    }
    fn end(self) -> Result<Node, Error> {
        Ok(self.finish())
    }
}
