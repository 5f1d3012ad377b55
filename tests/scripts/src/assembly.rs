// SPDX-License-Identifier: Apache-2.0

//! Makes a hive for a script.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use hive::{All, BuildError, Built, Cell, Hive, Report, Settings, config::UnknownKeys};
use hive_script::hive_command::{HiveParts, Rebuild, ScriptHive};
use hive_script::{
    Command, CommandError, CommandHandle, CommandSet, Conditions, Context, Environment, Invocation, Outcome,
    Spec, default_commands, named,
};

use skep_datapath_config::cilium_keys;

use crate::{Parts, Setup};

/// Why a script gets no hive.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The cells do not fit together, or the `#!` arguments are wrong.
    #[error("the hive cannot be planned")]
    Plan(#[source] Report),
    /// A constructor failed.
    #[error("the hive cannot be built")]
    Build(#[source] BuildError),
    /// Something the suite makes besides the hive.
    #[error("cannot prepare {what}")]
    Prepare {
        /// What.
        what: &'static str,
        /// Why not.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The cells which every hive of the programs has.
pub fn base_cells() -> Vec<Cell> {
    vec![statedb::cell(), skep_metrics::cell(), skep_health::cell()]
}

/// The commands of a hive, its own and the built-in ones, of which the latter win.
pub fn built_ins(hive: Option<&ScriptHive>) -> CommandSet {
    let mut commands = hive.map(ScriptHive::commands).unwrap_or_default();
    commands.extend(default_commands());
    commands
}

type Cells = Arc<dyn Fn() -> Vec<Cell> + Send + Sync>;
type Inspect = Arc<dyn Fn(&Built) + Send + Sync>;
/// Something to be waited for, any number of times.
pub type Wait = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;
type AfterStart = Arc<dyn Fn(&Built) -> Wait + Send + Sync>;

/// The hive of a suite: cells, flags, and more that a script sees.
pub struct Assembly {
    cells: Cells,
    args: Vec<String>,
    presets: Vec<(String, String)>,
    conditions: Conditions,
    environment: Environment,
    roots: Vec<fn(Hive) -> Hive>,
    inspect: Vec<Inspect>,
    after_start: Option<AfterStart>,
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
    /// A hive of cells; `cells` is called again for a hive that is recreated.
    pub fn new(cells: impl Fn() -> Vec<Cell> + Send + Sync + 'static) -> Self {
        Self {
            cells: Arc::new(cells),
            args: Vec::new(),
            presets: Vec::new(),
            conditions: Conditions::new(),
            environment: Environment::new(),
            roots: Vec::new(),
            inspect: Vec::new(),
            after_start: None,
            recreates: false,
        }
    }

    /// Takes the script's `#!` arguments as flags. What is no flag is ignored, as the original does, and so are flags of
    /// Cilium's programs that have no effect here.
    pub fn flags(mut self, setup: &Setup) -> Self {
        let args = setup
            .args
            .iter()
            .filter(|arg| !arg.is_empty() && !is_ignored(arg));
        self.args = args.cloned().collect();
        self
    }

    /// Sets a flag to another value than its default; the script's arguments still win.
    pub fn preset(mut self, flag: &str, value: impl Into<String>) -> Self {
        self.presets.push((flag.to_owned(), value.into()));
        self
    }

    /// Offers conditions; without this there are none.
    pub fn conditions(mut self, conditions: Conditions) -> Self {
        self.conditions = conditions;
        self
    }

    /// Sets a variable.
    pub fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.set(name, value);
        self
    }

    /// Hands all variables of this process to the script.
    pub fn process_environment(mut self) -> Self {
        self.environment = Environment::of_process();
        self
    }

    /// Constructs `T` even if no cell needs it.
    pub fn root<T: hive::Inject + Send + Sync + 'static>(mut self) -> Self {
        self.roots.push(|hive| hive.root::<T>());
        self
    }

    /// Looks at each hive that was built, before the script.
    pub fn inspect(mut self, inspect: impl Fn(&Built) + Send + Sync + 'static) -> Self {
        self.inspect.push(Arc::new(inspect));
        self
    }

    /// Lets `hive/start` return only after a wait.
    pub fn after_start(mut self, wait: impl Fn(&Built) -> Wait + Send + Sync + 'static) -> Self {
        self.after_start = Some(Arc::new(wait));
        self
    }

    /// Offers `hive/recreate`.
    pub fn recreatable(mut self) -> Self {
        self.recreates = true;
        self
    }

    /// Builds the hive.
    pub fn build(self) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
        Box::pin(async move {
            let this = Arc::new(self);
            let (parts, wait) = this.build_hive()?;
            let rebuild: Option<Rebuild> = this.recreates.then(|| {
                let this = this.clone();
                let rebuild: Rebuild = Arc::new(move || {
                    let parts = this.build_hive().map_err(|error| CommandError::chain(&error));
                    Box::pin(async move { Ok(parts?.0) })
                });
                rebuild
            });
            let hive = ScriptHive::new(parts, rebuild);
            let mut commands = built_ins(Some(&hive));
            for name in ["hive", "hive/start"] {
                if let (Some(wait), Some(start)) = (&wait, commands.get_mut(name)) {
                    *start = Arc::new(Waiting {
                        start: start.clone(),
                        wait: wait.clone(),
                    });
                }
            }
            Ok(Parts {
                commands,
                hive: Some(hive),
                conditions: this.conditions.clone(),
                environment: this.environment.clone(),
                keep: None,
            })
        })
    }

    fn build_hive(&self) -> Result<(HiveParts, Option<Wait>), AssemblyError> {
        // As a config file, where an empty value is a value; suites share presets, and not all have every flag.
        let presets: String = self
            .presets
            .iter()
            .map(|(flag, value)| format!("{flag}: '{}'\n", value.replace('\'', "''")))
            .collect();
        let settings = Settings::new()
            .config_text("presets of the suite", presets)
            .unknown_keys(UnknownKeys::Ignore)
            .allow_arguments()
            .args(self.args.iter().cloned());
        let mut hive = Hive::new((self.cells)()).root::<All<CommandHandle>>();
        for root in &self.roots {
            hive = root(hive);
        }
        let built = hive
            .plan(settings)
            .map_err(AssemblyError::Plan)?
            .build()
            .map_err(AssemblyError::Build)?;
        for inspect in &self.inspect {
            inspect(&built);
        }
        let commands = built
            .get::<All<CommandHandle>>()
            .into_iter()
            .flatten()
            .map(named)
            .collect();
        let wait = self.after_start.as_ref().map(|wait| wait(&built));
        let parts = HiveParts {
            controller: built.controller(),
            commands,
            keep: Arc::new(built),
        };
        Ok((parts, wait))
    }
}

/// Whether an argument sets one of Cilium's settings that have no effect here.
fn is_ignored(arg: &str) -> bool {
    let flag = arg
        .strip_prefix("--")
        .map(|flag| flag.split('=').next().unwrap_or(flag));
    flag.is_some_and(|flag| cilium_keys().any(|key| key == flag))
}

/// A command that starts the hive, and the wait afterwards.
struct Waiting {
    start: CommandHandle,
    wait: Wait,
}

#[async_trait]
impl Command for Waiting {
    fn spec(&self) -> &Spec {
        self.start.spec()
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        // `hive` alone shows the hive.
        let starts =
            self.spec().name() == "hive/start" || matches!(inv.args(), [action] if action == "start");
        let outcome = self.start.run(cx, inv).await?;
        if starts {
            cx.until_interrupted((self.wait)()).await?;
        }
        Ok(outcome)
    }

    async fn complete(&self, cx: &mut Context<'_>, partial: &str) -> Vec<String> {
        self.start.complete(cx, partial).await
    }
}
