// SPDX-License-Identifier: Apache-2.0

//! The graph for graphviz, mermaid and tools.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::{self, Write};
use std::str::FromStr;

use crate::cell::Visibility;
use crate::json::{Json, quote};
use crate::key::short_type;
use crate::plan::{Graph, Plan, Role};

/// How to draw a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphFormat {
    /// For graphviz.
    #[default]
    Dot,
    /// For tools.
    Json,
    /// For Markdown pages.
    Mermaid,
}

impl FromStr for GraphFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "dot" => Ok(Self::Dot),
            "json" => Ok(Self::Json),
            "mermaid" => Ok(Self::Mermaid),
            _ => Err(format!("`{text}` is neither dot, json nor mermaid")),
        }
    }
}

/// Which part of a graph to draw.
#[derive(Clone, Debug, Default)]
pub struct GraphView {
    /// How.
    pub format: GraphFormat,
    /// Only functions of this module and those inside.
    pub module: Option<String>,
    /// Only functions that provide a type of this name (`Arc<Store>`) or have this name, and what they need.
    pub from: Option<String>,
    /// How many steps away from `from`, or from the functions of `module`.
    pub depth: Option<usize>,
}

/// Why there is nothing to draw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrawError {
    /// No module has this path.
    Module {
        /// What was asked for.
        module: String,
        /// What comes close.
        similar: Option<String>,
    },
    /// No function has this name or gives a type of this name.
    From {
        /// What was asked for.
        from: String,
        /// What comes close.
        similar: Option<String>,
    },
}

