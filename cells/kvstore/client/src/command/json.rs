// SPDX-License-Identifier: Apache-2.0

//! Indents JSON without any other change: order of keys, escapes and numbers stay as they are in the store, which
//! parsing into a tree does not promise.

use serde::de::IgnoredAny;

/// Why a value is not JSON. The common cases have the words of Go's `encoding/json`, which scripts look for.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonError {
    #[error("unexpected end of JSON input")]
    End,
    #[error("invalid character {0} looking for beginning of value")]
    Begin(String),
    #[error("invalid character {0} after top-level value")]
    Trailing(String),
    #[error(transparent)]
    Other(serde_json::Error),
}

pub(super) fn indent(value: &[u8]) -> Result<Vec<u8>, JsonError> {
    check(value)?;
    let mut out = Vec::with_capacity(value.len() * 2);
    let mut depth = 0_usize;
    let mut bytes = value.iter().copied().peekable();
    let mut is_empty = false;
    while let Some(byte) = bytes.next() {
        if byte.is_ascii_whitespace() {
            continue;
        }
        let is_close = matches!(byte, b'}' | b']');
        if is_close {
            depth = depth.saturating_sub(1);
            if !is_empty {
                newline(&mut out, depth);
            }
        } else if is_empty {
            newline(&mut out, depth);
        }
        is_empty = false;
        out.push(byte);
        match byte {
            b'{' | b'[' => {
                depth += 1;
                is_empty = true;
            }
            b',' => newline(&mut out, depth),
            b':' => out.push(b' '),
            b'"' => {
                while let Some(byte) = bytes.next() {
                    out.push(byte);
                    match byte {
                        b'\\' => out.extend(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(out)
}

fn newline(out: &mut Vec<u8>, depth: usize) {
    out.push(b'\n');
    out.extend(std::iter::repeat_n(b' ', depth * 2));
}

fn check(value: &[u8]) -> Result<(), JsonError> {
    let error = match serde_json::from_slice::<IgnoredAny>(value) {
        Ok(IgnoredAny) => return Ok(()),
        Err(error) => error,
    };
    if error.is_eof() {
        return Err(JsonError::End);
    }
    let start = value.iter().position(|byte| !byte.is_ascii_whitespace());
    let begins = start.is_some_and(|at| {
        matches!(
            value[at],
            b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'
        )
    });
    if !begins {
        return Err(JsonError::Begin(quoted(value, start)));
    }
    if error.to_string().starts_with("trailing characters") {
        let lines = value.split_inclusive(|byte| *byte == b'\n');
        let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let at = (before + error.column()).checked_sub(1);
        return Err(JsonError::Trailing(quoted(value, at)));
    }
    Err(JsonError::Other(error))
}

/// The character at a position, as Go quotes it.
fn quoted(value: &[u8], at: Option<usize>) -> String {
    let byte = at.and_then(|at| value.get(at)).copied().unwrap_or_default();
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => r#"'"'"#.to_owned(),
        _ => format!("{:?}", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> String {
        match indent(value.as_bytes()) {
            Ok(text) => String::from_utf8(text).expect("it was UTF-8"),
            Err(error) => format!("ERROR: {error}"),
        }
    }

    #[test]
    fn indents_and_changes_nothing_else() {
        for (value, expected) in [
            ("1", "1"),
            (" {} ", "{}"),
            ("[ ]", "[]"),
            (r#"{"b":1.0,"a":[]}"#, "{\n  \"b\": 1.0,\n  \"a\": []\n}"),
            (
                r#"[{"x":[1,2]},{}]"#,
                "[\n  {\n    \"x\": [\n      1,\n      2\n    ]\n  },\n  {}\n]",
            ),
            (
                r#"{"k":"a,{\u003c\"]","k":12345678901234567890123}"#,
                "{\n  \"k\": \"a,{\\u003c\\\"]\",\n  \"k\": 12345678901234567890123\n}",
            ),
            ("{ \"a\" :\n null }", "{\n  \"a\": null\n}"),
        ] {
            assert_eq!(text(value), expected);
        }
    }

    #[test]
    fn what_is_not_json_is_named() {
        for (value, expected) in [
            ("", "unexpected end of JSON input"),
            ("{\"a\":", "unexpected end of JSON input"),
            ("value1", "invalid character 'v' looking for beginning of value"),
            (
                " k8s:a=b;",
                "invalid character 'k' looking for beginning of value",
            ),
            ("1 x", "invalid character 'x' after top-level value"),
            ("1\n {}\n\n y", "invalid character '{' after top-level value"),
            ("2026-01-01", "invalid character '-' after top-level value"),
        ] {
            assert_eq!(text(value), format!("ERROR: {expected}"));
        }
        assert!(text("{a:1}").starts_with("ERROR: "));
    }

    proptest::proptest! {
        #[test]
        fn indented_json_is_the_same_json(depth in 0_u32..5, seed in 0_u64..10_000) {
            let value = random(&mut fastrand::Rng::with_seed(seed), depth);
            let compact = value.to_string();
            let pretty = serde_json::to_string_pretty(&value).expect("it is JSON");
            proptest::prop_assert_eq!(&text(&compact), &pretty);
            proptest::prop_assert_eq!(&text(&pretty), &pretty);
        }
    }

    fn random(rng: &mut fastrand::Rng, depth: u32) -> serde_json::Value {
        match if depth == 0 { rng.u8(0..4) } else { rng.u8(0..6) } {
            0 => serde_json::Value::Null,
            1 => rng.i32(..).into(),
            2 => rng.bool().into(),
            3 => ["", "a b", "\"", "\\", "{[,:", "ä\n"][rng.usize(0..6)].into(),
            4 => (0..rng.usize(0..4)).map(|_| random(rng, depth - 1)).collect(),
            _ => serde_json::Value::Object(
                (0..rng.usize(0..4))
                    .map(|key| (format!("k{key}"), random(rng, depth - 1)))
                    .collect(),
            ),
        }
    }
}
