// SPDX-License-Identifier: Apache-2.0

//! Reads flags anywhere between arguments, in the way of Go's pflag.

use super::{Flag, FlagKind, FlagValue, Invocation, Spec};
use crate::text::{parse_duration, parse_int};

/// Why flags could not be read. The texts are those of pflag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No such long flag.
    #[error("unknown flag: --{0}")]
    Unknown(String),
    /// No such letter in a group of short flags.
    #[error("unknown shorthand flag: {letter:?} in -{group}")]
    UnknownShort {
        /// The letter.
        letter: char,
        /// The group from the letter on.
        group: String,
    },
    /// The last word needs a value behind it.
    #[error("flag needs an argument: {0}")]
    NeedsValue(String),
    /// Three dashes, or an equals sign without a name.
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    /// The value does not fit the flag's kind.
    #[error("invalid argument {value:?} for {flag:?} flag: {reason}")]
    Invalid {
        /// The value.
        value: String,
        /// The flag's name as pflag shows it: `-o, --out`.
        flag: String,
        /// What is wrong.
        reason: String,
    },
}

/// What the words of a call ask for.
pub(crate) enum Special {
    /// To run the command.
    Run(Invocation),
    /// `-h` or `--help`.
    Help,
    /// `--autocomplete=<partial arguments>`.
    Complete(String),
}

/// What ends parsing early.
enum Stop {
    Special(Special),
    Error(FlagError),
}

impl From<FlagError> for Stop {
    fn from(error: FlagError) -> Self {
        Self::Error(error)
    }
}

impl Spec {
    /// Splits words into flags and arguments.
    ///
    /// A command without flags gets bad ones as arguments, and only loses a `--`.
    pub fn parse(&self, words: &[String]) -> Result<Invocation, FlagError> {
        match self.parse_special(words)? {
            Special::Run(call) => Ok(call),
            Special::Help => Err(FlagError::Unknown("help".to_owned())),
            Special::Complete(_) => Err(FlagError::Unknown("autocomplete".to_owned())),
        }
    }

    /// Like [`Spec::parse`], with the flags that every command has.
    pub(crate) fn parse_special(&self, words: &[String]) -> Result<Special, FlagError> {
        match self.parse_strictly(words) {
            Ok(call) => Ok(Special::Run(call)),
            Err(Stop::Special(special)) => Ok(special),
            Err(Stop::Error(_)) if self.flags.is_empty() => Ok(Special::Run(Invocation {
                args: words.to_vec(),
                values: Vec::new(),
            })),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    fn parse_strictly(&self, words: &[String]) -> Result<Invocation, Stop> {
        let values = self
            .flags
            .iter()
            .map(|flag| (flag.name.clone(), flag.default.clone(), false))
            .collect();
        let mut call = Invocation {
            args: Vec::new(),
            values,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--" {
                call.args.extend(words.by_ref().cloned());
            } else if let Some(long) = word.strip_prefix("--") {
                self.parse_long(&mut call, long, word, &mut words)?;
            } else if word.len() > 1 && word.starts_with('-') {
                self.parse_short(&mut call, &word[1..], &mut words)?;
            } else {
                call.args.push(word.clone());
            }
        }
        Ok(call)
    }

    fn parse_long<'a>(
        &self,
        call: &mut Invocation,
        text: &str,
        word: &str,
        words: &mut impl Iterator<Item = &'a String>,
    ) -> Result<(), Stop> {
        if text.starts_with(['-', '=']) {
            return Err(FlagError::Syntax(word.to_owned()).into());
        }
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let Some(flag) = self.flags.iter().find(|flag| flag.name == name) else {
            return Err(match (name, value) {
                ("help", _) => Stop::Special(Special::Help),
                ("autocomplete", Some(partial)) => Stop::Special(Special::Complete(partial.to_owned())),
                _ => FlagError::Unknown(name.to_owned()).into(),
            });
        };
        match value {
            Some(value) => call.set(flag, value)?,
            None if flag.default.kind() == FlagKind::Bool => call.set(flag, "true")?,
            None => {
                let value = words
                    .next()
                    .ok_or_else(|| FlagError::NeedsValue(word.to_owned()))?;
                call.set(flag, value)?;
            }
        }
        Ok(())
    }

    fn parse_short<'a>(
        &self,
        call: &mut Invocation,
        group: &str,
        words: &mut impl Iterator<Item = &'a String>,
    ) -> Result<(), Stop> {
        let mut rest = group;
        while let Some(letter) = rest.chars().next() {
            let Some(flag) = self.flags.iter().find(|flag| flag.short == Some(letter)) else {
                return Err(match letter {
                    'h' => Stop::Special(Special::Help),
                    _ => FlagError::UnknownShort {
                        letter,
                        group: rest.to_owned(),
                    }
                    .into(),
                });
            };
            let after = &rest[letter.len_utf8()..];
            if after.len() > 1 && after.starts_with('=') {
                return Ok(call.set(flag, &after[1..])?);
            }
            if flag.default.kind() == FlagKind::Bool {
                call.set(flag, "true")?;
                rest = after;
                continue;
            }
            if !after.is_empty() {
                return Ok(call.set(flag, after)?);
            }
            let value = words
                .next()
                .ok_or_else(|| FlagError::NeedsValue(format!("{letter:?} in -{rest}")))?;
            return Ok(call.set(flag, value)?);
        }
        Ok(())
    }
}

impl Invocation {
    fn set(&mut self, flag: &Flag, text: &str) -> Result<(), FlagError> {
        let invalid = |reason: String| FlagError::Invalid {
            value: text.to_owned(),
            flag: match flag.short {
                Some(letter) => format!("-{letter}, --{}", flag.name),
                None => format!("--{}", flag.name),
            },
            reason,
        };
        let value = match flag.default.kind() {
            FlagKind::Bool => FlagValue::Bool(match text {
                "1" | "t" | "T" | "TRUE" | "true" | "True" => true,
                "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
                _ => {
                    return Err(invalid(format!(
                        "strconv.ParseBool: parsing {text:?}: invalid syntax"
                    )));
                }
            }),
            FlagKind::String => FlagValue::String(text.to_owned()),
            FlagKind::Int => FlagValue::Int(
                parse_int(text)
                    .map_err(|error| invalid(format!("strconv.ParseInt: parsing {text:?}: {error}")))?,
            ),
            FlagKind::Duration => {
                FlagValue::Duration(parse_duration(text).map_err(|error| invalid(error.to_string()))?)
            }
            FlagKind::List => FlagValue::List(split_list(text)),
        };
        if let Some((_, old, given)) = self.values.iter_mut().find(|(name, _, _)| *name == flag.name) {
            match (&mut *old, value) {
                // A repeated list flag appends.
                (FlagValue::List(all), FlagValue::List(more)) if *given => all.extend(more),
                (old, value) => *old = value,
            }
            *given = true;
        }
        Ok(())
    }
}

/// Texts between commas; one in double quotes may hold commas, and quotes that are doubled.
fn split_list(text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut all = vec![String::new()];
    let (mut quoted, mut at_start) = (false, true);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let Some(last) = all.last_mut() else { break };
        match c {
            '"' if at_start && !quoted => quoted = true,
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                last.push(c);
            }
            '"' if quoted => quoted = false,
            ',' if !quoted => {
                all.push(String::new());
                at_start = true;
                continue;
            }
            c => last.push(c),
        }
        at_start = false;
    }
    all
}
