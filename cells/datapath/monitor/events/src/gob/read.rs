// SPDX-License-Identifier: Apache-2.0

//! Reads messages.

use std::ops::Range;

use super::{
    GobError, MAX_MESSAGE, Value,
    types::{Type, Types, id},
};

const MAX_DEPTH: usize = 32;

/// Where the first message of `bytes` is; `None` if it has not arrived whole.
///
/// # Errors
///
/// [`GobError::Number`] and [`GobError::TooLong`] if its length makes no sense.
pub fn frame(bytes: &[u8]) -> Result<Option<Range<usize>>, GobError> {
    let mut reader = Reader { bytes };
    let length = match reader.uint() {
        Ok(length) => length,
        Err(GobError::Short) => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > MAX_MESSAGE as u64 {
        return Err(GobError::TooLong(length));
    }
    let start = bytes.len() - reader.bytes.len();
    let end = start + length as usize;
    Ok((end <= bytes.len()).then_some(start..end))
}

/// What was learned of a stream.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    types: Types,
}

impl Stream {
    /// Reads a message, without its length. Returns the value, or `None` if it defined a type.
    ///
    /// # Errors
    ///
    /// [`GobError`]; nothing after it can be trusted.
    pub fn read(&mut self, body: &[u8]) -> Result<Option<Value>, GobError> {
        let mut reader = Reader { bytes: body };
        let of = reader.int()?;
        if of < 0 {
            let definition = reader.value(&self.types, id::WIRE_TYPE, 0)?;
            reader.end()?;
            let defined = of.checked_neg().ok_or(GobError::InvalidDefinition(of))?;
            self.types.define(defined, &definition)?;
            return Ok(None);
        }
        if !matches!(self.types.get(of), Some(Type::Struct(_))) {
            // A value that is no structure has a zero before it.
            reader.uint()?;
        }
        let value = reader.value(&self.types, of, 0)?;
        reader.end()?;
        Ok(Some(value))
    }

    /// The first value of a stream that is there whole.
    ///
    /// # Errors
    ///
    /// [`GobError`], also if there is none.
    pub fn first(bytes: &[u8]) -> Result<Value, GobError> {
        let (mut stream, mut rest) = (Self::default(), bytes);
        while let Some(found) = frame(rest)? {
            if let Some(value) = stream.read(&rest[found.clone()])? {
                return Ok(value);
            }
            rest = &rest[found.end..];
        }
        Err(GobError::Short)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn end(&self) -> Result<(), GobError> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(GobError::Trailing(left)),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], GobError> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(GobError::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn uint(&mut self) -> Result<u64, GobError> {
        let first = self.take(1)?[0];
        if first < 128 {
            return Ok(first.into());
        }
        let length = usize::from(0_u8.wrapping_sub(first));
        if length > 8 {
            return Err(GobError::Number(length));
        }
        let bytes = self.take(length)?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn int(&mut self) -> Result<i64, GobError> {
        let bits = self.uint()?;
        let number = (bits >> 1).cast_signed();
        Ok(if bits & 1 == 0 { number } else { !number })
    }

    /// How many elements follow, each of which has at least one byte.
    fn count(&mut self) -> Result<usize, GobError> {
        let count = usize::try_from(self.uint()?).map_err(|_| GobError::Short)?;
        if count > self.bytes.len() {
            return Err(GobError::Short);
        }
        Ok(count)
    }

    fn value(&mut self, types: &Types, of: i64, depth: usize) -> Result<Value, GobError> {
        if depth > MAX_DEPTH {
            return Err(GobError::TooDeep);
        }
        Ok(match of {
            id::BOOL => Value::Bool(self.uint()? != 0),
            id::INT => Value::Int(self.int()?),
            id::UINT => Value::Uint(self.uint()?),
            id::FLOAT => Value::Float(f64::from_bits(self.uint()?.swap_bytes())),
            id::BYTES => Value::Bytes(self.bytes()?),
            id::TEXT => Value::Text(String::from_utf8(self.bytes()?).map_err(|_| GobError::Text)?),
            7 | 8 => return Err(GobError::Unsupported(of)),
            _ => match types.get(of).ok_or(GobError::UndefinedType(of))? {
                Type::Opaque => Value::Bytes(self.bytes()?),
                Type::List(element) => {
                    let count = self.count()?;
                    let values = (0..count).map(|_| self.value(types, *element, depth + 1));
                    Value::List(values.collect::<Result<_, _>>()?)
                }
                Type::Map(key, element) => {
                    let count = self.count()?;
                    let pairs = (0..count).map(|_| {
                        let key = self.value(types, *key, depth + 1)?;
                        Ok((key, self.value(types, *element, depth + 1)?))
                    });
                    Value::Map(pairs.collect::<Result<_, _>>()?)
                }
                Type::Struct(fields) => self.fields(types, fields, depth)?,
            },
        })
    }

    fn bytes(&mut self) -> Result<Vec<u8>, GobError> {
        let length = self.count()?;
        Ok(self.take(length)?.to_vec())
    }

    fn fields(&mut self, types: &Types, fields: &[(String, i64)], depth: usize) -> Result<Value, GobError> {
        let mut found = Vec::new();
        let mut next = 0_u64;
        loop {
            let delta = self.uint()?;
            if delta == 0 {
                return Ok(Value::Struct(found));
            }
            // Deltas count from the field before, the first one from -1.
            next = next.checked_add(delta).ok_or(GobError::UnknownField(delta))?;
            let index = usize::try_from(next - 1).ok();
            let (name, of) = index
                .and_then(|index| fields.get(index))
                .ok_or(GobError::UnknownField(next - 1))?;
            found.push((name.clone(), self.value(types, *of, depth + 1)?));
        }
    }
}
