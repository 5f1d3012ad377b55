// SPDX-License-Identifier: Apache-2.0

//! The C structure of a key or a value: what the test of the compiled object compares, field by field.

/// A structure of the C side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Struct {
    /// Name after `struct`.
    pub name: &'static str,
    pub size: usize,
    /// Fields with their offsets, in order, by their names in C.
    pub fields: &'static [(&'static str, usize)],
}

/// A type whose bytes are those of a C type.
pub trait Layout {
    /// The structure; `None` if the C side has an integer.
    const STRUCT: Option<Struct> = None;
}

impl Layout for u8 {}
impl Layout for u32 {}
impl Layout for u64 {}

/// Says which C structure a type is the twin of: `layout!(Key = "lb_key" { address, port as dport })`, with the names of
/// the C side after `as`; or `layout!(Key)` for one that is an integer there.
#[macro_export]
macro_rules! layout {
    ($rust:ident) => {
        impl $crate::layout::Layout for $rust {}
    };
    ($rust:ident = $c:literal { $($field:ident $(as $other:ident)?),+ $(,)? }) => {
        impl $crate::layout::Layout for $rust {
            const STRUCT: Option<$crate::layout::Struct> = Some($crate::layout::Struct {
                name: $c,
                size: ::std::mem::size_of::<$rust>(),
                fields: &[$(($crate::layout!(@name $field $($other)?), ::std::mem::offset_of!($rust, $field))),+],
            });
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $other:ident) => { stringify!($other) };
}
