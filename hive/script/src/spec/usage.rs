// SPDX-License-Identifier: Apache-2.0

//! The help texts of a command.

use std::fmt::Write;

use super::{Flag, FlagKind, FlagValue, Spec};

/// Columns at which details are wrapped.
const DETAIL_WIDTH: usize = 60;

impl Spec {
    /// One line: name, flags, arguments, and `&` if it may run in the background.
    pub fn usage(&self) -> String {
        let mut out = self.name.clone();
        let visible = || self.flags.iter().filter(|flag| !flag.hidden);
        let letters: String = visible().filter_map(|flag| flag.short).collect();
        if !letters.is_empty() {
            let _ = write!(out, " [-{letters}]");
        }
        for flag in visible() {
            let _ = match flag.default.kind() {
                FlagKind::Bool => write!(out, " [--{}]", flag.name),
                kind => write!(out, " [--{}={kind}]", flag.name),
            };
        }
        if !self.args.is_empty() {
            let _ = write!(out, " {}", self.args);
        }
        if self.asynchronous {
            out.push_str(" [&]");
        }
        out
    }

    /// The entry in the list of commands, with details and flags if `verbose`.
    pub fn help(&self, verbose: bool) -> String {
        let mut out = format!("{}\n\t{}\n", self.usage(), self.summary);
        if !verbose {
            return out;
        }
        if !self.details.is_empty() {
            out.push('\n');
            for detail in &self.details {
                for line in wrap(detail) {
                    let _ = writeln!(out, "\t{line}");
                }
            }
        }
        let flags = self.flag_usages();
        if !flags.is_empty() {
            out.push_str("\n\tFlags:\n");
            for line in flags.lines() {
                let _ = writeln!(out, "\t{line}");
            }
            out.push_str("\t\n");
        }
        out
    }

    /// The flags in the layout of pflag, sorted by name.
    fn flag_usages(&self) -> String {
        let mut flags: Vec<&Flag> = self.flags.iter().filter(|flag| !flag.hidden).collect();
        flags.sort_by(|a, b| a.name.cmp(&b.name));
        let heads: Vec<String> = flags.iter().map(|flag| flag_head(flag)).collect();
        let width = heads.iter().map(|head| head.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for (flag, head) in flags.iter().zip(&heads) {
            let _ = write!(out, "{head:width$}   {}", flag.help);
            if !flag.default.is_zero() {
                let _ = match &flag.default {
                    FlagValue::String(value) => write!(out, " (default {value:?})"),
                    value => write!(out, " (default {value})"),
                };
            }
            out.push('\n');
        }
        out
    }
}

fn flag_head(flag: &Flag) -> String {
    let mut head = match flag.short {
        Some(letter) => format!("  -{letter}, --{}", flag.name),
        None => format!("      --{}", flag.name),
    };
    match flag.default.kind() {
        FlagKind::Bool => {}
        FlagKind::List => head.push_str(" strings"),
        kind => {
            let _ = write!(head, " {kind}");
        }
    }
    head
}

/// Breaks a paragraph at spaces.
pub(crate) fn wrap(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > DETAIL_WIDTH {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}
