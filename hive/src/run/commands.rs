// SPDX-License-Identifier: Apache-2.0

//! Sub-commands that show a program instead of running it.

use super::{exit, refuse};
use crate::assembly::Hive;
use crate::config::Settings;
use crate::console;
use crate::finding::Code;
use crate::show::{GraphFormat, GraphView};

/// What stands in place of flags alone, or between them.
const WORDS: [&str; 3] = ["hive", "help", "version"];
/// Flags of `hive` commands that have a value.
const DRAWING: [&str; 4] = ["format", "module", "from", "depth"];

/// Moves sub-commands to the front, with the command of `hive`: flags may stand before, between and behind them. `has_value`
/// says whether a flag of the program takes the next argument as its value.
pub(super) fn words_first(args: Vec<String>, has_value: impl Fn(&str) -> bool) -> Vec<String> {
    let (mut words, mut others): (Vec<String>, Vec<String>) = Default::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let is_word = match words.first().map(String::as_str) {
            None => WORDS.contains(&arg.as_str()),
            Some(word) => word == "hive" && words.len() == 1 && !arg.starts_with('-'),
        };
        if is_word {
            words.push(arg);
            continue;
        }
        let flag = arg.strip_prefix("--").filter(|flag| !flag.is_empty());
        let takes_next = flag.is_some_and(|flag| DRAWING.contains(&flag) || has_value(flag));
        let is_last = !arg.starts_with('-') || arg == "--";
        others.push(arg);
        if takes_next {
            others.extend(args.next());
        } else if is_last {
            break;
        }
    }
    words.into_iter().chain(others).chain(args).collect()
}

/// Whether there may be a sub-command behind flags.
pub(super) fn may_have_words(args: &[String]) -> bool {
    args.iter().any(|arg| WORDS.contains(&arg.as_str()))
}

/// A sub-command that shows the hive instead of running it.
pub(super) struct Introspection {
    command: String,
    view: GraphView,
    json: bool,
    variants: bool,
    strict: bool,
    stats: bool,
    schema: bool,
}

impl Introspection {
    /// Takes `hive [command]` and its flags out of the arguments.
    pub(super) fn take(args: Vec<String>) -> Result<(Vec<String>, Option<Self>), String> {
        if args.first().map(String::as_str) != Some("hive") {
            return Ok((args, None));
        }
        let mut rest = args.into_iter().skip(1).peekable();
        let command = match rest.peek() {
            Some(word) if !word.starts_with('-') => rest.next().unwrap_or_default(),
            _ => "tree".to_owned(),
        };
        const COMMANDS: [&str; 9] = [
            "tree",
            "check",
            "plan",
            "graph",
            "dot-graph",
            "config",
            "catalogue",
            "docs",
            "cells",
        ];
        if !COMMANDS.contains(&command.as_str()) {
            let near = crate::similar::closest(&command, COMMANDS.into_iter());
            let hint = near
                .map(|near| format!("; did you mean `{near}`?"))
                .unwrap_or_default();
            return Err(format!("unknown command `hive {command}`{hint}"));
        }
        let mut this = Self {
            command,
            view: GraphView::default(),
            json: false,
            variants: false,
            strict: false,
            stats: false,
            schema: false,
        };
        let mut others = Vec::new();
        while let Some(arg) = rest.next() {
            let (name, value) = match arg.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (arg.clone(), None),
            };
            let drawing = matches!(this.command.as_str(), "graph" | "dot-graph");
            match name.as_str() {
                "--json" if matches!(this.command.as_str(), "check" | "config") => this.json = true,
                "--variants" if this.command == "check" => this.variants = true,
                "--strict" if this.command == "check" => this.strict = true,
                "--stats" if this.command == "check" => this.stats = true,
                "--schema" if this.command == "config" => this.schema = true,
                "--format" | "--module" | "--from" | "--depth" if drawing => {
                    let value = value
                        .or_else(|| rest.next())
                        .ok_or_else(|| format!("{name} needs a value"))?;
                    match name.as_str() {
                        "--format" => this.view.format = value.parse::<GraphFormat>()?,
                        "--module" => this.view.module = Some(value),
                        "--from" => this.view.from = Some(value),
                        _ => {
                            let depth = value
                                .parse()
                                .map_err(|_| format!("--depth: `{value}` is not a number"))?;
                            this.view.depth = Some(depth);
                        }
                    }
                }
                _ => others.push(arg),
            }
        }
        Ok((others, Some(this)))
    }

    pub(super) fn print(self, hive: Hive, settings: Settings, name: &str, env_prefix: &str) -> u8 {
        if self.command == "check" {
            return self.check(hive, settings);
        }
        let plan = match hive.clone().plan(settings.clone()) {
            Ok(plan) => plan,
            // A reference has no values of settings that must be given.
            Err(report)
                if self.command == "docs" && report.errors().all(|finding| finding.code == Code::Invalid) =>
            {
                console::print(crate::show::docs_of_unplanned(&hive, &settings, env_prefix));
                return exit::OK;
            }
            Err(report) => return refuse(&report),
        };
        console::print(match self.command.as_str() {
            "plan" => plan.order(),
            "graph" | "dot-graph" => match plan.draw(&self.view) {
                Ok(graph) => graph,
                Err(error) => {
                    console::error_line(format_args!("error: {error}"));
                    return exit::USAGE;
                }
            },
            "config" if self.schema => plan.schema(name),
            "config" if self.json => plan.config_json(),
            "config" => plan.show_config(),
            "catalogue" => plan.catalogue(),
            "docs" => plan.docs(env_prefix),
            _ => plan.tree(),
        });
        exit::OK
    }

    fn check(&self, hive: Hive, settings: Settings) -> u8 {
        let variants = if self.variants {
            hive.variants()
        } else {
            vec![(String::new(), hive)]
        };
        let mut code = exit::OK;
        for (name, hive) in variants {
            let mut stats = None;
            let report = match hive.plan(settings.clone()) {
                Ok(plan) => {
                    stats = self.stats.then(|| plan.stats());
                    plan.report().clone()
                }
                Err(report) => report,
            };
            if !report.is_ok() || (self.strict && !report.findings().is_empty()) {
                code = exit::PLAN;
            }
            if !name.is_empty() {
                console::print(format_args!("with {name}:\n"));
            }
            console::print(if self.json {
                report.to_json()
            } else {
                format!("{report}\n")
            });
            if let Some(stats) = stats {
                console::print(&stats);
            }
        }
        code
    }
}
