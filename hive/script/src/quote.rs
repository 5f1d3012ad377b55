// SPDX-License-Identifier: Apache-2.0

//! Go's quoted texts.

/// Reads `text` as the inside of a Go string in double quotes.
pub(crate) fn unquote(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' | '\n' => return None,
            '\\' => unescape(&mut chars, &mut out)?,
            c => push(&mut out, c),
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

fn unescape(chars: &mut std::str::Chars<'_>, out: &mut Vec<u8>) -> Option<()> {
    let c = chars.next()?;
    let byte = match c {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' => b'\\',
        '"' => b'"',
        'x' => u8::try_from(digits(chars, 2, 16)?).ok()?,
        'u' | 'U' => {
            push(
                out,
                char::from_u32(digits(chars, if c == 'u' { 4 } else { 8 }, 16)?)?,
            );
            return Some(());
        }
        '0'..='7' => {
            let high = c.to_digit(8)?;
            u8::try_from(high * 64 + digits(chars, 2, 8)?).ok()?
        }
        _ => return None,
    };
    out.push(byte);
    Some(())
}

fn digits(chars: &mut std::str::Chars<'_>, count: usize, base: u32) -> Option<u32> {
    (0..count).try_fold(0_u32, |value, _| {
        value
            .checked_mul(base)?
            .checked_add(chars.next()?.to_digit(base)?)
    })
}

fn push(out: &mut Vec<u8>, c: char) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Go's `%#q`: in back quotes where that is possible.
pub(crate) fn back_quote(text: &str) -> String {
    if text.contains('`') || text.chars().any(|c| c.is_control() && c != '\t') {
        format!("{text:?}")
    } else {
        format!("`{text}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read() {
        assert_eq!(
            unquote(r#"a\n\t\"\\\x41\u00e9\101"#).as_deref(),
            Some("a\n\t\"\\AéA")
        );
        for bad in ["\"", r"\q", r"\x4", r"\", r"\'"] {
            assert_eq!(unquote(bad), None, "{bad}");
        }
    }

    #[test]
    fn back_quotes_are_preferred() {
        assert_eq!(back_quote("(?m)a\"b"), "`(?m)a\"b`");
        assert_eq!(back_quote("a`b"), "\"a`b\"");
    }
}
