// SPDX-License-Identifier: Apache-2.0

//! Makes a hive for a script.

use std::any::Any;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use hive::{All, BuildError, Built, Hive, Report, Settings};

use super::{Assembling, Parts, Setup};
use crate::hive_command::{AfterStart, HiveParts, Rebuild, ScriptHive};
use crate::{CommandError, CommandHandle, Conditions, Environment, default_commands, named};

/// Why a script has no hive.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The cells do not fit together, or the `#!` arguments are wrong.
    #[error("the hive cannot be planned")]
    Plan(#[source] Report),
    /// A constructor failed.
    #[error("the hive cannot be built")]
    Build(#[source] BuildError),
    /// What the suite makes besides the hive failed.
    #[error("cannot prepare {what}")]
    Prepare {
        /// What was to be made.
        what: &'static str,
        /// Why it failed.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

type MakeHive = Arc<dyn Fn() -> Hive + Send + Sync>;
type MakeWait = Arc<dyn Fn(&Built) -> AfterStart + Send + Sync>;

/// The hive of a script with its flags, conditions and variables.
///
/// A script has the [built-in commands](crate::default_commands), `hive`, `hive/start` and `hive/stop`, and those that
/// cells provide as members of [`CommandHandle`]. Where names are equal the built-in command wins.
pub struct Assembly {
    hive: MakeHive,
    args: Vec<String>,
    allows_arguments: bool,
    presets: Vec<(String, String)>,
    conditions: Conditions,
    environment: Environment,
    after_start: Option<MakeWait>,
    keep: Mutex<Option<Box<dyn Any + Send>>>,
    recreates: bool,
}

impl std::fmt::Debug for Assembly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembly")
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

impl Assembly {
    /// Assembles the hive that `hive` returns; it is called again for a hive that is recreated.
    pub fn new(hive: impl Fn() -> Hive + Send + Sync + 'static) -> Self {
        Self {
            hive: Arc::new(hive),
            args: Vec::new(),
            allows_arguments: false,
            presets: Vec::new(),
            conditions: Conditions::new(),
            environment: Environment::new(),
            after_start: None,
            keep: Mutex::new(None),
            recreates: false,
        }
    }

    /// Takes the script's `#!` arguments as flags of the hive; without this they are ignored.
    #[must_use]
    pub fn flags(mut self, setup: &Setup) -> Self {
        let args = setup.args.iter().filter(|arg| !arg.is_empty());
        self.args = args.cloned().collect();
        self
    }

    /// Drops [flags](Self::flags) of these names in the form `--name` or `--name=value`: those of other programs.
    #[must_use]
    pub fn without_flags<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: HashSet<&str> = names.into_iter().collect();
        self.args.retain(|arg| {
            let flag = arg.strip_prefix("--");
            !flag.is_some_and(|flag| names.contains(flag.split('=').next().unwrap_or(flag)))
        });
        self
    }

    /// Ignores `#!` arguments that are no flags, which are an error otherwise.
    #[must_use]
    pub fn ignore_arguments(mut self) -> Self {
        self.allows_arguments = true;
        self
    }

    /// Sets another default of a flag. The hive must have the flag; the script's arguments win.
    #[must_use]
    pub fn preset(mut self, flag: &str, value: impl Into<String>) -> Self {
        self.presets.push((flag.to_owned(), value.into()));
        self
    }

    /// Sets the conditions; without this there are none.
    #[must_use]
    pub fn conditions(mut self, conditions: Conditions) -> Self {
        self.conditions = conditions;
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.set(name, value);
        self
    }

    /// Sets all variables of this process.
    #[must_use]
    pub fn process_environment(mut self) -> Self {
        self.environment = Environment::of_process();
        self
    }

    /// Makes `hive/start` wait for a state after the start hooks.
    #[must_use]
    pub fn after_start(mut self, wait: impl Fn(&Built) -> AfterStart + Send + Sync + 'static) -> Self {
        self.after_start = Some(Arc::new(wait));
        self
    }

    /// Keeps a value until the hive has stopped. It is dropped before the script's directories are removed.
    #[must_use]
    pub fn keep(self, value: impl Any + Send) -> Self {
        *self.keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(value));
        self
    }

    /// Provides `hive/recreate`.
    #[must_use]
    pub fn recreatable(mut self) -> Self {
        self.recreates = true;
        self
    }

    /// Builds the hive.
    pub fn build(self) -> Assembling {
        Box::pin(async move { self.build_now() })
    }

    fn build_now(self) -> Result<Parts, AssemblyError> {
        let this = Arc::new(self);
        let first = this.build_hive()?;
        let rebuild: Option<Rebuild> = this.recreates.then(|| {
            let this = this.clone();
            let rebuild: Rebuild = Arc::new(move || {
                let parts = this.build_hive().map_err(|error| CommandError::chain(&error));
                Box::pin(async move { parts })
            });
            rebuild
        });
        let hive = ScriptHive::new(first, rebuild);
        let mut commands = hive.commands();
        commands.extend(default_commands());
        Ok(Parts {
            commands,
            hive: Some(hive),
            conditions: this.conditions.clone(),
            environment: this.environment.clone(),
            keep: this.keep.lock().unwrap_or_else(PoisonError::into_inner).take(),
        })
    }

    fn build_hive(&self) -> Result<HiveParts, AssemblyError> {
        let mut settings = Settings::new().args(self.args.iter().cloned());
        if self.allows_arguments {
            settings = settings.allow_arguments();
        }
        if !self.presets.is_empty() {
            // As a config file, where an empty value is a value.
            let presets: String = self
                .presets
                .iter()
                .map(|(flag, value)| format!("{flag}: '{}'\n", value.replace('\'', "''")))
                .collect();
            settings = settings.config_text("presets of the suite", presets);
        }
        let built = (self.hive)()
            .root::<All<CommandHandle>>()
            .plan(settings)
            .map_err(AssemblyError::Plan)?
            .build()
            .map_err(AssemblyError::Build)?;
        let commands = built.get::<All<CommandHandle>>().into_iter().flatten();
        Ok(HiveParts {
            controller: built.controller(),
            commands: commands.map(named).collect(),
            after_start: self.after_start.as_ref().map(|wait| wait(&built)),
            keep: Arc::new(built),
        })
    }
}
