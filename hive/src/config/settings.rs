// SPDX-License-Identifier: Apache-2.0

//! Where values come from.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Raw, normalize};

/// Where the value of a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is not set.
    Default,
    /// A key of a config file, with its line.
    File {
        /// The file.
        path: PathBuf,
        /// Line of the key, from 1.
        line: usize,
    },
    /// A file of a config directory.
    Directory(PathBuf),
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag,
    /// The program that embeds the cell fixed it.
    Program,
    /// A test overrode it.
    Override,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "file {}:{line}", path.display()),
            Self::Directory(path) => write!(f, "dir {}", path.display()),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag => f.write_str("flag"),
            Self::Program => f.write_str("program"),
            Self::Override => f.write_str("override"),
        }
    }
}

/// What to do about keys that no cell knows, in config directory and file. Unknown flags are always errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKeys {
    /// Refuse to start.
    #[default]
    Error,
    /// Warn: for rolling upgrades, where old and new processes share a ConfigMap.
    Warn,
    /// Say nothing: for ConfigMaps shared with other programs.
    Ignore,
}

/// The sources of configuration values for one plan.
///
/// Nothing is read from the process unless asked for, so tests are isolated.
///
/// ```
/// use hive::Settings;
///
/// let settings = Settings::new()
///     .env_prefix("APP")
///     .env([("APP_CACHE_SIZE", "20")])
///     .args(["--cache-name=west", "--verbose"]);
/// # let _ = settings;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub(crate) args: Vec<String>,
    pub(crate) flags: Vec<(String, String)>,
    pub(crate) env_prefix: String,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) directories: Vec<PathBuf>,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) texts: Vec<(PathBuf, String)>,
    pub(crate) unknown: UnknownKeys,
    /// Unknown keys that are no errors.
    pub(crate) tolerated: Arc<HashSet<String>>,
    pub(crate) positional: bool,
    pub(crate) program: String,
}

impl Settings {
    /// No source: every setting has its default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Arguments of the command line, without the program's name: `--name=value`, `--name value`, `--bool`,
    /// `--bool=false`. `--` ends the flags.
    #[must_use]
    pub fn args<I: IntoIterator<Item = impl Into<String>>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets one flag.
    #[must_use]
    pub fn flag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.flags.push((name.into(), value.into()));
        self
    }

    /// Prefix of environment variables, joined by an underscore: prefix `APP` and flag `cache-size` make
    /// `APP_CACHE_SIZE`. An underscore at the end of the prefix is not doubled.
    #[must_use]
    pub fn env_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.env_prefix = prefix.into().trim_end_matches('_').to_owned();
        self
    }

    /// Environment variables. Empty ones count as unset.
    #[must_use]
    pub fn env<I: IntoIterator<Item = (impl Into<String>, impl Into<String>)>>(
        mut self,
        variables: I,
    ) -> Self {
        self.env.extend(
            variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        self
    }

    /// A config directory, such as a mounted ConfigMap: each file is a key, its trimmed content the value.
    /// Sub-directories and links to directories (`..data`) are skipped. Later directories win.
    #[must_use]
    pub fn config_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.directories.push(path.as_ref().to_owned());
        self
    }

    /// A config file in YAML, one key a setting. Later files win. Needs the feature `yaml`; without it only
    /// flat files of `key: value` lines are read.
    #[must_use]
    pub fn config_file(mut self, path: impl AsRef<Path>) -> Self {
        self.files.push(path.as_ref().to_owned());
        self
    }

    /// The text of a config file, as if it stood in `path`.
    #[must_use]
    pub fn config_text(mut self, path: impl AsRef<Path>, text: impl Into<String>) -> Self {
        self.texts.push((path.as_ref().to_owned(), text.into()));
        self
    }

    /// What to do about unknown keys in directories and files.
    #[must_use]
    pub fn unknown_keys(mut self, unknown: UnknownKeys) -> Self {
        self.unknown = unknown;
        self
    }

    /// What `{program}` in [defaults](macro@crate::Config) stands for; otherwise `hive`.
    ///
    /// ```
    /// # use hive::{Cell, Config, Hive, Settings};
    /// #[derive(Clone, Config)]
    /// struct Listener {
    ///     /// Where to listen.
    ///     #[config(default = "/run/{program}/api.sock")]
    ///     socket: String,
    /// }
    /// let hive = Hive::new([Cell::module("api", "Answers").config::<Listener>()]);
    /// let plan = hive.plan(Settings::new().program("greeter"))?;
    /// assert_eq!(plan.config::<Listener>().unwrap().socket, "/run/greeter/api.sock");
    /// # Ok::<_, hive::Report>(())
    /// ```
    #[must_use]
    pub fn program(mut self, name: impl Into<String>) -> Self {
        self.program = name.into();
        self
    }

    /// Keys that files may have though no cell knows them, such as those of other programs that share a ConfigMap: they
    /// are warnings where unknown keys are errors.
    #[must_use]
    pub fn tolerate_keys<I: IntoIterator<Item = impl AsRef<str>>>(mut self, keys: I) -> Self {
        let tolerated = Arc::make_mut(&mut self.tolerated);
        tolerated.extend(keys.into_iter().map(|key| normalize(key.as_ref())));
        self
    }

    /// Allows arguments that are not flags; [`Plan::arguments`](crate::Plan::arguments) returns them.
    #[must_use]
    pub fn allow_arguments(mut self) -> Self {
        self.positional = true;
        self
    }
}

