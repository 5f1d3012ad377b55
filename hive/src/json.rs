// SPDX-License-Identifier: Apache-2.0

//! The little JSON that reports and settings need.

use std::fmt::Write;

/// A JSON document to print.
pub(crate) enum Json {
    Text(String),
    Number(u64),
    Integer(i128),
    /// A finite number.
    Float(f64),
    Bool(bool),
    Null,
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
    /// An object whose keys are data.
    Map(Vec<(String, Json)>),
}

impl Json {
    pub(crate) fn text(text: impl ToString) -> Self {
        Self::Text(text.to_string())
    }

    /// Indented by two spaces, with a final line break.
    pub(crate) fn pretty(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, 0);
        out.push('\n');
        out
    }

    fn write(&self, out: &mut String, depth: usize) {
        match self {
            Self::Text(text) => quote(out, text),
            Self::Number(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Integer(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Float(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Bool(value) => {
                let _ = write!(out, "{value}");
            }
            Self::Null => out.push_str("null"),
            Self::List(items) if items.is_empty() => out.push_str("[]"),
            Self::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    line(out, index, depth + 1);
                    item.write(out, depth + 1);
                }
                line(out, 0, depth);
                out.push(']');
            }
            Self::Object(fields) => object(out, depth, fields.iter().map(|(name, value)| (*name, value))),
            Self::Map(fields) => {
                object(
                    out,
                    depth,
                    fields.iter().map(|(name, value)| (name.as_str(), value)),
                );
            }
        }
    }
}

fn object<'a>(out: &mut String, depth: usize, fields: impl ExactSizeIterator<Item = (&'a str, &'a Json)>) {
    if fields.len() == 0 {
        out.push_str("{}");
        return;
    }
    out.push('{');
    for (index, (name, value)) in fields.enumerate() {
        line(out, index, depth + 1);
        quote(out, name);
        out.push_str(": ");
        value.write(out, depth + 1);
    }
    line(out, 0, depth);
    out.push('}');
}

fn line(out: &mut String, index: usize, depth: usize) {
    if index > 0 {
        out.push(',');
    }
    out.push('\n');
    for _ in 0..depth {
        out.push_str("  ");
    }
}

pub(crate) fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Reads `{"key": "value", …}`; numbers, booleans and null count as their text.
pub(crate) fn object_of_strings(text: &str) -> Option<Vec<(String, String)>> {
    let mut input = Input(text.trim().strip_prefix('{')?);
    let mut pairs = Vec::new();
    input.blank();
    if input.eat('}') {
        return input.0.is_empty().then_some(pairs);
    }
    loop {
        input.blank();
        let key = input.string()?;
        input.blank();
        if !input.eat(':') {
            return None;
        }
        input.blank();
        let value = if input.0.starts_with('"') {
            input.string()?
        } else {
            input.word()?
        };
        pairs.push((key, value));
        input.blank();
        if input.eat('}') {
            return input.0.trim().is_empty().then_some(pairs);
        }
        if !input.eat(',') {
            return None;
        }
    }
}

struct Input<'a>(&'a str);

impl Input<'_> {
    fn blank(&mut self) {
        self.0 = self.0.trim_start();
    }

    fn eat(&mut self, c: char) -> bool {
        match self.0.strip_prefix(c) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> Option<String> {
        let end = self
            .0
            .find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)))?;
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        let number = word.parse::<f64>().is_ok() || matches!(word, "true" | "false" | "null");
        number.then(|| {
            if word == "null" {
                String::new()
            } else {
                word.to_owned()
            }
        })
    }

    fn string(&mut self) -> Option<String> {
        let mut out = String::new();
        let mut chars = self.0.strip_prefix('"')?.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => out.push(match chars.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'u' => {
                        let mut unit =
                            || u16::from_str_radix(&chars.by_ref().take(4).collect::<String>(), 16).ok();
                        let first = unit()?;
                        if (0xd800..0xdc00).contains(&first) {
                            if (chars.next()?, chars.next()?) != ('\\', 'u') {
                                return None;
                            }
                            let digits: String = chars.by_ref().take(4).collect();
                            let second = u16::from_str_radix(&digits, 16).ok()?;
                            char::decode_utf16([first, second]).next()?.ok()?
                        } else {
                            char::from_u32(u32::from(first))?
                        }
                    }
                    c @ ('"' | '\\' | '/') => c,
                    _ => return None,
                }),
                c => out.push(c),
            }
        }
        self.0 = chars.as_str();
        Some(out)
    }
}
