// SPDX-License-Identifier: Apache-2.0

//! Words for what is wrong with a graph.

use std::collections::VecDeque;

use super::graph::{Connect, Unmet};
use super::{Graph, Node, Provider, Role};
use crate::cell::Visibility;
use crate::finding::{Code, Finding, Severity};
use crate::inject::NeedKind;
use crate::key::{Key, short_function, short_type};
use crate::module::ModulePath;
use crate::supply::{Give, GiveKind};

/// Reports needs that are not met, escapes from scopes, and what is unused.
pub(crate) fn report(connect: &Connect, reachable: &[bool], findings: &mut Vec<Finding>) {
    let graph = &connect.graph;
    let mut wanted_by = None;
    for unmet in connect.unmet() {
        let node = &graph.nodes[unmet.node as usize];
        let first = graph.gives_of(unmet.node).first();
        let decorates = first.is_some_and(|give| give.key == unmet.need.key);
        if node.role == Role::Decorate && decorates && !reachable[unmet.node as usize] {
            // Reported as a decorator below.
            continue;
        }
        let severity = if reachable[unmet.node as usize] {
            Severity::Error
        } else {
            Severity::Warning
        };
        let mut finding = missing(connect, unmet, severity);
        if severity == Severity::Error {
            let parents = wanted_by.get_or_insert_with(|| parents(graph));
            finding.path = path(graph, parents, unmet.node);
        } else {
            finding
                .help
                .push("nothing that runs needs this function; it is not constructed".into());
        }
        findings.push(finding);
    }
    report_escapes(connect, reachable, findings);
    report_unused(connect, reachable, findings);
    report_wrong_members(graph, reachable, findings);
}

/// Reports members of groups that no constructor collects, if one collects a group whose elements have the same name:
/// `Member<Command>` is in no list of `All<dyn Command>`.
fn report_wrong_members(graph: &Graph, reachable: &[bool], findings: &mut Vec<Finding>) {
    let enabled = || (0..graph.nodes.len() as u32).filter(|node| graph.nodes[*node as usize].enabled);
    let mut collected: Vec<(Key, u32)> = Vec::new();
    for node in enabled().filter(|node| reachable[*node as usize]) {
        let groups = graph
            .needs_of(node)
            .iter()
            .filter(|need| need.kind == NeedKind::Group);
        collected.extend(groups.map(|need| (need.key, node)));
    }
    for node in enabled() {
        for give in graph
            .gives_of(node)
            .iter()
            .filter(|give| give.kind != GiveKind::One)
        {
            if collected.iter().any(|(key, _)| *key == give.key) {
                continue;
            }
            let core = element(&give.key.to_string());
            let Some((near, collector)) = collected
                .iter()
                .find(|(key, _)| element(&key.to_string()) == core)
            else {
                continue;
            };
            let message = format!(
                "nothing collects members of `{}`; `{near}` is collected",
                give.key
            );
            let finding = Finding::warning(Code::WrongMember, message);
            let finding = involve_node(finding, graph, "provided by", node);
            findings.push(involve_node(finding, graph, "collected by", *collector).help(
                "give and collect members of one type, such as `Member<dyn Trait>` and `All<dyn Trait>`",
            ));
        }
    }
}

/// The name of the elements of a group: `Command` of `All<Arc<dyn Command>>`.
fn element(group: &str) -> String {
    const AROUND: [&str; 8] = ["All", "Member", "Members", "Arc", "Box", "dyn", "Send", "Sync"];
    group
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty() && !AROUND.contains(word))
        .collect::<Vec<_>>()
        .join(" ")
}

