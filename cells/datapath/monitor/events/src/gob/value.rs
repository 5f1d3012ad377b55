// SPDX-License-Identifier: Apache-2.0

//! Values as they were sent.

/// A value of any type. What writers leave out of structures, since it is zero or empty, is not there.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `bool`.
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    /// Bytes, and what types encode themselves.
    Bytes(Vec<u8>),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
    /// Structures: names and values of fields.
    Struct(Vec<(String, Value)>),
}

impl Value {
    /// A field of a structure; `None` if it was left out, or if this is no structure.
    pub fn field(&self, name: &str) -> Option<&Value> {
        let Self::Struct(fields) = self else { return None };
        let found = fields.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value)
    }

    /// A field that is a text; empty if it was left out.
    pub fn text(&self, name: &str) -> String {
        match self.field(name) {
            Some(Self::Text(text)) => text.clone(),
            _ => String::new(),
        }
    }

    /// A field that is an unsigned number; 0 if it was left out.
    pub fn uint(&self, name: &str) -> u64 {
        match self.field(name) {
            Some(Self::Uint(number)) => *number,
            _ => 0,
        }
    }

    /// A field that is a signed number; 0 if it was left out.
    pub fn int(&self, name: &str) -> i64 {
        match self.field(name) {
            Some(Self::Int(number)) => *number,
            _ => 0,
        }
    }

    /// A field that is bytes; empty if it was left out.
    pub fn bytes(&self, name: &str) -> &[u8] {
        match self.field(name) {
            Some(Self::Bytes(bytes)) => bytes,
            _ => &[],
        }
    }

    /// A field that is a list; empty if it was left out.
    pub fn list(&self, name: &str) -> &[Value] {
        match self.field(name) {
            Some(Self::List(values)) => values,
            _ => &[],
        }
    }
}
