// SPDX-License-Identifier: Apache-2.0

//! `grep`, `stdout` and `stderr`.

use crate::quote::back_quote;
use crate::{CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Spec, function, regexp};

pub(super) fn commands() -> [CommandHandle; 3] {
    let search = |name, summary, args| {
        Spec::new(name, summary)
            .args(args)
            .detail("The pattern is a regular expression in which ^ and $ match at lines.")
            .flag(Flag::bool("quiet", "Do not print the matching line").short('q'))
            .flag(Flag::int(
                "count",
                0,
                "Fail unless there are exactly this many matches",
            ))
            .regexp()
    };
    [
        function(
            search("grep", "Find a pattern in a file", "'pattern' file"),
            run_grep,
        ),
        function(
            search("stdout", "Find a pattern in the stdout buffer", "'pattern'"),
            |cx, inv| {
                let text = cx.stdout().to_owned();
                run_buffer(cx, inv, &text, "stdout")
            },
        ),
        function(
            search("stderr", "Find a pattern in the stderr buffer", "'pattern'"),
            |cx, inv| {
                let text = cx.stderr().to_owned();
                run_buffer(cx, inv, &text, "stderr")
            },
        ),
    ]
}

fn run_grep(cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    let [pattern, file] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    let regex = compile(pattern)?;
    let text = cx
        .read_file(file)
        .map_err(|error| CommandError::io("open", cx.path(file), &error))?;
    find(cx, inv, &regex, (pattern, file), &text)
}

fn run_buffer(
    cx: &mut Context<'_>,
    inv: &Invocation,
    text: &str,
    name: &str,
) -> Result<Outcome, CommandError> {
    let [pattern] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    let regex = compile(pattern)?;
    find(cx, inv, &regex, (pattern, name), text)
}

fn compile(pattern: &str) -> Result<regex::Regex, CommandError> {
    regexp::compile(&format!("(?m){pattern}")).map_err(CommandError::new)
}

fn find(
    cx: &mut Context<'_>,
    inv: &Invocation,
    regex: &regex::Regex,
    (pattern, name): (&str, &str),
    text: &str,
) -> Result<Outcome, CommandError> {
    let shown = back_quote(&format!("(?m){pattern}"));
    if let Ok(wanted @ 1..) = usize::try_from(inv.int("count")) {
        let found = regex.find_iter(text).count();
        if found != wanted {
            return Err(CommandError::new(format_args!(
                "found {found} matches for {shown} in {name}"
            )));
        }
        return Ok(Outcome::Silent);
    }
    let Some(found) = regex.find(text) else {
        return Err(CommandError::new(format_args!("no match for {shown} in {name}")));
    };
    if !inv.bool("quiet") {
        let start = text[..found.start()].rfind('\n').map_or(0, |at| at + 1);
        let end = text[found.end()..]
            .find('\n')
            .map_or(text.len(), |at| found.end() + at);
        let lines = text[start..end]
            .strip_suffix('\n')
            .unwrap_or(&text[start..end])
            .to_owned();
        cx.log(format!("matched: {lines}\n"));
    }
    Ok(Outcome::Silent)
}