fn report_escapes(connect: &Connect, reachable: &[bool], findings: &mut Vec<Finding>) {
    let graph = &connect.graph;
    for escape in connect.escapes() {
        if !reachable[escape.node as usize] {
            continue;
        }
        let scope = &graph.lifecycles[graph.nodes[escape.target as usize].lifecycle as usize];
        let message = format!(
            "`{}` lives in scope `{}` and is needed outside of it",
            escape.need.key, scope.name
        );
        let finding = involve_node(
            Finding::error(Code::ScopeEscape, message),
            graph,
            "needed by",
            escape.node,
        );
        findings.push(
            involve_node(finding, graph, "provided by", escape.target).help(format!(
                "put the function into the scope, or take `{}` and start the scope",
                scope.scope.map(|scope| scope.key.to_string()).unwrap_or_default()
            )),
        );
    }
}

/// Reports constructors and decorators that nothing uses, and decorators of what is not provided.
fn report_unused(connect: &Connect, reachable: &[bool], findings: &mut Vec<Finding>) {
    let graph = &connect.graph;
    // What is missing or wrong may be what would use it.
    let broken = findings.iter().any(|finding| finding.severity == Severity::Error);
    let unused = |index: u32, role: &'static str, help: &str| {
        let name = short_function(graph.nodes[index as usize].function.name);
        let finding = Finding::warning(Code::Unused, format!("nothing uses `{name}`"));
        involve_node(finding, graph, role, index).help(help)
    };
    for (index, node) in graph.nodes.iter().enumerate() {
        if !node.enabled || reachable[index] || node.library || node.instance_of.is_some() {
            continue;
        }
        let index = index as u32;
        match node.role {
            Role::Provide(_) | Role::Replace
                if !broken && !graph.instances.keys().any(|(of, _)| *of == index) =>
            {
                let help = "remove it, or mark the cell with `.library()`";
                findings.push(unused(index, "provided by", help));
            }
            Role::Decorate => {
                let key = graph.gives_of(index).first().map(|give| give.key);
                let mut unmet = connect.unmet().iter();
                match key {
                    Some(key) if unmet.any(|unmet| unmet.node == index && unmet.need.key == key) => {
                        let message = format!("nothing provides `{key}`, which this decorates");
                        let finding = Finding::error(Code::BadDecorator, message);
                        findings.push(
                            involve_node(finding, graph, "decorator", index)
                                .help("put it on a module that sees the value, or leave it out"),
                        );
                    }
                    _ if broken => {}
                    _ => {
                        let help = "nothing inside of its module asks for what it decorates";
                        findings.push(unused(index, "decorator", help));
                    }
                }
            }
            _ => {}
        }
    }
}

fn involve_node(finding: Finding, graph: &Graph, role: &'static str, index: u32) -> Finding {
    let node = &graph.nodes[index as usize];
    finding.involve(
        role,
        graph.name(index),
        Some(node.function.place),
        graph.module_of(index),
    )
}

fn involve_provider(finding: Finding, graph: &Graph, role: &'static str, provider: Provider) -> Finding {
    match provider {
        Provider::Node { node, .. } => involve_node(finding, graph, role, node),
        Provider::Slot(slot) => match graph.configs.iter().find(|config| config.slot == slot) {
            Some(config) => {
                let module = &graph.modules[config.module as usize].path;
                finding.involve(
                    role,
                    format!("config::<{}>", config.config.name),
                    Some(config.place),
                    module,
                )
            }
            None => finding,
        },
    }
}

/// For every node the one through which it is wanted first.
fn parents(graph: &Graph) -> Vec<Option<u32>> {
    let mut parents = vec![None; graph.nodes.len()];
    let mut seen = vec![false; graph.nodes.len()];
    let mut queue = VecDeque::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if node.enabled && matches!(node.role, Role::Run | Role::Root) {
            seen[index] = true;
            queue.push_back(index as u32);
        }
    }
    while let Some(index) = queue.pop_front() {
        for edge in graph.edges_of(index) {
            if !std::mem::replace(&mut seen[*edge as usize], true) {
                parents[*edge as usize] = Some(index);
                queue.push_back(*edge);
            }
        }
    }
    parents
}