impl fmt::Display for DrawError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let similar = match self {
            Self::Module { module, similar } => {
                write!(f, "there is no module `{module}`")?;
                similar
            }
            Self::From { from, similar } => {
                write!(f, "no function is named or gives `{from}`")?;
                similar
            }
        };
        match similar {
            Some(similar) => write!(f, "; did you mean `{similar}`?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for DrawError {}

impl Plan {
    /// Draws the functions and what they need from each other.
    ///
    /// # Errors
    ///
    /// If the view asks for a module or function that is not there.
    ///
    /// ```
    /// # use hive::{Cell, GraphView, Hive, Settings};
    /// # use std::sync::Arc; struct Clock;
    /// fn clock() -> Arc<Clock> { Arc::new(Clock) }
    /// fn show(_clock: Arc<Clock>) {}
    /// let cell = Cell::module("clock", "Tells the time").provide(clock).run(show);
    /// let dot = Hive::new([cell]).plan(Settings::new())?.draw(&GraphView::default())?;
    /// assert!(dot.contains("label=\"Arc<Clock>\""));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn draw(&self, view: &GraphView) -> Result<String, DrawError> {
        self.graph.draw(view)
    }
}

impl Graph {
    pub(crate) fn draw(&self, view: &GraphView) -> Result<String, DrawError> {
        self.check(view)?;
        let shown = self.select(view);
        Ok(match view.format {
            GraphFormat::Dot => self.dot(&shown),
            GraphFormat::Json => self.json(&shown),
            GraphFormat::Mermaid => self.mermaid(&shown),
        })
    }

    /// Whether what the view asks for is there at all.
    fn check(&self, view: &GraphView) -> Result<(), DrawError> {
        if let Some(module) = &view.module {
            let known = || self.modules.iter().map(|module| module.path.as_str());
            if !known().any(|path| path == module) {
                return Err(DrawError::Module {
                    module: module.clone(),
                    similar: crate::similar::closest(module, known()),
                });
            }
        }
        if let Some(from) = &view.from {
            let mut nodes = 0..self.nodes.len() as u32;
            if !nodes.any(|index| self.is_or_gives(index, from)) {
                let types = self.gives.iter().map(|give| short_type(give.key.full_name()));
                let known: Vec<String> = types.collect();
                return Err(DrawError::From {
                    from: from.clone(),
                    similar: crate::similar::closest(from, known.iter().map(String::as_str)),
                });
            }
        }
        Ok(())
    }

    /// Whether a function has this name, or gives a type of this name.
    fn is_or_gives(&self, index: u32, wanted: &str) -> bool {
        let name = self.name(index);
        let mut gives = self.gives_of(index).iter();
        gives.any(|give| short_type(give.key.full_name()) == wanted)
            || name == wanted
            || name.ends_with(&format!("::{wanted}"))
    }

    /// The functions to be drawn, in the order of declaration.
    fn select(&self, view: &GraphView) -> Vec<u32> {
        let graph = self;
        let in_module = |index: u32| match &view.module {
            Some(module) => {
                let path = graph.module_of(index).as_str();
                path.strip_prefix(module.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }
            None => true,
        };
        let provides = |index: u32| match &view.from {
            Some(from) => graph.is_or_gives(index, from),
            None => true,
        };
        let all = (0..graph.nodes.len() as u32).filter(|index| {
            let node = &graph.nodes[*index as usize];
            node.enabled && (node.needs.len() > 0 || node.gives.len() > 0 || node.role != Role::Root)
        });
        let start: Vec<u32> = all
            .filter(|index| in_module(*index) && provides(*index))
            .collect();
        if view.from.is_none() && view.depth.is_none() {
            return start;
        }
        let mut distance: BTreeMap<u32, usize> = start.iter().map(|index| (*index, 0)).collect();
        let mut queue: VecDeque<u32> = start.into();
        while let Some(index) = queue.pop_front() {
            let next = distance[&index] + 1;
            if view.depth.is_some_and(|depth| next > depth) {
                continue;
            }
            for edge in graph.edges_of(index) {
                if !distance.contains_key(edge) {
                    distance.insert(*edge, next);
                    queue.push_back(*edge);
                }
            }
        }
        distance.into_keys().collect()
    }

    /// Edges between functions, each with the types that are handed over.
    fn handed_over(&self, shown: &[u32]) -> Vec<(u32, u32, String)> {
        let graph = self;
        let mut owners = HashMap::new();
        for &index in shown {
            let node = &graph.nodes[index as usize];
            for (slot, give) in (node.first_slot..).zip(graph.gives_of(index)) {
                owners.insert(slot, (index, short_type(give.key.full_name())));
            }
        }
        let mut edges = Vec::new();
        for &index in shown {
            let mut targets: BTreeMap<u32, Vec<String>> = BTreeMap::new();
            for source in graph.sources_of(index) {
                let slots: Vec<u32> = match source {
                    crate::inject::Source::Slot(slot) => vec![*slot],
                    crate::inject::Source::Group(slots) => slots.iter().map(|(slot, _)| *slot).collect(),
                    _ => Vec::new(),
                };
                for slot in slots {
                    if let Some((owner, name)) = owners.get(&slot) {
                        targets.entry(*owner).or_default().push(name.clone());
                    }
                }
            }
            for edge in graph.edges_of(index) {
                if shown.binary_search(edge).is_ok() {
                    targets.entry(*edge).or_default();
                }
            }
            edges.extend(
                targets
                    .into_iter()
                    .map(|(target, names)| (index, target, names.join(", "))),
            );
        }
        edges
    }

    fn by_module(&self, shown: &[u32]) -> BTreeMap<u32, Vec<u32>> {
        let mut modules: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &index in shown {
            modules
                .entry(self.nodes[index as usize].module)
                .or_default()
                .push(index);
        }
        modules
    }

    fn dot(&self, shown: &[u32]) -> String {
        let mut out =
            String::from("digraph hive {\n  rankdir=LR;\n  node [shape=box, fontname=\"monospace\"];\n");
        for (module, nodes) in self.by_module(shown) {
            let module = &self.modules[module as usize];
            let path = if module.path.is_root() {
                "(root)"
            } else {
                module.path.as_str()
            };
            let _ = write!(out, "  subgraph \"cluster_{path}\" {{\n    label=");
            quote(&mut out, path);
            out.push_str(";\n");
            for index in nodes {
                let style = match self.nodes[index as usize].role {
                    Role::Run | Role::Root => ", shape=oval",
                    Role::Decorate => ", shape=diamond",
                    Role::Provide(Visibility::Private) => ", style=dashed",
                    _ => "",
                };
                let _ = write!(out, "    n{index} [label=");
                quote(&mut out, &self.name(index));
                let _ = writeln!(out, "{style}];");
            }
            out.push_str("  }\n");
        }
        for (from, to, label) in self.handed_over(shown) {
            let _ = write!(out, "  n{from} -> n{to} [label=");
            quote(&mut out, &label);
            out.push_str("];\n");
        }
        out.push_str("}\n");
        out
    }

    fn mermaid(&self, shown: &[u32]) -> String {
        let text = |text: &str| {
            text.replace('<', "&lt;")
                .replace('>', "&gt;")
                .replace('"', "&quot;")
        };
        let mut out = String::from("flowchart LR\n");
        for (module, nodes) in self.by_module(shown) {
            let path = &self.modules[module as usize].path;
            let label = if path.is_root() { "(root)" } else { path.as_str() };
            let _ = writeln!(out, "  subgraph m{module}[\"{label}\"]");
            for index in nodes {
                let _ = writeln!(out, "    n{index}[\"{}\"]", text(&self.name(index)));
            }
            out.push_str("  end\n");
        }
        for (from, to, label) in self.handed_over(shown) {
            let _ = if label.is_empty() {
                writeln!(out, "  n{from} --> n{to}")
            } else {
                writeln!(out, "  n{from} -->|\"{}\"| n{to}", text(&label))
            };
        }
        out
    }

    fn json(&self, shown: &[u32]) -> String {
        let nodes = shown.iter().map(|&index| {
            let node = &self.nodes[index as usize];
            let place = node.function.place;
            let role = match node.role {
                Role::Provide(Visibility::Public) => "provide",
                Role::Provide(Visibility::Private) => "provide-private",
                Role::Provide(Visibility::PerModule) => "provide-per-module",
                Role::Run => "run",
                Role::Decorate => "decorate",
                Role::Root => "root",
                Role::Replace => "replace",
            };
            let needs = self.needs_of(index).iter().map(|need| Json::text(need.key));
            let gives = self.gives_of(index).iter().map(|give| Json::text(give.key));
            Json::Object(vec![
                ("id", Json::Number(index.into())),
                ("name", Json::text(self.name(index))),
                ("module", Json::text(self.module_of(index))),
                ("role", Json::text(role)),
                ("constructed", Json::Bool(self.order.contains(&index))),
                ("file", Json::text(place.file())),
                ("line", Json::Number(place.line().into())),
                ("needs", Json::List(needs.collect())),
                ("gives", Json::List(gives.collect())),
            ])
        });
        let edges = self.handed_over(shown).into_iter().map(|(from, to, types)| {
            Json::Object(vec![
                ("from", Json::Number(from.into())),
                ("to", Json::Number(to.into())),
                ("types", Json::text(types)),
            ])
        });
        Json::Object(vec![
            ("functions", Json::List(nodes.collect())),
            ("edges", Json::List(edges.collect())),
        ])
        .pretty()
    }
}
