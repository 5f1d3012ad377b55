// SPDX-License-Identifier: Apache-2.0

//! Commands that show, start, stop and rebuild a hive: `hive`, `hive/start`, `hive/stop`, `hive/recreate`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hive::Controller;

use crate::{Command, CommandError, CommandHandle, CommandSet, Context, Invocation, Outcome, Spec};

/// Time for all start or stop hooks.
const LIMIT: Duration = Duration::from_secs(60);

/// What is done on a hive.
#[derive(Clone, Copy)]
enum Action {
    Start,
    Stop,
}

/// A hive as scripts see it.
#[derive(Clone)]
pub struct HiveParts {
    /// Starts, stops and shows it.
    pub controller: Controller,
    /// The commands of its cells.
    pub commands: CommandSet,
    /// What a start waits for after the start hooks.
    pub after_start: Option<AfterStart>,
    /// What must live as long as the hive, such as [`hive::Built`].
    pub keep: Arc<dyn Send + Sync>,
}

impl fmt::Debug for HiveParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HiveParts")
            .field("controller", &self.controller)
            .finish_non_exhaustive()
    }
}

/// Waits for a state of a started hive; may be called any number of times.
pub type AfterStart = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Builds another hive of the same cells with the same settings.
pub type Rebuild =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<HiveParts, CommandError>> + Send>> + Send + Sync>;

/// The hive of a script; `hive/recreate` replaces it.
#[derive(Clone)]
pub struct ScriptHive {
    current: Arc<Mutex<HiveParts>>,
    rebuild: Option<Rebuild>,
}

impl fmt::Debug for ScriptHive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptHive")
            .field("controller", &self.controller())
            .finish_non_exhaustive()
    }
}

impl ScriptHive {
    /// A script's hive. With `rebuild`, `hive/recreate` builds another.
    pub fn new(parts: HiveParts, rebuild: Option<Rebuild>) -> Self {
        Self {
            current: Arc::new(Mutex::new(parts)),
            rebuild,
        }
    }

    /// The controller of the current hive.
    pub fn controller(&self) -> Controller {
        self.parts().controller
    }

    fn parts(&self) -> HiveParts {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The commands of the hive's cells and those on the hive itself.
    pub fn commands(&self) -> CommandSet {
        let mut commands = self.parts().commands;
        let spec = |name: &str, summary: &str| Spec::new(name, summary);
        let own: [CommandHandle; 3] = [
            Arc::new(HiveCommand {
                spec: spec("hive", "Show the cells and hooks of the hive")
                    .args("[start|stop]")
                    .detail("With an argument it starts or stops the hive."),
                hive: self.clone(),
                action: None,
            }),
            Arc::new(HiveCommand {
                spec: spec("hive/start", "Run the start hooks"),
                hive: self.clone(),
                action: Some(Action::Start),
            }),
            Arc::new(HiveCommand {
                spec: spec("hive/stop", "Run the stop hooks"),
                hive: self.clone(),
                action: Some(Action::Stop),
            }),
        ];
        commands.extend(own.into_iter().map(crate::named));
        if let Some(rebuild) = &self.rebuild {
            let recreate: CommandHandle = Arc::new(Recreate {
                spec: spec("hive/recreate", "Replace the hive by a new one")
                    .detail("It has the same cells and flags, is not started, and its tables are empty."),
                hive: self.clone(),
                rebuild: rebuild.clone(),
            });
            commands.extend([crate::named(recreate)]);
        }
        commands
    }
}

struct HiveCommand {
    spec: Spec,
    hive: ScriptHive,
    action: Option<Action>,
}

#[async_trait]
impl Command for HiveCommand {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let action = match (self.action, inv.args()) {
            (action, []) => action,
            (None, [argument]) if argument == "start" => Some(Action::Start),
            (None, [argument]) if argument == "stop" => Some(Action::Stop),
            _ => return Err(CommandError::usage("")),
        };
        let HiveParts {
            controller,
            after_start,
            ..
        } = self.hive.parts();
        let Some(action) = action else {
            cx.log(controller.tree());
            return Ok(Outcome::Silent);
        };
        run_hooks(cx, &controller, action).await?;
        if let (Action::Start, Some(wait)) = (action, after_start) {
            cx.until_interrupted(wait()).await?;
        }
        Ok(Outcome::Silent)
    }
}

