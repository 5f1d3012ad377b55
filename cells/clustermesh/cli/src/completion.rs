// SPDX-License-Identifier: Apache-2.0

//! Completion scripts of programs whose servers are hives.

use clap::{Arg, ArgAction, Args, Command};
use hive::Program;

/// Which script.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Shell.
    pub shell: clap_complete::Shell,
}

/// The command line of a server or of a whole program, with its flags and the command `hive`.
pub fn of_program(name: &'static str, program: &Program) -> Command {
    let flags = program.flags();
    // Names of flags are short, and there is one command line in the life of a program.
    let flags = flags.into_iter().map(|flag| {
        let action = if flag.is_bool {
            ArgAction::SetTrue
        } else {
            ArgAction::Set
        };
        Arg::new(flag.name.clone())
            .long(flag.name)
            .help(flag.help)
            .action(action)
    });
    let hive = Command::new("hive").about("Show the program instead of running it");
    // Flags of the program come before a sub-command of its own.
    Command::new(name).args(flags).subcommand(hive)
}

/// The completion script of a program for a shell.
pub fn script(options: &Options, program: &str, mut line: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut line, program, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use hive::Cell;

    use super::*;

    #[test]
    fn scripts_have_the_flags_and_commands_of_a_program() {
        let program = Program::new("greeter", [Cell::module("hello", "Greets")]);
        for shell in ["bash", "zsh", "fish", "powershell"] {
            let options = Options {
                shell: shell.parse().expect("it is a shell"),
            };
            let line = of_program("greeter", &program).subcommand(Command::new("wave"));

            let script = script(&options, "greeter", line);

            for word in ["config-dir", "hive", "wave"] {
                assert!(script.contains(word), "{shell}: {word} in {script}");
            }
        }
    }
}
