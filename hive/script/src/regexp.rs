// SPDX-License-Identifier: Apache-2.0

//! Regular expressions in Go's syntax (RE2), run by the `regex` crate.
//!
//! Both engines are close; what differs is rewritten: braces and brackets that Go takes literally, `\Q…\E`, `\<`, and
//! classes such as `\d` which are ASCII in Go.

use regex::Regex;

/// A pattern that is no regular expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {reason}: `{pattern}`")]
pub struct PatternError {
    /// The pattern.
    pub pattern: String,
    /// What is wrong.
    pub reason: String,
}

/// Compiles a pattern in Go's syntax.
///
/// ```
/// let re = hive_script::regexp::compile(r#"{"a": "\d+"}"#).unwrap();
/// assert!(re.is_match(r#"{"a": "12"}"#));
/// ```
pub fn compile(pattern: &str) -> Result<Regex, PatternError> {
    Regex::new(&translate(pattern)).map_err(|error| {
        let reason = match &error {
            regex::Error::Syntax(text) => text
                .lines()
                .last()
                .map(|line| line.trim_start_matches("error: ").to_owned())
                .unwrap_or_default(),
            other => other.to_string(),
        };
        PatternError {
            pattern: pattern.to_owned(),
            reason,
        }
    })
}

/// A pattern which matches `text` and nothing else, as Go's `QuoteMeta`.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Go's syntax in terms of the `regex` crate.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '\\' => escape(after, &mut out, false),
            '[' => class(after, &mut out),
            '{' if !is_repetition(after) => {
                out.push_str("\\{");
                after
            }
            c => {
                out.push(c);
                after
            }
        };
    }
    out
}

/// Whether the text behind an opening brace makes it `{n}`, `{n,}` or `{n,m}`.
fn is_repetition(after: &str) -> bool {
    let Some((inner, _)) = after.split_once('}') else {
        return false;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match inner.split_once(',') {
        None => is_number(inner),
        Some((from, to)) => is_number(from) && (to.is_empty() || is_number(to)),
    }
}

/// Translates what follows a backslash and returns the rest.
fn escape<'a>(after: &'a str, out: &mut String, in_class: bool) -> &'a str {
    let Some(c) = after.chars().next() else {
        out.push('\\');
        return after;
    };
    let rest = &after[c.len_utf8()..];
    let (inside, outside) = match c {
        'd' => ("0-9", "[0-9]"),
        'D' => ("[^0-9]", "[^0-9]"),
        'w' => ("0-9A-Za-z_", "[0-9A-Za-z_]"),
        'W' => ("[^0-9A-Za-z_]", "[^0-9A-Za-z_]"),
        's' => (r"\t\n\f\r ", r"[\t\n\f\r ]"),
        'S' => (r"[^\t\n\f\r ]", r"[^\t\n\f\r ]"),
        'b' if !in_class => ("", r"(?-u:\b)"),
        'B' if !in_class => ("", r"(?-u:\B)"),
        '<' => ("<", "<"),
        '>' => (">", ">"),
        'Q' if !in_class => {
            let (literal, rest) = rest.split_once(r"\E").unwrap_or((rest, ""));
            out.push_str(&regex::escape(literal));
            return rest;
        }
        'p' | 'P' if rest.starts_with("{^") => {
            let end = rest.find('}').map_or(rest.len(), |at| at + 1);
            out.push_str(if c == 'p' { r"\P{" } else { r"\p{" });
            out.push_str(&rest[2..end]);
            return &rest[end..];
        }
        'p' | 'P' if rest.starts_with('{') => {
            let end = rest.find('}').map_or(rest.len(), |at| at + 1);
            out.push('\\');
            out.push(c);
            out.push_str(&rest[..end]);
            return &rest[end..];
        }
        'x' if rest.starts_with('{') => {
            let end = rest.find('}').map_or(rest.len(), |at| at + 1);
            out.push_str(r"\x");
            out.push_str(&rest[..end]);
            return &rest[end..];
        }
        // One digit other than 0 would be a back-reference, which neither engine has.
        '0'..='7' if c == '0' || rest.starts_with(|next| matches!(next, '0'..='7')) => {
            let digits = 1 + rest
                .bytes()
                .take(2)
                .take_while(|byte| matches!(byte, b'0'..=b'7'))
                .count();
            let value = u32::from_str_radix(&after[..digits], 8).unwrap_or(0);
            out.push_str(&format!("\\x{{{value:x}}}"));
            return &after[digits..];
        }
        c => {
            out.push('\\');
            out.push(c);
            return rest;
        }
    };
    out.push_str(if in_class { inside } else { outside });
    rest
}

