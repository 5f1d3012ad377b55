// SPDX-License-Identifier: Apache-2.0

//! The checked graph: what will be constructed, in which order, with which values.

mod config;
mod flatten;
mod graph;
mod lookup;
mod problems;
mod variants;

use std::collections::HashMap;
use std::sync::Arc;

use crate::assembly::Hive;
use crate::cell::{Function, Visibility};
use crate::config::{ConfigType, DeclaredSetting, Settings, Shared};
use crate::finding::{Finding, Report};
use crate::inject::{Inject, Need, Needs, Source};
use crate::key::{Key, TypeMap};
use crate::module::ModulePath;
use crate::scope::ScopeType;
use crate::supply::Give;
pub(crate) use config::decode;
pub(crate) use flatten::flatten;

/// A module of the hive.
pub(crate) struct Module {
    pub(crate) path: ModulePath,
    pub(crate) title: &'static str,
    pub(crate) parent: u32,
    pub(crate) enabled: bool,
}

/// A lifecycle: number 0 is that of the hive, others are scopes.
pub(crate) struct PlannedLifecycle {
    pub(crate) name: &'static str,
    pub(crate) parent: u32,
    pub(crate) scope: Option<ScopeType>,
    /// Lifecycles whose objects those of this one need.
    pub(crate) needs: Vec<u32>,
    pub(crate) slot: u32,
}

/// What a function does in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Provide(Visibility),
    Run,
    Decorate,
    Root,
    Replace,
}

/// A function of the graph.
pub(crate) struct Node {
    pub(crate) function: Arc<Function>,
    pub(crate) role: Role,
    pub(crate) module: u32,
    pub(crate) lifecycle: u32,
    pub(crate) enabled: bool,
    pub(crate) library: bool,
    /// The condition that decides about it.
    pub(crate) condition: Option<u32>,
    /// For an instance of a per-module constructor: the constructor.
    pub(crate) instance_of: Option<u32>,
    pub(crate) first_slot: u32,
    /// Its needs, and where they are met, in the lists of the graph.
    pub(crate) needs: Span,
    /// What it gives, in the list of the graph.
    pub(crate) gives: Span,
}

/// A part of a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) fn len(self) -> u32 {
        self.end - self.start
    }

    fn numbers(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A configuration of the graph.
pub(crate) struct PlannedConfig {
    pub(crate) config: ConfigType,
    pub(crate) module: u32,
    pub(crate) slot: u32,
    pub(crate) place: &'static std::panic::Location<'static>,
    pub(crate) settings: Vec<DeclaredSetting>,
}

/// Who provides a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    /// Result number `give` of a node.
    Node { node: u32, give: u32 },
    /// A value that is there before construction begins.
    Slot(u32),
}

/// All that is known about a key.
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) public: Option<Provider>,
    /// What few keys have.
    more: Option<Box<More>>,
}

impl Entry {
    fn of(key: Key) -> Self {
        Self {
            key,
            public: None,
            more: None,
        }
    }

    fn more_mut(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }
}

impl std::ops::Deref for Entry {
    type Target = More;

    fn deref(&self) -> &More {
        static NOTHING: More = More {
            private: Vec::new(),
            decorators: Vec::new(),
            members: Vec::new(),
            disabled: Vec::new(),
        };
        self.more.as_deref().unwrap_or(&NOTHING)
    }
}

/// What else is known about a key.
#[derive(Default)]
pub(crate) struct More {
    /// By module.
    pub(crate) private: Vec<(u32, Provider)>,
    /// Module and node, in the order of declaration.
    pub(crate) decorators: Vec<(u32, u32)>,
    /// Node, result, whether it gives several, and the module to which it is private.
    pub(crate) members: Vec<(u32, u32, bool, Option<u32>)>,
    /// Nodes that would provide it if they were not disabled.
    pub(crate) disabled: Vec<u32>,
}

