// SPDX-License-Identifier: Apache-2.0

//! How a text is written as a YAML scalar: which style it needs, and each style.

use std::sync::LazyLock;

use regex::Regex;

/// Spaces from the left border at which a folding emitter looks for a place to break.
const BEST_WIDTH: usize = 80;

/// Where the scalar stands.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Column of the next character.
    pub(super) column: usize,
    /// Indentation of continuation lines.
    pub(super) indent: usize,
    /// Spaces of one level, named in the header of a literal that starts with a space.
    pub(super) step: usize,
    /// A key: one line only.
    pub(super) is_key: bool,
    /// Whether lines past column 80 are folded at spaces.
    pub(super) folds: bool,
}

/// What the characters of a text allow.
#[derive(Default)]
struct Analysis {
    block_indicators: bool,
    line_breaks: bool,
    special: bool,
    tabs: bool,
    leading_blank: bool,
    trailing_space: bool,
    trailing_break: bool,
    break_space: bool,
    space_break: bool,
}

impl Analysis {
    fn of(text: &str) -> Self {
        let mut this = Self::default();
        let is_blank = |c: Option<&char>| {
            c.is_none_or(|c| matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}'))
        };
        this.block_indicators = text.starts_with("---") || text.starts_with("...");
        let mut preceded_by_blank = true;
        let (mut previous_space, mut previous_break) = (false, false);
        let mut chars = text.chars().peekable();
        let mut first = true;
        while let Some(c) = chars.next() {
            let followed_by_blank = is_blank(chars.peek());
            let last = chars.peek().is_none();
            match c {
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                | '`'
                    if first =>
                {
                    this.block_indicators = true;
                }
                '?' | '-' if first && followed_by_blank => this.block_indicators = true,
                ':' if followed_by_blank => this.block_indicators = true,
                '#' if preceded_by_blank => this.block_indicators = true,
                _ => {}
            }
            if c == '\t' {
                this.tabs = true;
            } else if !is_printable(c) {
                this.special = true;
            }
            if c == ' ' {
                this.leading_blank |= first;
                this.trailing_space |= last;
                this.break_space |= previous_break;
                (previous_space, previous_break) = (true, false);
            } else if is_break(c) {
                this.line_breaks = true;
                this.leading_blank |= first;
                this.trailing_break |= last;
                this.space_break |= previous_space;
                (previous_space, previous_break) = (false, true);
            } else {
                (previous_space, previous_break) = (false, false);
            }
            preceded_by_blank = is_blank(Some(&c));
            first = false;
        }
        this
    }

    fn plain_allowed(&self) -> bool {
        !(self.leading_blank
            || self.trailing_space
            || self.trailing_break
            || self.line_breaks
            || self.block_indicators
            || !self.single_quotes_allowed())
    }

    fn single_quotes_allowed(&self) -> bool {
        !(self.break_space || self.space_break || self.tabs || self.special)
    }

    fn literal_allowed(&self) -> bool {
        !(self.trailing_space || self.space_break || self.special)
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
        && c != '\u{feff}'
}

/// Writes a text in the least noisy style that is read back as that text.
pub(super) fn write_text(out: &mut String, text: &str, place: Place) {
    let analysis = Analysis::of(text);
    if text.contains('\n') {
        if !place.is_key && analysis.literal_allowed() {
            write_literal(out, text, place);
        } else {
            write_double_quoted(out, text, place);
        }
    } else if !reads_as_text(text) {
        write_double_quoted(out, text, place);
    } else if analysis.plain_allowed() {
        write_folded(out, text, place, |out, c| out.push(c));
    } else if analysis.single_quotes_allowed() && !(place.is_key && analysis.line_breaks) {
        out.push('\'');
        let inner = Place {
            column: place.column + 1,
            ..place
        };
        write_folded(out, text, inner, |out, c| {
            if c == '\'' {
                out.push('\'');
            }
            out.push(c);
        });
        out.push('\'');
    } else {
        write_double_quoted(out, text, place);
    }
}

/// Writes characters and replaces single spaces past the best width by line breaks.
fn write_folded(out: &mut String, text: &str, place: Place, mut write: impl FnMut(&mut String, char)) {
    let mut column = place.column;
    let mut previous_space = false;
    let mut chars = text.chars().peekable();
    let mut first = true;
    while let Some(c) = chars.next() {
        let next = chars.peek();
        let inner = !first && next.is_some_and(|next| *next != ' ');
        if c == ' ' && place.folds && !place.is_key && !previous_space && inner && column > BEST_WIDTH {
            break_line(out, place.indent);
            column = place.indent;
        } else {
            write(out, c);
            column += if c == '\'' { 2 } else { 1 };
        }
        previous_space = c == ' ';
        first = false;
    }
}

fn break_line(out: &mut String, indent: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', indent));
}

fn write_double_quoted(out: &mut String, text: &str, place: Place) {
    use std::fmt::Write;
    out.push('"');
    let mut column = place.column + 1;
    let mut previous_space = false;
    let mut chars = text.chars().peekable();
    let mut first = true;
    while let Some(c) = chars.next() {
        let before = out.len();
        let mut space = false;
        match c {
            '\0' => out.push_str("\\0"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\u{1b}' => out.push_str("\\e"),
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{85}' => out.push_str("\\N"),
            '\u{a0}' => out.push_str("\\_"),
            '\u{2028}' => out.push_str("\\L"),
            '\u{2029}' => out.push_str("\\P"),
            ' ' => {
                let last = chars.peek().is_none();
                if place.folds && !place.is_key && !previous_space && !first && !last && column > BEST_WIDTH {
                    break_line(out, place.indent);
                    column = place.indent;
                    if chars.peek() == Some(&' ') {
                        out.push('\\');
                        column += 1;
                    }
                    previous_space = true;
                    first = false;
                    continue;
                }
                out.push(' ');
                space = true;
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02X}"),
                    0x100..=0xffff => write!(out, "\\u{code:04X}"),
                    _ => write!(out, "\\U{code:08X}"),
                };
            }
        }
        column += out[before..].chars().count();
        previous_space = space;
        first = false;
    }
    out.push('"');
}

