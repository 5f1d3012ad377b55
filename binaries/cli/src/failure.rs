// SPDX-License-Identifier: Apache-2.0

//! How a command ends that does not succeed: texts and exit statuses of Cilium's command.

use std::process::ExitCode;

use clap::{
    Command, CommandFactory, error::ContextKind, error::ContextValue, error::ErrorKind as ParseErrorKind,
};

use crate::command::Line;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The text follows `Error: ` on the standard error.
    #[error("{0}")]
    Fatal(String),
    /// The arguments are incomplete: the help of the command is printed, too. Words that lead to the command.
    #[error("{text}")]
    Usage { command: &'static str, text: String },
    /// The text is a line of the standard output.
    #[error("{0}")]
    Printed(String),
    /// The text is a line of the standard error, without `Error: `.
    #[error("{0}")]
    Bare(String),
}

/// An error with this text.
pub(crate) fn fatal(text: impl Into<String>) -> Failure {
    Failure::Fatal(text.into())
}

/// Incomplete arguments of a command, such as `endpoint get`.
pub(crate) fn usage(command: &'static str, text: &str) -> Failure {
    Failure::Usage {
        command,
        text: text.to_owned(),
    }
}

/// Prints why a command failed.
pub(crate) fn report(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    match error.downcast_ref::<Failure>() {
        Some(Failure::Printed(text)) => println!("{text}"),
        Some(Failure::Bare(text)) => eprintln!("{text}"),
        Some(Failure::Usage { command, text }) => {
            eprintln!("Error: {text}\n");
            println!("{}", help(command.split(' ')));
        }
        _ => {
            let mut text = format!("Error: {error}");
            let mut cause = error.source();
            while let Some(next) = cause {
                text.push_str(&format!(": {next}"));
                cause = next.source();
            }
            eprintln!("{text}");
        }
    }
    ExitCode::FAILURE
}

/// Prints why arguments are no command line, or the help that they ask for.
pub(crate) fn refuse(error: &clap::Error, arguments: &[String]) -> ExitCode {
    let words = command_words(arguments);
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    match error.kind() {
        ParseErrorKind::DisplayHelp | ParseErrorKind::DisplayVersion => {
            print!("{error}");
            ExitCode::SUCCESS
        }
        ParseErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ParseErrorKind::MissingSubcommand => {
            println!("{}", help(words.iter().map(String::as_str)));
            ExitCode::SUCCESS
        }
        // `skep health` is a program of its own in Cilium.
        ParseErrorKind::InvalidSubcommand if words.is_empty() || words == ["health"] => {
            let word = context(ContextKind::InvalidSubcommand);
            let program = [&["skep".to_owned()], &words[..]].concat().join(" ");
            let text = format!("unknown command \"{word}\" for \"{program}\"");
            println!("{text}");
            eprintln!("Error: {text}\nRun '{program} --help' for usage.");
            ExitCode::FAILURE
        }
        ParseErrorKind::InvalidSubcommand => {
            println!("{}", help(words.iter().map(String::as_str)));
            ExitCode::SUCCESS
        }
        ParseErrorKind::UnknownArgument => {
            let word = context(ContextKind::InvalidArg);
            match word.strip_prefix("--") {
                Some(_) => eprintln!("Error: unknown flag: {word}"),
                None if word.starts_with('-') => {
                    let letter = word.chars().nth(1).unwrap_or('-');
                    eprintln!("Error: unknown shorthand flag: '{letter}' in {word}");
                }
                None => eprintln!("Error: unknown argument: {word}"),
            }
            println!("{}", help(words.iter().map(String::as_str)));
            ExitCode::FAILURE
        }
        _ => {
            let text = error.to_string();
            eprint!("Error: {}", text.strip_prefix("error: ").unwrap_or(&text));
            ExitCode::FAILURE
        }
    }
}

/// The words of the command among these arguments, as far as they are known.
fn command_words(arguments: &[String]) -> Vec<String> {
    let root = Line::command();
    let takes_value = |word: &str| {
        root.get_arguments().any(|arg| {
            let long = arg.get_long().is_some_and(|long| word == format!("--{long}"));
            let short = arg.get_short().is_some_and(|short| word == format!("-{short}"));
            (long || short) && arg.get_action().takes_values()
        })
    };
    let mut command = &root;
    let mut words = Vec::new();
    let mut previous = "";
    for word in arguments {
        let is_value = takes_value(previous);
        previous = word;
        if is_value || word.starts_with('-') {
            continue;
        }
        match command.find_subcommand(word) {
            Some(found) => {
                words.push(found.get_name().to_owned());
                command = found;
            }
            None => break,
        }
    }
    words
}

/// The help of a command.
fn help<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut root = Line::command();
    root.build();
    let mut command: &Command = &root;
    for word in words {
        match command.find_subcommand(word) {
            Some(found) => command = found,
            None => break,
        }
    }
    command.clone().render_help().to_string()
}