/// How a node is wanted, from what is run to the one before it.
fn path(graph: &Graph, parents: &[Option<u32>], node: u32) -> Vec<String> {
    let mut steps = Vec::new();
    let mut at = parents[node as usize];
    while let Some(index) = at {
        let module = graph.module_of(index);
        let module = if module.is_root() {
            "(root)"
        } else {
            module.as_str()
        };
        let role = if graph.nodes[index as usize].role == Role::Run {
            "run "
        } else {
            ""
        };
        steps.push(format!("{module} {role}`{}`", graph.name(index)));
        at = parents[index as usize];
    }
    steps.reverse();
    steps
}

fn missing(connect: &Connect, unmet: &Unmet, severity: Severity) -> Finding {
    let graph = &connect.graph;
    let key = unmet.need.key;
    let entry = graph.entry(key);
    if let Some(entry) = entry
        && let Some((_, provider)) = entry.private.first()
    {
        let message = format!("`{key}` is private to another module");
        let finding = Finding::new(Code::Private, severity, message);
        let finding = involve_node(finding, graph, "needed by", unmet.node);
        return involve_provider(finding, graph, "private to", *provider).help(
            "use `.provide` instead of `.provide_private` there, or move the function into that module",
        );
    }
    if let Some(entry) = entry
        && let Some(&disabled) = entry.disabled.first()
    {
        let message = format!("`{key}` is provided by a cell that is disabled");
        let finding = Finding::new(Code::Disabled, severity, message);
        let finding = involve_node(finding, graph, "needed by", unmet.node);
        let mut finding = involve_node(finding, graph, "disabled", disabled);
        let mut at = graph.nodes[disabled as usize].condition;
        while let Some(number) = at {
            let placed = &connect.conditions[number as usize];
            let outer_holds = placed
                .parent
                .is_none_or(|parent| connect.conditions[parent as usize].holds);
            if !placed.holds && outer_holds {
                let module = &graph.modules[placed.module as usize].path;
                finding = finding.involve(
                    "condition",
                    format!("when on {}", placed.condition.name),
                    Some(placed.condition.place),
                    module,
                );
                let settings = graph
                    .configs
                    .iter()
                    .filter(|config| config.config.key == placed.condition.key)
                    .flat_map(|config| &config.settings);
                let names = |switches: bool| -> Vec<String> {
                    let of_kind = settings
                        .clone()
                        .filter(|setting| setting.field.is_bool || !switches);
                    of_kind.map(|setting| format!("`--{}`", setting.name)).collect()
                };
                // Most conditions ask for a switch.
                let (switches, all) = (names(true), names(false));
                finding
                    .help
                    .push(if switches.is_empty() || switches.len() == all.len() {
                        format!("the condition of module `{module}` depends on {}", all.join(", "))
                    } else {
                        format!(
                            "the condition of module `{module}` depends on {} or another setting of `{}`",
                            switches.join(", "),
                            placed.condition.name
                        )
                    });
            }
            at = placed.parent;
        }
        return finding.help(format!("ask for `Option<{key}>` if the function can do without"));
    }

    let finding = Finding::new(Code::Missing, severity, format!("nothing provides `{key}`"));
    let mut finding = involve_node(finding, graph, "needed by", unmet.node);
    finding.help.extend(near_misses(graph, key));
    finding.help.extend(crate::catalogue::suggestions(key));
    if finding.help.is_empty() {
        finding.help.push(how_to_provide(key));
    }
    finding
}

/// For a value of which nothing like it is there.
fn how_to_provide(key: Key) -> String {
    let name = short_type(key.full_name());
    let inner = |wrapper: &str| name.strip_prefix(wrapper).and_then(|rest| rest.strip_suffix('>'));
    if let Some(config) = inner("Cfg<") {
        format!("declare it with `.config::<{config}>()` in the cell that owns it")
    } else if let Some(scope) = inner("Scope<") {
        format!("declare it with `Cell::scope::<{scope}>(...)`")
    } else {
        format!("add a cell whose constructor returns `{name}`")
    }
}