/// Translates a bracket expression, from behind the bracket, and returns the rest.
fn class<'a>(after: &'a str, out: &mut String) -> &'a str {
    out.push('[');
    let mut rest = after;
    if let Some(negated) = rest.strip_prefix('^') {
        out.push('^');
        rest = negated;
    }
    let mut first = true;
    while let Some(c) = rest.chars().next() {
        let next = &rest[c.len_utf8()..];
        match c {
            ']' if !first => {
                out.push(']');
                return next;
            }
            '[' if next.starts_with(':') && next[1..].contains(":]") => {
                let end = next.find(":]").map_or(next.len(), |at| at + 2);
                out.push('[');
                out.push_str(&next[..end]);
                rest = &next[end..];
                first = false;
                continue;
            }
            '\\' => {
                rest = escape(next, out, true);
                // A class such as `\w` begins no range: what follows is a dash.
                let is_class = next.starts_with(['d', 'D', 'w', 'W', 's', 'S', 'p', 'P']);
                if let Some(behind) = rest.strip_prefix('-').filter(|_| is_class) {
                    out.push_str(r"\-");
                    rest = behind;
                }
                first = false;
                continue;
            }
            ']' | '[' | '&' | '~' => {
                out.push('\\');
                out.push(c);
            }
            '-' if next.starts_with('-') => {
                out.push_str(r"-\-");
                rest = &next[1..];
                first = false;
                continue;
            }
            c => out.push(c),
        }
        rest = next;
        first = false;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_braces_and_brackets_as_go_does() {
        for (pattern, text) in [
            (r"{}", "{}"),
            (r"^{a{2}$", "{aa"),
            (r"x{,3}", "x{,3}"),
            (r"a{b}", "a{b}"),
            (r"[[]x", "[x"),
            (r"[]a]+$", "]a"),
            (r"[^]a]", "b"),
            (r"[a&&b]+$", "a&b"),
            (r"[+--]+$", "+,-"),
            (r"[[:alpha:]_]+$", "ab_"),
            (r"\Qa.b\E.", "a.bc"),
            (r"\<unset\>", "<unset>"),
            (r"\x{41}\pL", "AB"),
            (r"^\p{^Greek}\P{^Greek}$", "aα"),
            (r"^\101[\102\60]+\0$", "AB0\0"),
            (r"[\d\s]+x", "1 2x"),
            (r"^[\w-.]+$", "a-b.c"),
            (r"^[\d-x]+$", "1-x"),
            (r"^[\pL-]+$", "a-"),
            (r"]", "]"),
        ] {
            let re = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert!(re.is_match(text), "{pattern} on {text}: {re}");
        }
    }

    #[test]
    fn classes_are_ascii() {
        assert!(!compile(r"^\d$").unwrap().is_match("٣"));
        assert!(compile(r"^\W$").unwrap().is_match("é"));
        assert!(!compile(r"[[]x").unwrap().is_match("x"));
        assert!(!compile(r"[\s-x]").unwrap().is_match("c"));
    }

    #[test]
    fn a_bad_pattern_is_shown() {
        let text = compile("a(").unwrap_err().to_string();

        assert!(
            text.starts_with("error parsing regexp: ") && text.ends_with("`a(`"),
            "{text}"
        );
    }

    #[test]
    fn quoted_text_matches_itself_only() {
        let quoted = quote("a.b{1}|[x]");

        assert_eq!(quoted, r"a\.b\{1\}\|\[x\]");
        assert!(compile(&quoted).unwrap().is_match("a.b{1}|[x]"));
    }
}