/// Keys and values of the lines `key: value` or of a YAML document, with line numbers.
#[cfg(not(feature = "yaml"))]
pub(crate) fn read_file_text(text: &str) -> Result<Vec<(String, Raw, usize)>, String> {
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') || line == "---" {
            continue;
        }
        let (key, value) = line
            .split_once(':')
            .ok_or_else(|| format!("line {}: expected `key: value`", index + 1))?;
        if key.starts_with(char::is_whitespace) || !(value.is_empty() || value.starts_with(' ')) {
            return Err(format!("line {}: expected `key: value`", index + 1));
        }
        let value = value.trim();
        let quoted = |q: char| value.len() > 1 && value.starts_with(q) && value.ends_with(q);
        let value = if quoted('"') || quoted('\'') {
            &value[1..value.len() - 1]
        } else {
            value
        };
        entries.push((key.trim().to_owned(), Raw::Text(value.to_owned()), index + 1));
    }
    Ok(entries)
}

/// Keys and values of a YAML document, with line numbers.
#[cfg(feature = "yaml")]
pub(crate) fn read_file_text(text: &str) -> Result<Vec<(String, Raw, usize)>, String> {
    use serde_norway::Value;

    fn scalar(value: &Value) -> Result<String, String> {
        match value {
            Value::Null => Ok(String::new()),
            Value::Bool(value) => Ok(value.to_string()),
            Value::Number(value) => Ok(value.to_string()),
            Value::String(value) => Ok(value.clone()),
            Value::Tagged(tagged) => scalar(&tagged.value),
            Value::Sequence(_) | Value::Mapping(_) => Err("a key must be a scalar".into()),
        }
    }

    fn raw(value: &Value) -> Result<Raw, String> {
        match value {
            Value::Sequence(items) => Ok(Raw::List(items.iter().map(raw).collect::<Result<_, _>>()?)),
            Value::Mapping(items) => Ok(Raw::Map(
                items
                    .iter()
                    .map(|(key, value)| Ok((scalar(key)?, raw(value)?)))
                    .collect::<Result<_, String>>()?,
            )),
            Value::Tagged(tagged) => raw(&tagged.value),
            _ => Ok(Raw::Text(scalar(value)?)),
        }
    }

    let document: Value = serde_norway::from_str(text).map_err(|error| error.to_string())?;
    let mapping = match &document {
        Value::Null => return Ok(Vec::new()),
        Value::Mapping(mapping) => mapping,
        _ => return Err("expected a map of settings".into()),
    };
    let mut entries = Vec::with_capacity(mapping.len());
    for (key, value) in mapping {
        let key = scalar(key)?;
        // The parser keeps no positions: a top-level key begins its line.
        let line = text.lines().position(|line| {
            let line = line.strip_prefix(['"', '\'']).unwrap_or(line);
            line.strip_prefix(key.as_str())
                .is_some_and(|rest| rest.trim_start_matches(['"', '\'', ' ']).starts_with(':'))
        });
        entries.push((key, raw(value)?, line.map_or(1, |line| line + 1)));
    }
    Ok(entries)
}
