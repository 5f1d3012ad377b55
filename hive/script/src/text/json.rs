// SPDX-License-Identifier: Apache-2.0

//! JSON as Go's `encoding/json` prints it: `<`, `>`, `&` and the two Unicode line separators are escaped.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

/// One line, no spaces, no final newline.
pub fn compact<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    emit(value, CompactFormatter)
}

/// Indented by two spaces, no final newline.
///
/// ```
/// let text = hive_script::text::json::indented(&serde_json::json!({"a": ["<b>"], "c": {}})).unwrap();
/// assert_eq!(text, "{\n  \"a\": [\n    \"\\u003cb\\u003e\"\n  ],\n  \"c\": {}\n}");
/// ```
pub fn indented<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    emit(value, PrettyFormatter::with_indent(b"  "))
}

fn emit<T: Serialize + ?Sized>(value: &T, formatter: impl Formatter) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(
        &mut out,
        GoFormatter(formatter),
    ))?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Adds Go's escapes to a formatter.
struct GoFormatter<F>(F);

impl<F: Formatter> Formatter for GoFormatter<F> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            writer.write_all(&rest.as_bytes()[..at])?;
            let Some(special) = rest[at..].chars().next() else {
                break;
            };
            write!(writer, "\\u{:04x}", u32::from(special))?;
            rest = &rest[at + special.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}