async fn run_hooks(cx: &Context<'_>, controller: &Controller, action: Action) -> Result<(), CommandError> {
    let hooks = async {
        match action {
            Action::Start => controller
                .start()
                .await
                .map_err(|error| CommandError::chain(&error)),
            Action::Stop => controller
                .stop()
                .await
                .map_err(|error| CommandError::chain(&error)),
        }
    };
    match cx.until_interrupted(tokio::time::timeout(LIMIT, hooks)).await? {
        Ok(result) => result,
        Err(_) => Err(CommandError::new("context deadline exceeded")),
    }
}

struct Recreate {
    spec: Spec,
    hive: ScriptHive,
    rebuild: Rebuild,
}

#[async_trait]
impl Command for Recreate {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        if !inv.args().is_empty() {
            return Err(CommandError::usage(""));
        }
        let parts = (self.rebuild)().await?;
        for name in self.hive.parts().commands.keys() {
            cx.commands_mut().remove(name);
        }
        *self.hive.current.lock().unwrap_or_else(PoisonError::into_inner) = parts;
        let commands = self.hive.commands();
        cx.commands_mut().extend(commands);
        Ok(Outcome::Silent)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use hive::{All, Cell, Hive, HookCtx, Lifecycle, Member, Settings};

    use super::*;
    use crate::{Environment, Lifetime, State, default_commands, function};

    #[derive(Default)]
    struct Counter(AtomicU32);

    fn counter() -> Arc<Counter> {
        Arc::default()
    }

    fn hooks(lifecycle: Lifecycle, counter: Arc<Counter>) -> Member<CommandHandle> {
        let count = counter.clone();
        lifecycle.on_start("count", move |_: HookCtx| {
            let count = count.clone();
            async move {
                if count.0.fetch_add(1, Ordering::SeqCst) == 2 {
                    Err(std::io::Error::other("third start"))
                } else {
                    Ok(())
                }
            }
        });
        Member(function(
            Spec::new("starts", "Print the number of starts"),
            move |_, _| Ok(Outcome::stdout(format!("{}\n", counter.0.load(Ordering::SeqCst)))),
        ))
    }

    async fn build() -> Result<HiveParts, CommandError> {
        let cell = Cell::module("counter", "Counts starts")
            .provide(counter)
            .provide(hooks);
        let plan = Hive::new([cell])
            .root::<All<CommandHandle>>()
            .plan(Settings::new())
            .unwrap();
        let built = plan.build().unwrap();
        let commands = built
            .get::<All<CommandHandle>>()
            .unwrap()
            .into_iter()
            .map(crate::named)
            .collect();
        Ok(HiveParts {
            controller: built.controller(),
            commands,
            after_start: None,
            keep: Arc::new(built),
        })
    }

    async fn run(script: &str) -> Result<String, String> {
        let hive = ScriptHive::new(build().await.unwrap(), Some(Arc::new(|| Box::pin(build()))));
        let log = Arc::new(Mutex::new(String::new()));
        let sink = log.clone();
        let mut commands = default_commands();
        commands.extend(hive.commands());
        let log_to = Box::new(move |text: &str| sink.lock().unwrap().push_str(text));
        let mut state = State::new(
            "/tmp",
            commands,
            Environment::new(),
            Lifetime::unlimited(),
            log_to,
        );
        state
            .execute("test", script)
            .await
            .map_err(|error| error.to_string())?;
        let log = log.lock().unwrap().clone();
        Ok(log)
    }

    #[tokio::test]
    async fn hive_starts_and_stops_any_number_of_times() {
        run("hive/start\nhive start\nstarts\nstdout ^1$\nhive stop\nhive/stop\nhive start\nstarts\nstdout ^2$\n")
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn hook_error_is_shown() {
        let error = run("hive/start\nhive/stop\nhive/start\nhive/stop\nhive/start\n")
            .await
            .unwrap_err();

        assert!(
            error.starts_with("test:5: hive/start: ") && error.contains("third start"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn recreated_hive_starts_afresh() {
        run("hive/start\nhive/stop\nhive/recreate\nstarts\nstdout ^0$\nhive/start\nstarts\nstdout ^1$\n")
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn cells_are_shown_in_the_log() {
        let log = run("echo x\nhive\nstdout ^x$\n! hive nope\n").await.unwrap();

        assert!(
            log.contains("Cells:\n") && log.contains("counter (Counts starts)"),
            "{log}"
        );
    }
}