/// The name of a type without `Arc<>`, `dyn` and the like.
fn core_name(name: &str) -> &str {
    let mut name = name;
    let wrappers = ["Arc<", "Cfg<", "All<", "Option<"];
    while let Some(inner) = wrappers
        .iter()
        .find_map(|wrapper| name.strip_prefix(wrapper)?.strip_suffix('>'))
    {
        name = inner;
    }
    name.strip_prefix("dyn ")
        .unwrap_or(name)
        .split(['<', ' '])
        .next()
        .unwrap_or(name)
}

/// Keys of similar names that are provided.
fn near_misses(graph: &Graph, key: Key) -> Vec<String> {
    let wanted = short_type(key.full_name());
    let core = core_name(&wanted).to_owned();
    let mut same = Vec::new();
    let mut names = Vec::new();
    for entry in graph.entries.iter().filter(|entry| entry.key != key) {
        let other = entry.key;
        let provided = entry
            .public
            .or(entry.private.first().map(|(_, provider)| *provider));
        let name = short_type(other.full_name());
        if let Some(&(member, ..)) = entry.members.first()
            && core_name(&name) == core
        {
            same.push(format!(
                "members of the group `{name}` exist, such as the one of `{}`",
                graph.name(member)
            ));
        }
        let Some(provider) = provided else { continue };
        if core_name(&name) == core {
            let by = match provider {
                Provider::Node { node, .. } => graph.name(node),
                Provider::Slot(_) => "a configuration".to_owned(),
            };
            let how = if name == wanted {
                format!(
                    "`{}` is provided by `{by}`: another type of that name",
                    other.full_name()
                )
            } else if wanted.contains("dyn ") != name.contains("dyn ") && wanted.contains(core.as_str()) {
                format!("`{name}` is provided by `{by}`; add a constructor that turns it into `{wanted}`")
            } else {
                format!("`{name}` is provided by `{by}`")
            };
            same.push(how);
        } else {
            names.push(name);
        }
    }
    if same.is_empty() {
        let implementation = bound_candidates(&wanted, &core, &names);
        same.extend(implementation);
    }
    if same.is_empty()
        && let Some(near) = crate::similar::closest(&wanted, names.iter().map(String::as_str))
    {
        same.push(format!("did you mean `{near}`?"));
    }
    same.sort();
    same.truncate(3);
    same
}

/// For a trait that nothing provides: values whose name ends in the trait's, such as `MemoryStore` for
/// `dyn Store`.
fn bound_candidates(wanted: &str, core: &str, names: &[String]) -> Vec<String> {
    if !wanted.starts_with("Arc<dyn ") {
        return Vec::new();
    }
    let mut found: Vec<String> = names
        .iter()
        .filter(|name| !name.contains("dyn ") && core_name(name).ends_with(core))
        .map(|name| {
            format!(
                "if `{}` implements it, add a constructor that turns `{name}` into `{wanted}`",
                core_name(name)
            )
        })
        .collect();
    found.sort();
    found
}

pub(crate) fn duplicate(graph: &Graph, key: Key, first: Provider, second: u32) -> Finding {
    let finding = Finding::error(Code::DuplicateProvider, format!("two providers of `{key}`"));
    let finding = involve_provider(finding, graph, "first", first);
    involve_node(finding, graph, "second", second)
        .help("make one of them private to its module; in tests use `.replace(...)`")
}

pub(crate) fn duplicate_config(graph: &Graph, first: Provider, second: usize) -> Finding {
    let config = &graph.configs[second];
    let finding = Finding::error(
        Code::DuplicateProvider,
        format!("two cells declare the configuration `{}`", config.config.name),
    );
    let module = &graph.modules[config.module as usize].path;
    involve_provider(finding, graph, "first", first)
        .involve(
            "second",
            format!("config::<{}>", config.config.name),
            Some(config.place),
            module,
        )
        .help("declare it in one cell; others ask for it")
}

