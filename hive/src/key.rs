// SPDX-License-Identifier: Apache-2.0

//! Keys of the graph: exact types, with names short enough for people.

use std::any::{TypeId, type_name};
use std::fmt;

/// Identity of a value in the graph: the exact type by which constructors ask for it.
///
/// `Arc<Store>`, `Arc<dyn Storage>` and `Store` are three different keys.
///
/// ```
/// use std::sync::Arc;
/// let key = hive::Key::of::<Arc<Vec<std::net::IpAddr>>>();
/// assert_eq!(key.to_string(), "Arc<Vec<IpAddr>>");
/// ```
#[derive(Clone, Copy)]
pub struct Key {
    id: TypeId,
    name: fn() -> &'static str,
}

impl Key {
    /// The key of type `T`.
    #[must_use]
    pub fn of<T: ?Sized + 'static>() -> Self {
        Self {
            id: TypeId::of::<T>(),
            name: type_name::<T>,
        }
    }

    /// Full type name with all paths, as the compiler gives it.
    #[must_use]
    pub fn full_name(&self) -> &'static str {
        (self.name)()
    }

    pub(crate) fn id(&self) -> TypeId {
        self.id
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&short_type(self.full_name()))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Removes module paths: `alloc::sync::Arc<dyn store::Store>` becomes `Arc<dyn Store>`.
pub(crate) fn short_type(name: &str) -> String {
    let mut out = String::with_capacity(name.len() / 2);
    let mut word = 0;
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if let Some(tail) = rest.strip_prefix("::") {
            out.truncate(word);
            rest = tail;
            continue;
        }
        out.push(c);
        if !(c.is_alphanumeric() || c == '_' || c == '{' || c == '}' || c == '#') {
            word = out.len();
        }
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// A function's path without generic arguments' paths: `widgets::store::Store::new`.
pub(crate) fn short_function(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut depth = 0usize;
    let mut arguments = String::new();
    for c in name.chars() {
        match c {
            '<' => {
                depth += 1;
                arguments.push(c);
            }
            '>' if depth > 0 && !arguments.ends_with('-') => {
                depth -= 1;
                arguments.push(c);
                if depth == 0 {
                    out.push_str(&short_type(&arguments));
                    arguments.clear();
                }
            }
            _ if depth > 0 => arguments.push(c),
            _ => out.push(c),
        }
    }
    out.push_str(&arguments);
    out.replace("::{{closure}}", "::closure")
}

/// Hashes what the program itself names: [`TypeId`]s, which are hashes already, and short texts.
pub(crate) type KeyHasher = std::hash::BuildHasherDefault<KeyHash>;

/// A hash in the making.
#[derive(Default)]
pub(crate) struct KeyHash(u64);

impl std::hash::Hasher for KeyHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            // Both halves of the product, else the last letters of a text would not reach the low bits.
            let product =
                u128::from(self.0.rotate_left(5) ^ u64::from_ne_bytes(word)) * 0x9e37_79b9_7f4a_7c15_u128;
            self.0 = (product >> 64) as u64 ^ product as u64;
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 ^= value;
    }
}

pub(crate) type TypeMap<V> = std::collections::HashMap<TypeId, V, KeyHasher>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortens_type_names() {
        assert_eq!(short_type("alloc::sync::Arc<dyn a::b::Store>"), "Arc<dyn Store>");
        assert_eq!(
            short_type("hive::config::Cfg<std::collections::HashMap<u8, (x::Y, &'static str)>>"),
            "Cfg<HashMap<u8, (Y, &'static str)>>"
        );
        assert_eq!(
            short_type("a::F<dyn core::ops::Fn(b::C) -> d::E + core::marker::Send>"),
            "F<dyn Fn(C) -> E + Send>"
        );
    }

    #[test]
    fn shortens_function_names() {
        assert_eq!(
            short_function("widgets::store::Store::new"),
            "widgets::store::Store::new"
        );
        assert_eq!(
            short_function("widgets::make<alloc::sync::Arc<a::B>>"),
            "widgets::make<Arc<B>>"
        );
        assert_eq!(
            short_function("widgets::cell::{{closure}}"),
            "widgets::cell::closure"
        );
        assert_eq!(short_function("<a::B as c::D>::new"), "<B as D>::new");
    }
}
