// SPDX-License-Identifier: Apache-2.0

//! The tree of cells with its hooks: the output of the command `hive`.

use std::fmt::Write;

use crate::cell::Visibility;
use crate::engine::{ConfigState, Engine, HookInfo};
use crate::inject::NeedKind;
use crate::key::{short_function, short_type};
use crate::plan::{Graph, Role};

/// Width at which lists of types are wrapped.
const WIDTH: usize = 80;

impl Engine {
    /// The tree, then start and stop hooks.
    pub(crate) fn tree(&self) -> String {
        let mut out = String::from("Cells:\n\n");
        cells(&mut out, &self.graph, &self.config_states());
        let hooks = self.hooks();
        let _ = writeln!(out, "\nStart hooks:\n");
        for hook in hooks.iter().filter(|hook| hook.has_start) {
            line(&mut out, hook);
        }
        let _ = writeln!(out, "\nStop hooks:\n");
        for hook in hooks.iter().rev().filter(|hook| hook.has_stop) {
            line(&mut out, hook);
        }
        out
    }
}

fn line(out: &mut String, hook: &HookInfo) {
    let _ = writeln!(out, "  • {} ({}) ({})", hook.name, hook.place, hook.module.id());
}

/// Writes modules in the order of their declaration, functions before sub-modules.
pub(crate) fn cells(out: &mut String, graph: &Graph, values: &[ConfigState]) {
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); graph.modules.len()];
    for (index, module) in graph.modules.iter().enumerate().skip(1) {
        children[module.parent as usize].push(index as u32);
    }
    let mut functions: Vec<Vec<u32>> = vec![Vec::new(); graph.modules.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        if node.instance_of.is_none() && node.role != Role::Root {
            functions[node.module as usize].push(index as u32);
        }
    }
    module(out, graph, values, &children, &functions, 0, 2);
}

fn module(
    out: &mut String,
    graph: &Graph,
    values: &[ConfigState],
    children: &[Vec<u32>],
    functions: &[Vec<u32>],
    index: u32,
    indent: usize,
) {
    for config in graph.configs.iter().filter(|config| config.module == index) {
        let Some(state) = values.iter().find(|state| state.slot == config.slot) else {
            continue;
        };
        let _ = writeln!(
            out,
            "{:indent$}⚙️ ({}) {{",
            "",
            short_function_of_type(config.config.name.full_name())
        );
        for (setting, value) in config.settings.iter().zip(&state.values) {
            let value = if setting.field.secret { "***" } else { value };
            let _ = writeln!(out, "{:indent$}    {}: {value}", "", setting.field.rust_name);
        }
        let _ = writeln!(out, "{:indent$}}}", "");
    }
    for &node in &functions[index as usize] {
        function(out, graph, node, indent);
    }
    for &child in &children[index as usize] {
        let shown = &graph.modules[child as usize];
        let state = if shown.enabled { "" } else { " [disabled]" };
        let _ = writeln!(
            out,
            "{:indent$}Ⓜ️ {} ({}):{state}",
            "",
            shown.path.id(),
            shown.title
        );
        module(out, graph, values, children, functions, child, indent + 4);
    }
}

fn function(out: &mut String, graph: &Graph, index: u32, indent: usize) {
    let node = &graph.nodes[index as usize];
    let mark = match node.role {
        Role::Provide(Visibility::Private) => "🚧🔒️",
        Role::Provide(Visibility::PerModule) => "🚧Ⓜ️",
        Role::Provide(Visibility::Public) => "🚧",
        Role::Decorate => "🔀",
        Role::Replace => "🔁",
        Role::Run | Role::Root => "🛠️",
    };
    let place = node.function.place;
    let name = short_function(node.function.name);
    let end = if node.role == Role::Run { "" } else { ":" };
    let _ = writeln!(
        out,
        "{:indent$}{mark} {name} ({}:{}){end}",
        "",
        place.file(),
        place.line()
    );
    if node.role == Role::Run {
        return;
    }
    let needs = graph.needs_of(index).iter().map(|need| {
        let name = short_type(need.key.full_name());
        match need.kind {
            NeedKind::Optional => format!("Option<{name}>"),
            NeedKind::After => format!("after {name}"),
            _ => name,
        }
    });
    wrapped(out, "⇨", needs.collect(), indent + 4);
    let gives = graph
        .gives_of(index)
        .iter()
        .map(|give| short_type(give.key.full_name()));
    wrapped(out, "⇦", gives.collect(), indent + 4);
}

fn wrapped(out: &mut String, mark: &str, items: Vec<String>, indent: usize) {
    if items.is_empty() {
        return;
    }
    let mut line = format!("{:indent$}{mark} ", "");
    let mut used = indent + 2;
    for (index, item) in items.iter().enumerate() {
        let last = index + 1 == items.len();
        if used > indent + 2 && used + item.len() + 2 > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line = format!("{:width$}", "", width = indent + 2);
            used = indent + 2;
        }
        line.push_str(item);
        used += item.len();
        if !last {
            line.push_str(", ");
            used += 2;
        }
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

/// `crate::module::Type` as `module::Type`.
fn short_function_of_type(name: &str) -> String {
    let short = short_type(name);
    let outer = name.split('<').next().unwrap_or(name);
    match outer.rsplit("::").nth(1) {
        Some(module) => format!("{module}::{short}"),
        None => short,
    }
}