pub(crate) fn shadowing(graph: &Graph, node: &Node, key: Key, hidden: Provider) -> Finding {
    let module = &graph.modules[node.module as usize].path;
    let finding = Finding::error(
        Code::Shadowing,
        format!("a private `{key}` hides one from further out"),
    )
    .involve(
        "private",
        short_function(node.function.name),
        Some(node.function.place),
        module,
    );
    involve_provider(finding, graph, "hidden", hidden).help("give one of them a type of its own")
}

pub(crate) fn bad_decorator(graph: &Graph, index: u32) -> Finding {
    let message = "a decorator takes one value and gives one of the same type".to_owned();
    involve_node(
        Finding::error(Code::BadDecorator, message),
        graph,
        "decorator",
        index,
    )
    .help("for example `fn(client: Arc<Client>) -> Arc<Client>`")
}

pub(crate) fn bad_replacement(graph: &Graph, index: u32, give: &Give) -> Finding {
    let message = if give.kind == GiveKind::One {
        format!("replace changes nothing: no cell provides `{}`", give.key)
    } else {
        format!("members of the group `{}` cannot be replaced", give.key)
    };
    let function = &graph.nodes[index as usize].function;
    let mut finding = Finding::error(Code::BadOverride, message).involve(
        "asked by",
        format!("replace({})", short_function(function.name)),
        Some(function.place),
        &ModulePath::root(),
    );
    finding.help.extend(near_misses(graph, give.key));
    finding
}

/// Reports one cycle of every knot that is left when all that can be ordered is gone.
pub(crate) fn cycles(graph: &Graph, waiting: &[u32], findings: &mut Vec<Finding>) {
    const NEW: u8 = 0;
    const OPEN: u8 = 1;
    const DONE: u8 = 2;
    let mut state = vec![NEW; graph.nodes.len()];
    for start in 0..graph.nodes.len() as u32 {
        if waiting[start as usize] == 0 || state[start as usize] != NEW {
            continue;
        }
        // Node and the number of its edge to be looked at next.
        let mut stack: Vec<(u32, usize)> = vec![(start, 0)];
        state[start as usize] = OPEN;
        while let Some(&(node, edge)) = stack.last() {
            let Some(&target) = graph.edges_of(node).get(edge) else {
                state[node as usize] = DONE;
                stack.pop();
                continue;
            };
            if let Some(top) = stack.last_mut() {
                top.1 += 1;
            }
            match state[target as usize] {
                NEW if waiting[target as usize] > 0 => {
                    state[target as usize] = OPEN;
                    stack.push((target, 0));
                }
                OPEN => {
                    let first = stack.iter().position(|(node, _)| *node == target).unwrap_or(0);
                    let cycle: Vec<u32> = stack[first..].iter().map(|(node, _)| *node).collect();
                    findings.push(cycle_finding(graph, &cycle));
                }
                _ => {}
            }
        }
    }
}

fn cycle_finding(graph: &Graph, cycle: &[u32]) -> Finding {
    let first = graph.name(cycle[0]);
    let mut finding = Finding::error(Code::Cycle, format!("`{first}` needs itself"));
    for (at, &node) in cycle.iter().enumerate() {
        let role = if at == 0 { "function" } else { "needs" };
        finding = involve_node(finding, graph, role, node);
    }
    finding = involve_node(finding, graph, "needs again", cycle[0]);
    let reports = cycle.iter().any(|node| {
        graph.nodes[*node as usize].role == Role::Provide(Visibility::Public)
            && graph.gives_of(*node).is_empty()
    });
    let help = if reports {
        "take the edge out"
    } else {
        "split one of the objects, or hand over data through a table"
    };
    finding.help(help)
}
