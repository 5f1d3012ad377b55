// SPDX-License-Identifier: Apache-2.0

//! What a hive reports about its hooks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Engine, StepKind};
use crate::module::ModulePath;

/// How a hook is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookState {
    /// Not started.
    #[default]
    New,
    /// Its start function runs.
    Starting,
    /// Started.
    Started,
    /// Its stop function runs.
    Stopping,
    /// Stopped.
    Stopped,
    /// Its start or stop failed or hung.
    Failed,
}

impl fmt::Display for HookState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::New => "new",
            Self::Starting => "starting",
            Self::Started => "started",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        })
    }
}

/// A hook, as a hive shows it.
#[derive(Clone, Debug)]
pub struct HookInfo {
    /// Its name.
    pub name: Arc<str>,
    /// Its module.
    pub module: ModulePath,
    /// Where it was added: `file:line`.
    pub place: String,
    /// Whether it does something at start.
    pub has_start: bool,
    /// Whether it does something at stop.
    pub has_stop: bool,
    /// How it is.
    pub state: HookState,
    /// How long its start or stop function has been at it, if it runs now.
    pub running_for: Option<Duration>,
    /// How long the last start took.
    pub start_took: Option<Duration>,
    /// How long the last stop took.
    pub stop_took: Option<Duration>,
    /// The scope to which it belongs.
    pub scope: Option<&'static str>,
}

impl Engine {
    /// All hooks and groups of jobs, in the order of their start; those of scopes last.
    pub(crate) fn hooks(&self) -> Vec<HookInfo> {
        let mut infos = Vec::new();
        for (index, lifetime) in self.lifetimes.iter().enumerate() {
            let scope = (index > 0).then(|| self.graph.lifecycles[index].name);
            let status = crate::lock(&lifetime.status).clone();
            for (step, status) in lifetime.steps.iter().zip(status) {
                let function = &self.graph.nodes[step.node as usize].function;
                let base = HookInfo {
                    name: Arc::from(""),
                    module: self.module(step.node).clone(),
                    place: String::new(),
                    has_start: true,
                    has_stop: true,
                    state: status.state,
                    running_for: status.running_for(),
                    start_took: status.start_took,
                    stop_took: status.stop_took,
                    scope,
                };
                match &step.kind {
                    StepKind::Open(_) => {}
                    StepKind::Hook(hook) => infos.push(HookInfo {
                        name: hook.name.clone(),
                        place: format!("{}:{}", hook.place.file(), hook.place.line()),
                        has_start: hook.start.is_some(),
                        has_stop: hook.stop.is_some(),
                        ..base
                    }),
                    StepKind::Jobs(group) => {
                        infos.extend(group.declared().into_iter().map(|(name, kind)| HookInfo {
                            name: Arc::from(format!("{}-{name}", kind.health_prefix())),
                            place: format!("{}:{}", function.place.file(), function.place.line()),
                            ..base.clone()
                        }));
                    }
                }
            }
        }
        infos
    }
}
