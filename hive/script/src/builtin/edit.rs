// SPDX-License-Identifier: Apache-2.0

//! `replace` and `sed`, which change files in place.

use crate::quote::unquote;
use crate::{CommandError, CommandHandle, Context, Invocation, Outcome, Spec, function, regexp};

pub(super) fn commands() -> [CommandHandle; 2] {
    [
        function(
            Spec::new("replace", "Replace texts in a file")
                .args("[old new]... file")
                .detail("All replacements are made in one pass. Texts may hold escapes such as \\n and \\t."),
            run_replace,
        ),
        function(
            Spec::new("sed", "Replace a regular expression in every line of a file")
                .args("'pattern' replacement file")
                .detail("$1 and ${1} in the replacement stand for groups of the pattern.")
                .regexp(),
            run_sed,
        ),
    ]
}

fn run_replace(cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    let (Some((file, texts)), true) = (inv.args().split_last(), inv.args().len() % 2 == 1) else {
        return Err(CommandError::usage(""));
    };
    let texts: Vec<String> = texts
        .iter()
        .map(|text| unquote(text).ok_or_else(|| CommandError::new("invalid syntax")))
        .collect::<Result<_, _>>()?;
    let pairs: Vec<(&str, &str)> = texts
        .chunks_exact(2)
        .map(|pair| (pair[0].as_str(), pair[1].as_str()))
        .collect();
    rewrite(cx, file, |text| replace_all(text, &pairs))
}

/// Replaces at every position the first of `pairs` that matches there.
fn replace_all(text: &str, pairs: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        match pairs.iter().find(|(old, _)| rest.starts_with(old)) {
            Some((old, new)) => {
                out.push_str(new);
                if !old.is_empty() {
                    rest = &rest[old.len()..];
                    if rest.is_empty() && !pairs.iter().any(|(old, _)| old.is_empty()) {
                        return out;
                    }
                    continue;
                }
            }
            None if rest.is_empty() => return out,
            None => {}
        }
        let Some(c) = rest.chars().next() else { return out };
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
}

fn run_sed(cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    let [pattern, replacement, file] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    let regex = regexp::compile(pattern).map_err(CommandError::new)?;
    rewrite(cx, file, |text| {
        let mut out = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let (line, newline) = match line.strip_suffix('\n') {
                Some(line) => (line, "\n"),
                None => (line, ""),
            };
            out.push_str(&regex.replace_all(line, replacement.as_str()));
            out.push_str(newline);
        }
        out
    })
}

fn rewrite(
    cx: &mut Context<'_>,
    file: &str,
    change: impl FnOnce(&str) -> String,
) -> Result<Outcome, CommandError> {
    let failed = |error| CommandError::io("open", cx.path(file), &error);
    let text = cx.read_file(file).map_err(failed)?;
    cx.write_file(file, change(&text)).map_err(failed)?;
    Ok(Outcome::Silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacements_do_not_see_each_other() {
        assert_eq!(replace_all("a b a", &[("a", "b"), ("b", "a")]), "b a b");
        assert_eq!(replace_all("aab", &[("aa", "1"), ("a", "2")]), "1b");
        assert_eq!(replace_all("ab", &[("", "-")]), "-a-b-");
        assert_eq!(replace_all("ab", &[("b", "")]), "a");
    }
}
