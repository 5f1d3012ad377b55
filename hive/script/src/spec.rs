// SPDX-License-Identifier: Apache-2.0

//! How a command is called: name, arguments, flags, help.

mod flags;
mod usage;

use std::fmt;
use std::time::Duration;

pub use flags::FlagError;
pub(crate) use flags::Special;

use crate::text::format_duration;

/// How a command is called, and its help text.
///
/// ```
/// use hive_script::{Flag, Spec};
///
/// let spec = Spec::new("db/show", "Show a table")
///     .args("table")
///     .flag(Flag::string("out", "", "File to write to instead of stdout").short('o'))
///     .detail("Rows come in the order of the primary index.");
/// assert_eq!(spec.usage(), "db/show [-o] [--out=string] table");
/// ```
#[derive(Debug, Clone)]
pub struct Spec {
    name: String,
    summary: String,
    args: String,
    details: Vec<String>,
    flags: Vec<Flag>,
    asynchronous: bool,
    has_regexp: bool,
    untimed: bool,
}

impl Spec {
    /// A command without arguments or flags. `summary` is one sentence without a full stop.
    pub fn new(name: impl Into<String>, summary: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            summary: summary.into(),
            args: String::new(),
            details: Vec::new(),
            flags: Vec::new(),
            asynchronous: false,
            has_regexp: false,
            untimed: false,
        }
    }

    /// Describes the arguments, for help only: `table file...`.
    pub fn args(mut self, args: impl Into<String>) -> Self {
        self.args = args.into();
        self
    }

    /// Adds a paragraph to the help.
    pub fn detail(mut self, text: impl Into<String>) -> Self {
        self.details.push(text.into());
        self
    }

    /// Adds a flag.
    pub fn flag(mut self, flag: Flag) -> Self {
        self.flags.push(flag);
        self
    }

    /// The command may run in the background and returns [`crate::Outcome::Pending`].
    pub fn asynchronous(mut self) -> Self {
        self.asynchronous = true;
        self
    }

    /// The command is interactive: the script's deadline does not apply.
    pub(crate) fn untimed(mut self) -> Self {
        self.untimed = true;
        self
    }

    /// The first argument is a regular expression: variables in it match literally.
    pub fn regexp(mut self) -> Self {
        self.has_regexp = true;
        self
    }

    /// The command's name, such as `db/show`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does, in one sentence.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// The flags in the order in which they were added.
    pub fn flags(&self) -> &[Flag] {
        &self.flags
    }

    /// Whether it may run in the background.
    pub fn is_asynchronous(&self) -> bool {
        self.asynchronous
    }

    /// Whether the script's deadline does not apply.
    pub(crate) fn is_untimed(&self) -> bool {
        self.untimed
    }

    /// The format that a call names as the file to write to: what users of other shells mean by `-o json`.
    pub(crate) fn format_as_file<'a>(&self, call: &'a Invocation) -> Option<&'a str> {
        let out = self.flags.iter().find(|flag| flag.short == Some('o'))?;
        match call.flag(&out.name)? {
            FlagValue::String(file) if FORMATS.contains(&file.as_str()) => Some(file),
            _ => None,
        }
    }

    /// Position among `raw` (not yet expanded) arguments of the one that is a regular expression.
    pub(crate) fn regexp_argument(&self, raw: &[String]) -> Option<usize> {
        if !self.has_regexp {
            return None;
        }
        for (at, argument) in raw.iter().enumerate() {
            if argument == "--" {
                return Some(at + 1);
            }
            if !argument.starts_with('-') {
                return Some(at);
            }
        }
        None
    }
}

/// Names of formats.
const FORMATS: [&str; 3] = ["json", "yaml", "table"];

/// A flag of a command, as of Go's pflag.
#[derive(Debug, Clone)]
pub struct Flag {
    name: String,
    short: Option<char>,
    default: FlagValue,
    help: String,
    hidden: bool,
}

impl Flag {
    /// A switch, off by default.
    pub fn bool(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(name, FlagValue::Bool(false), help)
    }

    /// A text.
    pub fn string(name: impl Into<String>, default: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(name, FlagValue::String(default.into()), help)
    }

    /// A whole number.
    pub fn int(name: impl Into<String>, default: i64, help: impl Into<String>) -> Self {
        Self::new(name, FlagValue::Int(default), help)
    }

    /// A duration in Go's form.
    pub fn duration(name: impl Into<String>, default: Duration, help: impl Into<String>) -> Self {
        Self::new(name, FlagValue::Duration(default), help)
    }

