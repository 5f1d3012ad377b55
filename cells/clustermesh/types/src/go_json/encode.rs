// SPDX-License-Identifier: Apache-2.0

//! Writing: the compact form with Go's escapes.

use std::io;

/// What Go escapes beyond what JSON requires.
const ESCAPED: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];

pub(super) struct Escaping;

impl serde_json::ser::Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(ESCAPED) {
            let (plain, tail) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let mut tail = tail.chars();
            if let Some(escaped) = tail.next() {
                write!(writer, "\\u{:04x}", u32::from(escaped))?;
            }
            rest = tail.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}
