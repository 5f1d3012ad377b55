// SPDX-License-Identifier: Apache-2.0

//! `help`.

use std::fmt::Write;

use crate::{CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Spec, function, regexp};

pub(super) fn command() -> CommandHandle {
    function(
        Spec::new("help", "List commands and conditions")
            .args("[regexp]")
            .detail(
                "With a regular expression only the commands whose name it matches are listed, with details.",
            )
            .detail("A word in brackets such as [root] explains that condition.")
            .flag(Flag::bool("verbose", "Show details and flags").short('v'))
            .flag(
                Flag::string("autocomplete", "", "Print the names of commands with this prefix").short('a'),
            ),
        run_help,
    )
}

fn run_help(cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    if inv.is_set("autocomplete") {
        let prefix = inv.string("autocomplete");
        let names = cx.commands().keys().filter(|name| name.starts_with(prefix));
        return Ok(Outcome::stdout(
            names.map(|name| format!("{name}\n")).collect::<String>(),
        ));
    }
    let mut out = String::new();
    let conditions: Vec<&str> = inv
        .args()
        .iter()
        .filter_map(|arg| arg.strip_prefix('[')?.strip_suffix(']'))
        .collect();
    let patterns: Vec<&String> = inv
        .args()
        .iter()
        .filter(|arg| !(arg.starts_with('[') && arg.ends_with(']')))
        .collect();
    let all = inv.args().is_empty();
    if all && !cx.state.conditions.is_empty() {
        out.push_str("conditions:\n\n");
    }
    for (name, condition) in &cx.state.conditions {
        let wanted = |tag: &&str| tag.trim_start_matches('!').split(':').next() == Some(name);
        if all || conditions.iter().any(wanted) {
            let suffix = if condition.takes_suffix() { ":*" } else { "" };
            let _ = write!(out, "[{name}{suffix}]\n\t{}\n", condition.summary());
        }
    }
    if let Some(unknown) = conditions.iter().find(|tag| {
        !cx.state
            .conditions
            .contains_key(tag.trim_start_matches('!').split(':').next().unwrap_or_default())
    }) {
        return Err(CommandError::new(format_args!("unknown condition {unknown:?}")));
    }
    if all {
        out.push_str("\ncommands:\n\n");
        for command in cx.commands().values() {
            out.push_str(&command.spec().help(inv.bool("verbose")));
        }
    }
    for pattern in patterns {
        let regex = regexp::compile(pattern).map_err(CommandError::new)?;
        for (_, command) in cx.commands().iter().filter(|(name, _)| regex.is_match(name)) {
            out.push_str(&command.spec().help(true));
        }
    }
    Ok(Outcome::stdout(out))
}