    /// Texts separated by commas; the flag may be repeated.
    pub fn list<I>(name: impl Into<String>, default: I, help: impl Into<String>) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self::new(
            name,
            FlagValue::List(default.into_iter().map(Into::into).collect()),
            help,
        )
    }

    /// A flag of the kind of `default`.
    pub fn new(name: impl Into<String>, default: FlagValue, help: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            short: None,
            default,
            help: help.into(),
            hidden: false,
        }
    }

    /// Adds a one-letter form.
    pub fn short(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    /// Leaves it out of the help.
    pub fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// The long name, without dashes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value without the flag.
    pub fn default(&self) -> &FlagValue {
        &self.default
    }

    /// The help text.
    pub fn help(&self) -> &str {
        &self.help
    }
}

/// What a flag holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagKind {
    /// On or off.
    Bool,
    /// A text.
    String,
    /// A whole number.
    Int,
    /// A duration in Go's form.
    Duration,
    /// Texts separated by commas.
    List,
}

impl fmt::Display for FlagKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "bool",
            Self::String => "string",
            Self::Int => "int",
            Self::Duration => "duration",
            Self::List => "stringSlice",
        })
    }
}

/// The value of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlagValue {
    /// See [`FlagKind::Bool`].
    Bool(bool),
    /// See [`FlagKind::String`].
    String(String),
    /// See [`FlagKind::Int`].
    Int(i64),
    /// See [`FlagKind::Duration`].
    Duration(Duration),
    /// See [`FlagKind::List`].
    List(Vec<String>),
}

impl FlagValue {
    /// Which kind it is.
    pub fn kind(&self) -> FlagKind {
        match self {
            Self::Bool(_) => FlagKind::Bool,
            Self::String(_) => FlagKind::String,
            Self::Int(_) => FlagKind::Int,
            Self::Duration(_) => FlagKind::Duration,
            Self::List(_) => FlagKind::List,
        }
    }

    /// Whether it is zero, empty or off.
    fn is_zero(&self) -> bool {
        match self {
            Self::Bool(value) => !value,
            Self::String(value) => value.is_empty(),
            Self::Int(value) => *value == 0,
            Self::Duration(value) => value.is_zero(),
            Self::List(value) => value.is_empty(),
        }
    }
}

impl fmt::Display for FlagValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::String(value) => f.write_str(value),
            Self::Int(value) => write!(f, "{value}"),
            Self::Duration(value) => f.write_str(&format_duration(*value)),
            Self::List(value) => write!(f, "[{}]", value.join(",")),
        }
    }
}

/// One call of a command: its arguments and the values of its flags.
#[derive(Debug, Clone, Default)]
pub struct Invocation {
    args: Vec<String>,
    values: Vec<(String, FlagValue, bool)>,
}

impl Invocation {
    /// The arguments which are not flags.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Argument number `at`, from 0.
    pub fn arg(&self, at: usize) -> Option<&str> {
        self.args.get(at).map(String::as_str)
    }

    /// Whether the flag was set, even to its default value.
    pub fn is_set(&self, flag: &str) -> bool {
        self.values.iter().any(|(name, _, given)| name == flag && *given)
    }

    /// Value of a flag; `None` if the spec has no such flag.
    pub fn flag(&self, flag: &str) -> Option<&FlagValue> {
        self.values
            .iter()
            .find(|(name, _, _)| name == flag)
            .map(|(_, value, _)| value)
    }

    /// Value of a [`Flag::bool`]; off if there is no such flag.
    pub fn bool(&self, flag: &str) -> bool {
        matches!(self.flag(flag), Some(FlagValue::Bool(true)))
    }

    /// Value of a [`Flag::string`]; empty if there is no such flag.
    pub fn string(&self, flag: &str) -> &str {
        match self.flag(flag) {
            Some(FlagValue::String(value)) => value,
            _ => "",
        }
    }

    /// Value of a [`Flag::int`]; 0 if there is no such flag.
    pub fn int(&self, flag: &str) -> i64 {
        match self.flag(flag) {
            Some(FlagValue::Int(value)) => *value,
            _ => 0,
        }
    }

    /// Value of a [`Flag::duration`]; zero if there is no such flag.
    pub fn duration(&self, flag: &str) -> Duration {
        match self.flag(flag) {
            Some(FlagValue::Duration(value)) => *value,
            _ => Duration::ZERO,
        }
    }

    /// Value of a [`Flag::list`]; empty if there is no such flag.
    pub fn list(&self, flag: &str) -> &[String] {
        match self.flag(flag) {
            Some(FlagValue::List(value)) => value,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests;