fn write_literal(out: &mut String, text: &str, place: Place) {
    out.push('|');
    if text.starts_with(' ') || text.starts_with(is_break) {
        out.push_str(&place.step.to_string());
    }
    let body = match text.strip_suffix('\n') {
        None => {
            out.push('-');
            text
        }
        Some(body) => {
            if body.is_empty() || body.ends_with(is_break) {
                out.push('+');
            }
            body
        }
    };
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', place.indent));
            out.push_str(line);
        }
    }
}

/// Whether an unquoted scalar is read back as a text and not as a number, a truth value, a time or nothing.
fn reads_as_text(text: &str) -> bool {
    !is_word(text) && !is_number(text) && !is_base60(text) && !is_time(text)
}

fn is_word(text: &str) -> bool {
    matches!(
        text,
        "" | "~"
            | "null"
            | "Null"
            | "NULL"
            | "<<"
            | "true"
            | "True"
            | "TRUE"
            | "false"
            | "False"
            | "FALSE"
            | "y"
            | "Y"
            | "yes"
            | "Yes"
            | "YES"
            | "on"
            | "On"
            | "ON"
            | "n"
            | "N"
            | "no"
            | "No"
            | "NO"
            | "off"
            | "Off"
            | "OFF"
            | ".nan"
            | ".NaN"
            | ".NAN"
            | ".inf"
            | ".Inf"
            | ".INF"
            | "+.inf"
            | "+.Inf"
            | "+.INF"
            | "-.inf"
            | "-.Inf"
            | "-.INF"
    )
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("constant patterns are valid")
}

fn is_number(text: &str) -> bool {
    static FLOAT: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"));
    // Go reads underscores between digits and the prefixes 0x, 0o, 0b and 0.
    static INTEGER: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"^[-+]?(0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+|[0-9]+)$"));
    if !text.starts_with(['+', '-', '.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) {
        return false;
    }
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    FLOAT.is_match(&digits) || INTEGER.is_match(&digits)
}

/// Sexagesimal numbers of YAML 1.1 such as `1:30`.
fn is_base60(text: &str) -> bool {
    static BASE60: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?$"));
    text.contains(':') && BASE60.is_match(text)
}

fn is_time(text: &str) -> bool {
    static TIME: LazyLock<Regex> = LazyLock::new(|| {
        pattern(
            r"^[0-9]{4}-(?:0?[1-9]|1[0-2])-(?:0?[1-9]|[12][0-9]|3[01])(?:[Tt](?:[01]?[0-9]|2[0-3]):[0-5]?[0-9]:[0-5]?[0-9](?:\.[0-9]+)?(?:Z|[-+][0-9]{2}:[0-9]{2})| (?:[01]?[0-9]|2[0-3]):[0-5]?[0-9]:[0-5]?[0-9](?:\.[0-9]+)?)?$",
        )
    });
    text.len() >= 8 && text.as_bytes().get(4) == Some(&b'-') && TIME.is_match(text)
}
