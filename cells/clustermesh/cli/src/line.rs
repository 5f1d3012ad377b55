// SPDX-License-Identifier: Apache-2.0

//! Command lines of sub-commands that are no servers.

use std::time::Duration;

use clap::{Command, Parser};

/// Reads options from the arguments of a sub-command, such as `skep-operator status`.
///
/// # Errors
///
/// The exit code, after help or the error was printed.
pub fn parse<T: Parser>(command: &str, args: impl IntoIterator<Item = String>) -> Result<T, u8> {
    let name = std::iter::once(command.to_owned());
    T::try_parse_from(name.chain(args)).map_err(|error| {
        // Help and errors alike; nothing can be done if the terminal is gone.
        let _ = error.print();
        u8::from(error.use_stderr()) * hive::exit::USAGE
    })
}

/// Moves the sub-commands of a command line in front of flags, which may stand before, between and behind them.
pub fn words_first(line: &Command, args: Vec<String>) -> Vec<String> {
    let (mut words, mut others) = (Vec::new(), Vec::new());
    let mut at = line;
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            others.push(arg);
            break;
        }
        if arg.starts_with('-') {
            let takes_next = has_value(line, &arg);
            others.push(arg);
            if takes_next {
                others.extend(args.next());
            }
        } else if let Some(next) = at.find_subcommand(&arg) {
            at = next;
            words.push(arg);
        } else {
            others.push(arg);
            break;
        }
    }
    words.into_iter().chain(others).chain(args).collect()
}

/// Whether the argument behind a flag is its value, in any of the sub-commands.
fn has_value(line: &Command, flag: &str) -> bool {
    let is_it = |arg: &clap::Arg| match flag.strip_prefix("--") {
        Some(name) => arg.get_long() == Some(name),
        None => arg
            .get_short()
            .is_some_and(|short| flag.strip_prefix('-') == Some(short.to_string().as_str())),
    };
    let own = line.get_arguments().find(|arg| is_it(arg));
    own.is_some_and(|arg| arg.get_action().takes_values())
        || line.get_subcommands().any(|command| has_value(command, flag))
}

/// Prints a report, or why `program` has none; the exit code is 0 if all is well.
pub fn report<E: std::error::Error + 'static>(program: &str, result: Result<(String, bool), E>) -> u8 {
    match result {
        Ok((text, is_healthy)) => {
            hive::console::print(text);
            u8::from(!is_healthy)
        }
        Err(error) => failed(program, &error),
    }
}

/// Prints an error; returns the exit code.
pub fn failed(program: &str, error: &(dyn std::error::Error + 'static)) -> u8 {
    hive::console::error_line(format_args!("{program}: {}", hive::error_chain(error)));
    1
}

/// A duration in Go's form, such as `5s`.
///
/// # Errors
///
/// What is wrong with it.
pub fn duration(text: &str) -> Result<Duration, String> {
    skep_duration::parse_duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn line() -> Command {
        let server = Arg::new("server").long("server").short('s');
        let verbose = Arg::new("verbose").long("verbose").action(ArgAction::SetTrue);
        let clustermesh = Command::new("clustermesh").args([server, verbose]);
        Command::new("program")
            .arg(Arg::new("folder").long("folder"))
            .subcommand(Command::new("status").subcommand(clustermesh))
            .subcommand(Command::new("shell"))
    }

    #[test]
    fn sub_commands_are_found_between_flags() {
        let moved = |text: &str| {
            let args = text.split(' ').map(str::to_owned).collect();
            words_first(&line(), args).join(" ")
        };

        for (text, expected) in [
            ("status clustermesh -s here", "status clustermesh -s here"),
            (
                "-s here status --verbose clustermesh",
                "status clustermesh -s here --verbose",
            ),
            ("--folder status shell help", "shell --folder status help"),
            ("--folder=x status", "status --folder=x"),
            ("--verbose status clustermesh", "status clustermesh --verbose"),
            // Not a sub-command, and what is behind it is none either.
            ("hive status", "hive status"),
            ("shell status clustermesh", "shell status clustermesh"),
            ("--folder x -- status", "--folder x -- status"),
        ] {
            assert_eq!(moved(text), expected, "{text}");
        }
    }
}
