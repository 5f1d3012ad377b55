// SPDX-License-Identifier: Apache-2.0

//! `cmp`, `cmpenv` and `empty`.

use std::io;

use crate::{CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Spec, diff, function};

/// Repetitions after which update mode takes an actual text for the final one.
const RETRIES_BEFORE_UPDATE: u32 = 2;

pub(super) fn commands() -> [CommandHandle; 3] {
    let compare = |name, summary| {
        Spec::new(name, summary)
            .args("file1 file2")
            .detail("By convention, file1 is the actual and file2 the expected text.")
            .detail("File1 may be 'stdout' or 'stderr', which takes that buffer.")
            .flag(Flag::bool("quiet", "Print no diff").short('q'))
            .flag(Flag::bool("ignore-whitespace", "Treat runs of whitespace as one").short('w'))
    };
    [
        function(compare("cmp", "Compare files"), |cx, inv| run_cmp(cx, inv, false)),
        function(
            compare("cmpenv", "Compare files with variables expanded"),
            |cx, inv| run_cmp(cx, inv, true),
        ),
        function(
            Spec::new("empty", "Check that a file is empty")
                .args("file")
                .detail("The file may be 'stdout' or 'stderr'. A file that does not exist is empty.")
                .flag(Flag::bool("quiet", "Print no diff").short('q'))
                .flag(Flag::bool("trim", "Drop newlines first").short('t')),
            run_empty,
        ),
    ]
}

/// The content of a buffer or a file.
fn read(cx: &Context<'_>, name: &str) -> Result<String, CommandError> {
    match name {
        "stdout" => Ok(cx.stdout().to_owned()),
        "stderr" => Ok(cx.stderr().to_owned()),
        _ => cx
            .read_file(name)
            .map_err(|error| CommandError::io("open", cx.path(name), &error)),
    }
}

fn run_cmp(cx: &mut Context<'_>, inv: &Invocation, expands: bool) -> Result<Outcome, CommandError> {
    let [name1, name2] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    let text1 = read(cx, name1)?;
    let text2 = cx
        .read_file(name2)
        .map_err(|error| CommandError::io("open", cx.path(name2), &error))?;
    let prepare = |text: &str| {
        let text = if expands { cx.expand(text) } else { text.to_owned() };
        if inv.bool("ignore-whitespace") {
            collapse(&text)
        } else {
            text
        }
    };
    let (shown1, shown2) = (prepare(&text1), prepare(&text2));
    if shown1 == shown2 {
        return Ok(Outcome::Silent);
    }
    if cx.is_update() && update(cx, (name1, &text1), (name2, &text2))? {
        return Ok(Outcome::Silent);
    }
    if !inv.bool("quiet") {
        cx.log(format!("{}\n", diff(name1, &shown1, name2, &shown2)));
    }
    Err(CommandError::new(format_args!("{name1} and {name2} differ")))
}

/// Replaces the expected text in update mode; `false` if that is not to be done (yet).
fn update(cx: &mut Context<'_>, actual: (&str, &str), expected: (&str, &str)) -> Result<bool, CommandError> {
    let is_buffer = |name: &str| matches!(name, "stdout" | "stderr");
    // Written the wrong way round: the file of the archive is the expected one.
    let swapped = !is_buffer(actual.0) && cx.is_archive_file(actual.0) && !cx.is_archive_file(expected.0);
    let (actual, expected) = if swapped {
        (expected, actual)
    } else {
        (actual, expected)
    };
    if actual.1.is_empty() || expected.1.is_empty() {
        cx.log("cmp: refusing to update empty files, use 'empty' command instead\n");
        return Ok(false);
    }
    if cx.repeats() && cx.retries() < RETRIES_BEFORE_UPDATE {
        return Ok(false);
    }
    cx.update_file(expected.0, actual.1)
        .map_err(|error| CommandError::io("open", cx.path(expected.0), &error))?;
    Ok(true)
}

/// Trims every line and makes one space of each run of blanks.
fn collapse(text: &str) -> String {
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    lines.join("\n")
}

fn run_empty(cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    let [name] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    let text = match name.as_str() {
        "stdout" => cx.stdout().to_owned(),
        "stderr" => cx.stderr().to_owned(),
        _ => match cx.read_file(name) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(CommandError::io("open", cx.path(name), &error)),
        },
    };
    let text = if inv.bool("trim") {
        text.trim_matches('\n')
    } else {
        &text
    };
    if text.is_empty() {
        return Ok(Outcome::Silent);
    }
    if !inv.bool("quiet") {
        cx.log(format!("{}\n", diff(name, text, "<empty>", "")));
    }
    Err(CommandError::new(format_args!("{name} is not empty")))
}