/// What does not change once planned.
pub(crate) struct Graph {
    pub(crate) modules: Vec<Module>,
    pub(crate) lifecycles: Vec<PlannedLifecycle>,
    pub(crate) nodes: Vec<Node>,
    /// What the nodes need.
    pub(crate) needs: Vec<Need>,
    /// Where the needs are met.
    pub(crate) sources: Vec<Source>,
    /// What the nodes give.
    pub(crate) gives: Vec<Give>,
    /// What every node comes after, node by node.
    edges: Vec<u32>,
    edge_spans: Vec<Span>,
    pub(crate) configs: Vec<PlannedConfig>,
    /// In the order in which they were met.
    pub(crate) entries: Vec<Entry>,
    entry_numbers: TypeMap<u32>,
    pub(crate) instances: HashMap<(u32, u32), u32>,
    pub(crate) slots: u32,
    /// Nodes to be constructed, in this order.
    pub(crate) order: Vec<u32>,
    /// Slots of `Arc<dyn HealthSink>` and `Arc<dyn JobMetrics>`, if provided.
    pub(crate) sink: Option<u32>,
    pub(crate) metrics: Option<u32>,
}

impl Graph {
    pub(crate) fn needs_of(&self, index: u32) -> &[Need] {
        &self.needs[self.nodes[index as usize].needs.numbers()]
    }

    pub(crate) fn gives_of(&self, index: u32) -> &[Give] {
        &self.gives[self.nodes[index as usize].gives.numbers()]
    }

    pub(crate) fn sources_of(&self, index: u32) -> &[Source] {
        &self.sources[self.nodes[index as usize].needs.numbers()]
    }

    /// Where all that `T` needs is to be had from outside, if it is.
    pub(crate) fn outside_sources_of<T: Inject>(&self) -> Option<Vec<Source>> {
        let mut needs = Needs::default();
        T::needs(&mut needs);
        needs.0.iter().map(|need| self.look(need)).collect()
    }

    /// The nodes that are constructed before this one.
    pub(crate) fn edges_of(&self, index: u32) -> &[u32] {
        &self.edges[self.edge_spans[index as usize].numbers()]
    }

    pub(crate) fn entry(&self, key: Key) -> Option<&Entry> {
        let number = self.entry_numbers.get(&key.id())?;
        self.entries.get(*number as usize)
    }
}

/// A checked hive: nothing is missing, nothing goes in circles, all values are read. Nothing has been
/// constructed.
///
/// ```
/// use hive::{Cell, Hive, Settings};
/// let plan = Hive::new([Cell::module("hello", "Greets").run(|| ())]).plan(Settings::new())?;
/// assert!(plan.report().is_ok());
/// # Ok::<_, hive::Report>(())
/// ```
pub struct Plan {
    pub(crate) graph: Arc<Graph>,
    pub(crate) values: Vec<Option<Shared>>,
    pub(crate) report: Report,
    pub(crate) arguments: Vec<String>,
    pub(crate) hive: Hive,
}

impl Hive {
    /// Checks the whole graph and the configuration. Runs no constructor.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, at once.
    pub fn plan(self, settings: Settings) -> Result<Plan, Report> {
        Plan::new(self, settings)
    }
}

impl Plan {
    pub(crate) fn new(hive: Hive, settings: Settings) -> Result<Self, Report> {
        let mut findings: Vec<Finding> = Vec::new();
        let mut flat = flatten(&hive, &mut findings);
        let arguments = decode(&hive, &mut flat, &settings, &mut findings);
        config::decide(&hive, &mut flat, &mut findings);
        let (graph, values) = graph::connect(flat, &mut findings);
        let report = Report::new(findings);
        if !report.is_ok() {
            return Err(report);
        }
        Ok(Self {
            graph: Arc::new(graph),
            values,
            report,
            arguments,
            hive,
        })
    }

    /// The warnings.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Arguments of the command line that are not flags, if the settings
    /// [allow](Settings::allow_arguments) them.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// The value of a configuration.
    ///
    /// ```
    /// # use hive::{Cell, Config, Hive, Settings};
    /// #[derive(Clone, Config)]
    /// struct Size {
    ///     /// How many.
    ///     #[config(default = 3)]
    ///     size: u32,
    /// }
    /// let plan = Hive::new([Cell::module("app", "App").config::<Size>()]).plan(Settings::new())?;
    /// assert_eq!(plan.config::<Size>().unwrap().size, 3);
    /// # Ok::<_, hive::Report>(())
    /// ```
    #[must_use]
    pub fn config<C: crate::config::Config>(&self) -> Option<&C> {
        self.values
            .iter()
            .flatten()
            .find_map(|shared| shared.value.as_any().downcast_ref())
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan")
            .field("modules", &self.graph.modules.len())
            .field("constructors", &self.graph.order.len())
            .finish()
    }
}
