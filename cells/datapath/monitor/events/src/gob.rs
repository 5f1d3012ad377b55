// SPDX-License-Identifier: Apache-2.0

//! Go's `gob` encoding, as far as the monitor's protocol has it.
//!
//! A stream is a sequence of messages, each with its length before it. A message defines a type or has a value of a type
//! that was defined before; types have ids that the writer chooses. [`Stream`] learns them and returns values by the names
//! of their fields. Writers need no types at run time: their definitions are constants.

mod read;
mod types;
mod value;

pub use read::{Stream, frame};
pub use value::Value;

/// Longest message that is read: more than any event, and less than what would hurt.
pub const MAX_MESSAGE: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GobError {
    /// The message ends within a value.
    #[error("gob: message ends within a value")]
    Short,
    /// A number is longer than the bytes it may have.
    #[error("gob: number of {0} bytes")]
    Number(usize),
    /// A message is longer than any event.
    #[error("gob: message of {0} bytes is too long")]
    TooLong(u64),
    /// A value is of a type that was not defined.
    #[error("gob: type {0} is not defined")]
    UndefinedType(i64),
    /// A type is defined that cannot be: its id is reserved, or defined already.
    #[error("gob: type {0} cannot be defined")]
    InvalidDefinition(i64),
    /// A structure has a field that its type has not.
    #[error("gob: structure has no field {0}")]
    UnknownField(u64),
    /// A text is not UTF-8.
    #[error("gob: text is not UTF-8")]
    Text,
    /// Values lie within each other too deep.
    #[error("gob: values are nested too deep")]
    TooDeep,
    /// Values of this type are not read: complex numbers, interfaces.
    #[error("gob: values of type {0} are not supported")]
    Unsupported(i64),
    /// Bytes are left when the value has ended.
    #[error("gob: {0} bytes after the value")]
    Trailing(usize),
    /// The value is not what was expected.
    #[error("gob: expected {0}")]
    Unexpected(&'static str),
}

pub fn write_uint(out: &mut Vec<u8>, number: u64) {
    if number < 128 {
        out.push(number as u8);
        return;
    }
    let bytes = number.to_be_bytes();
    let significant = &bytes[number.leading_zeros() as usize / 8..];
    out.push(0_u8.wrapping_sub(significant.len() as u8));
    out.extend_from_slice(significant);
}

pub fn write_int(out: &mut Vec<u8>, number: i64) {
    let bits = (number << 1) ^ (number >> 63);
    write_uint(out, bits.cast_unsigned());
}

/// Appends bytes, or the text that they are.
pub fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_uint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A message with its length before it.
pub fn message(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 4);
    write_bytes(&mut out, body);
    out
}

#[cfg(test)]
mod tests;
