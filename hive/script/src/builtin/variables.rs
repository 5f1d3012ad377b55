// SPDX-License-Identifier: Apache-2.0

//! `echo`, `env`, `stop` and `skip`.

use crate::{CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Spec, function};

pub(super) fn commands() -> [CommandHandle; 3] {
    [
        function(
            Spec::new("echo", "Write arguments to the stdout buffer").args("strings..."),
            |_, inv| Ok(Outcome::stdout(format!("{}\n", inv.args().join(" ")))),
        ),
        function(
            Spec::new("env", "Set or print variables")
                .args("[key[=value]...]")
                .detail("Without arguments all variables are printed.")
                .detail("With --from-stdout the stdout buffer, trimmed, becomes the value of each key.")
                .flag(Flag::bool("from-stdout", "Take the value from the stdout buffer")),
            run_env,
        ),
        function(
            Spec::new("stop", "End the script as a success").args("[message]"),
            |_, inv| message(inv).map(Outcome::Stop),
        ),
    ]
}

pub(super) fn skip() -> CommandHandle {
    function(
        Spec::new("skip", "End the script and mark it as skipped").args("[message]"),
        |_, inv| message(inv).map(Outcome::Skip),
    )
}

fn message(inv: &Invocation) -> Result<String, CommandError> {
    match inv.args() {
        [] => Ok(String::new()),
        [message] => Ok(message.clone()),
        _ => Err(CommandError::usage("")),
    }
}

fn run_env(cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    if inv.bool("from-stdout") {
        if inv.args().is_empty() {
            return Err(CommandError::usage("expected at least one key"));
        }
        let value = cx.stdout().trim().to_owned();
        for key in inv.args() {
            cx.environment_mut().set(key.clone(), value.clone());
        }
        return Ok(Outcome::Silent);
    }
    let mut printed = None::<String>;
    if inv.args().is_empty() {
        printed = Some(
            cx.environment()
                .iter()
                .map(|(key, value)| format!("{key}={value}\n"))
                .collect(),
        );
    }
    for arg in inv.args() {
        match arg.split_once('=') {
            Some((key, value)) => cx.environment_mut().set(key, value),
            None => {
                let value = cx.environment().get(arg).unwrap_or_default();
                let line = format!("{arg}={value}\n");
                printed.get_or_insert_default().push_str(&line);
            }
        }
    }
    Ok(printed.map_or(Outcome::Silent, Outcome::stdout))
}
