// SPDX-License-Identifier: Apache-2.0

//! What a hive shows of itself. All of it comes from the plan: nothing is constructed.

mod draw;
mod schema;
mod settings;
mod state;
mod tree;

pub use draw::{DrawError, GraphFormat, GraphView};
pub use settings::SettingInfo;
#[cfg(feature = "run")]
pub(crate) use settings::{declared, docs_of_unplanned, help_of_unplanned, with_hidden};

use std::collections::HashSet;
use std::fmt::Write;
use std::panic::Location;

use crate::catalogue::catalogue;
use crate::cell::{Cell, CellKind, Item};
use crate::engine::ConfigState;
use crate::plan::{Plan, Role};

impl Plan {
    /// The tree of cells: modules, their settings, functions, what these need and give.
    #[must_use]
    pub fn tree(&self) -> String {
        let mut out = String::from("Cells:\n\n");
        tree::cells(&mut out, &self.graph, &self.config_states());
        out
    }

    fn config_states(&self) -> Vec<ConfigState> {
        let pairs = self.graph.configs.iter().zip(&self.values);
        pairs
            .filter_map(|(config, value)| {
                Some(ConfigState {
                    slot: config.slot,
                    values: value.as_ref()?.value.render(),
                })
            })
            .collect()
    }

    /// The functions in the order in which they will run, with module and place.
    #[must_use]
    pub fn order(&self) -> String {
        let mut out = String::new();
        let rows: Vec<_> = self
            .graph
            .order
            .iter()
            .map(|&index| {
                let module = self.graph.module_of(index);
                let module = if module.is_root() {
                    "(root)".to_owned()
                } else {
                    module.to_string()
                };
                let place = self.graph.nodes[index as usize].function.place;
                (
                    module,
                    self.graph.name(index),
                    format!("{}:{}", place.file(), place.line()),
                )
            })
            .collect();
        let width = |column: fn(&(String, String, String)) -> &String| {
            rows.iter()
                .map(|row| column(row).chars().count())
                .max()
                .unwrap_or(0)
        };
        let (first, second) = (width(|row| &row.0), width(|row| &row.1));
        let digits = rows.len().to_string().len();
        for (number, (module, name, place)) in rows.iter().enumerate() {
            let _ = writeln!(
                out,
                "{:>digits$}  {module:<first$}  {name:<second$}  {place}",
                number + 1
            );
        }
        out
    }

    /// The modules by path, with their titles; the root is left out.
    #[must_use]
    pub fn modules(&self) -> Vec<(String, String, bool)> {
        let modules = self.graph.modules.iter().skip(1);
        modules
            .map(|module| (module.path.to_string(), module.title.to_string(), module.enabled))
            .collect()
    }

    /// How many functions the hive has, and how many of them run.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let all = self
            .graph
            .nodes
            .iter()
            .filter(|node| node.role != Role::Root && node.instance_of.is_none());
        (all.count(), self.graph.order.len())
    }

    /// Sizes, and the cells that are perhaps too small to be cells: those of one constructor and nothing else.
    #[must_use]
    pub fn stats(&self) -> String {
        let count =
            |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let (functions, run) = self.size();
        let mut out = format!(
            "{}, {}, {run} of them run, {}\n",
            count(self.graph.modules.len() - 1, "module"),
            count(functions, "function"),
            count(self.settings().len(), "setting"),
        );
        let mut small = String::new();
        for (number, module) in self.graph.modules.iter().enumerate().skip(1) {
            let number = number as u32;
            let inside = self
                .graph
                .modules
                .iter()
                .skip(1)
                .any(|other| other.parent == number);
            let configured = self.graph.configs.iter().any(|config| config.module == number);
            let mut own = (0..self.graph.nodes.len() as u32).filter(|index| {
                let node = &self.graph.nodes[*index as usize];
                node.module == number && node.instance_of.is_none() && node.role != Role::Root
            });
            let (Some(only), None) = (own.next(), own.next()) else {
                continue;
            };
            let node = &self.graph.nodes[only as usize];
            if !inside && !configured && node.role != Role::Run && self.graph.needs_of(only).is_empty() {
                let _ = writeln!(small, "  {}: only `{}`", module.path, self.graph.name(only));
            }
        }
        if !small.is_empty() {
            let _ = write!(out, "perhaps too small to be cells:\n{small}");
        }
        out
    }

    /// The cells of the catalogue: which of them this hive uses.
    #[must_use]
    pub fn catalogue(&self) -> String {
        let mut places = HashSet::new();
        self.hive.cells.iter().for_each(|cell| collect(cell, &mut places));
        let rows: Vec<_> = catalogue()
            .map(|entry| {
                let cell = (entry.cell)();
                let used = if places.contains(cell.node.place) {
                    "used"
                } else {
                    "-"
                };
                (used, entry.path, describe(&cell))
            })
            .collect();
        let width = rows.iter().map(|(_, path, _)| path.len()).max().unwrap_or(0);
        let mut out = String::new();
        for (used, path, what) in rows {
            let _ = writeln!(out, "{used:<4}  {path:<width$}  {what}");
        }
        out
    }
}

/// What a cell is: a module with its title, or the modules of a group or scope.
fn describe(cell: &Cell) -> String {
    let inside = || {
        let cells = cell.node.items.iter().filter_map(|item| match item {
            Item::Cell(cell) => Some(describe_inside(cell)),
            _ => None,
        });
        cells.collect::<Vec<_>>().join(", ")
    };
    match &cell.node.kind {
        CellKind::Module { id, title } => format!("{} ({})", &**id, &**title),
        CellKind::Group => inside(),
        CellKind::Scope { name, .. } => format!("scope {name}: {}", inside()),
    }
}

/// The same within a list: modules without their titles.
fn describe_inside(cell: &Cell) -> String {
    match &cell.node.kind {
        CellKind::Module { id, .. } => id.to_string(),
        _ => describe(cell),
    }
}

/// Where the cells of a hive were made.
fn collect(cell: &Cell, places: &mut HashSet<&'static Location<'static>>) {
    places.insert(cell.node.place);
    for item in &cell.node.items {
        if let Item::Cell(cell) = item {
            collect(cell, places);
        }
    }
}
