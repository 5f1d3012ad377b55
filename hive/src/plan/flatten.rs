// SPDX-License-Identifier: Apache-2.0

//! From nested cells to lists of modules, functions and configurations.

use std::collections::{HashMap, HashSet};
use std::panic::Location;

use super::{Module, Node, PlannedConfig, PlannedLifecycle, Role, Span};
use crate::assembly::Hive;
use crate::cell::{Cell, CellKind, CellNode, Check, Condition, ConfigChange, Declared, Item, Visibility};
use crate::config::{ConfigType, DeclaredSetting, Origin, Shared};
use crate::finding::{Code, Finding};
use crate::inject::Needs;
use crate::key::KeyHasher;
use crate::module::{ModulePath, is_module_id, is_module_title};
use crate::options::HiveOptions;
use crate::scope::ScopeType;
use crate::supply::Gives;

/// A condition at its place.
pub(crate) struct PlacedCondition {
    pub(crate) condition: Condition,
    pub(crate) module: u32,
    /// The condition around it.
    pub(crate) parent: Option<u32>,
    pub(crate) holds: bool,
}

#[derive(Default)]
pub(crate) struct Flat {
    pub(crate) modules: Vec<Module>,
    pub(crate) module_conditions: Vec<Option<u32>>,
    pub(crate) lifecycles: Vec<PlannedLifecycle>,
    pub(crate) conditions: Vec<PlacedCondition>,
    pub(crate) configs: Vec<PlannedConfig>,
    /// Values of the configurations. Before they are read: those that the program fixes.
    pub(crate) values: Vec<Option<Shared>>,
    pub(crate) checks: Vec<(Check, u32, Option<u32>)>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) needs: Needs,
    pub(crate) gives: Gives,
}

#[derive(Clone, Copy)]
struct At {
    module: u32,
    lifecycle: u32,
    condition: Option<u32>,
    library: bool,
}

struct Walk<'a> {
    flat: Flat,
    findings: &'a mut Vec<Finding>,
    /// Modules by the one around them and their own id.
    places: HashMap<(u32, &'static str), &'static Location<'static>, KeyHasher>,
    without: HashSet<&'a str>,
    matched: HashSet<String>,
    /// Changes to configurations, the outermost first, and whether they changed anything.
    changes: Vec<(&'a ConfigChange, bool)>,
    scopes: HashMap<std::any::TypeId, (&'static str, &'static Location<'static>)>,
}

/// How much there is, so that lists need not grow.
#[derive(Default)]
struct Size {
    modules: usize,
    configs: usize,
    functions: usize,
}

impl Size {
    fn add(&mut self, cell: &Cell) {
        self.modules += 1;
        for item in &cell.node.items {
            match item {
                Item::Config(_) => self.configs += 1,
                Item::Provide(_) | Item::Run(_) | Item::Decorate(_) => self.functions += 1,
                Item::Check(_) => {}
                Item::Cell(cell) => self.add(cell),
            }
        }
    }
}

pub(crate) fn flatten(hive: &Hive, findings: &mut Vec<Finding>) -> Flat {
    let mut size = Size::default();
    hive.cells.iter().for_each(|cell| size.add(cell));
    let mut walk = Walk {
        flat: Flat {
            modules: Vec::with_capacity(size.modules + 1),
            module_conditions: Vec::with_capacity(size.modules + 1),
            configs: Vec::with_capacity(size.configs + 1),
            values: Vec::with_capacity(size.configs + 1),
            nodes: Vec::with_capacity(size.functions),
            needs: Needs(Vec::with_capacity(size.functions * 4)),
            gives: Gives(Vec::with_capacity(size.functions)),
            ..Flat::default()
        },
        findings,
        places: HashMap::with_capacity_and_hasher(size.modules, KeyHasher::default()),
        without: hive.without.iter().map(|(path, _)| path.as_str()).collect(),
        matched: HashSet::new(),
        changes: Vec::new(),
        scopes: HashMap::new(),
    };
    walk.flat.modules.push(Module {
        path: ModulePath::root(),
        title: "",
        parent: 0,
        enabled: true,
    });
    walk.flat.module_conditions.push(None);
    walk.flat.lifecycles.push(PlannedLifecycle {
        name: "hive",
        parent: 0,
        scope: None,
        needs: Vec::new(),
        slot: 0,
    });
    let at = At {
        module: 0,
        lifecycle: 0,
        condition: None,
        library: false,
    };
    walk.config(ConfigType::of::<HiveOptions>(), Location::caller(), at);
    for cell in &hive.cells {
        walk.cell(cell, at);
    }
    for function in &hive.roots {
        walk.node(function, Role::Root, at);
    }
    for function in &hive.replacements {
        walk.node(function, Role::Replace, at);
    }
    walk.report_idle_omissions(hive);
    walk.flat
}

impl<'a> Walk<'a> {
    /// Reports modules that are to be left out and are not there.
    fn report_idle_omissions(&mut self, hive: &Hive) {
        for (path, place) in &hive.without {
            if self.matched.contains(path) {
                continue;
            }
            let mut finding = Finding::error(
                Code::BadOverride,
                format!("there is no module `{path}` to leave out"),
            )
            .involve(
                "asked by",
                format!("without({path:?})"),
                Some(place),
                &ModulePath::root(),
            );
            let known = self.flat.modules.iter().map(|module| module.path.as_str());
            if let Some(near) = crate::similar::closest(path, known) {
                finding = finding.help(format!("did you mean `{near}`?"));
            }
            self.findings.push(finding);
        }
    }

    fn cell(&mut self, cell: &'a Cell, at: At) {
        let node = &*cell.node;
        let mut at = At {
            library: at.library || node.library,
            ..at
        };
        match &node.kind {
            CellKind::Module { id, title } => {
                let Some(module) = self.module(id, title, node.place, at) else {
                    return;
                };
                at.module = module;
            }
            CellKind::Group => {}
            CellKind::Scope { scope, name } => {
                let Some(lifecycle) = self.scope(*scope, name, node.place, at) else {
                    return;
                };
                at.lifecycle = lifecycle;
            }
        }
        for misplaced in &node.misplaced {
            let path = &self.flat.modules[at.module as usize].path;
            let message = format!("`.{}` stands where it changes nothing", misplaced.call);
            let finding = Finding::error(Code::Misplaced, message)
                .involve("called", misplaced.call.clone(), Some(misplaced.place), path)
                .help(format!("put it directly after {}", misplaced.follows));
            self.findings.push(finding);
        }
        for condition in &node.conditions {
            let number = self.flat.conditions.len() as u32;
            self.flat.conditions.push(PlacedCondition {
                condition: condition.clone(),
                module: at.module,
                parent: at.condition,
                holds: true,
            });
            at.condition = Some(number);
        }
        if !matches!(node.kind, CellKind::Group | CellKind::Scope { .. }) {
            self.flat.module_conditions[at.module as usize] = at.condition;
        }

        let outer = self.changes.len();
        self.changes
            .extend(node.changes.iter().map(|(change, _)| (change, false)));
        for item in &node.items {
            match item {
                Item::Config(declared) => self.config((declared.config)(), declared.place, at),
                Item::Provide(provide) => {
                    let mut at = at;
                    at.library |= provide.library;
                    self.node(&provide.function, Role::Provide(provide.visibility), at);
                }
                Item::Run(function) => self.node(function, Role::Run, at),
                Item::Decorate(function) => self.node(function, Role::Decorate, at),
                Item::Check(check) => self
                    .flat
                    .checks
                    .push(((**check).clone(), at.module, at.condition)),
                Item::Cell(cell) => self.cell(cell, at),
            }
        }
        self.end_changes(outer, node, at);
    }

    /// Reports changes to configurations that changed nothing, and forgets the cell's.
    fn end_changes(&mut self, outer: usize, node: &CellNode, at: At) {
        for ((change, used), (_, place)) in self.changes.split_off(outer).into_iter().zip(&node.changes) {
            if used {
                continue;
            }
            let what = match change {
                ConfigChange::Value { name, .. } => format!("config_value of `{name}`"),
                ConfigChange::Prefix(prefix) => format!("config_prefix {prefix:?}"),
            };
            let path = &self.flat.modules[at.module as usize].path;
            let message = format!("{what} changes nothing: no cell inside has such a configuration");
            let finding =
                Finding::error(Code::BadOverride, message).involve("asked by", what, Some(place), path);
            self.findings.push(finding);
        }
    }

    fn scope(
        &mut self,
        scope: ScopeType,
        name: &'static str,
        place: &'static Location<'static>,
        at: At,
    ) -> Option<u32> {
        let path = &self.flat.modules[at.module as usize].path;
        if let Some((other, first)) = self.scopes.insert(scope.key.id(), (name, place)) {
            let finding = Finding::error(
                Code::DuplicateProvider,
                format!("two scopes are named by `{}`", scope.key),
            )
            .involve("first", other, Some(first), path)
            .involve("second", name, Some(place), path)
            .help("give each scope a type of its own");
            self.findings.push(finding);
            return None;
        }
        let number = self.flat.lifecycles.len() as u32;
        self.flat.lifecycles.push(PlannedLifecycle {
            name,
            parent: at.lifecycle,
            scope: Some(scope),
            needs: Vec::new(),
            slot: 0,
        });
        Some(number)
    }

    fn module(
        &mut self,
        id: &'static str,
        title: &'static str,
        place: &'static Location<'static>,
        at: At,
    ) -> Option<u32> {
        let parent = &self.flat.modules[at.module as usize].path;
        if !is_module_id(id) || !is_module_title(title) {
            let (what, text, form) = if is_module_id(id) {
                (
                    "title",
                    title,
                    "1 to 80 letters, digits, blanks, dashes and underscores",
                )
            } else {
                (
                    "id",
                    id,
                    "2 to 31 lower-case letters, digits, dashes and underscores, a letter first",
                )
            };
            let finding = Finding::error(
                Code::BadModule,
                format!("`{text}` cannot be the {what} of a module"),
            )
            .involve(
                "declared",
                format!("module({id:?}, {title:?})"),
                Some(place),
                parent,
            )
            .help(format!("expected {form}"));
            // Goes on: what is inside may have faults of its own.
            self.findings.push(finding);
        }
        let path = parent.child(id);
        if !self.without.is_empty() && self.without.contains(path.as_str()) {
            self.matched.insert(path.to_string());
            return None;
        }
        if let Some(first) = self.places.insert((at.module, id), place) {
            let name = format!("module({id:?})");
            let finding = Finding::error(Code::DuplicateModule, format!("two modules are named `{path}`"))
                .involve("first", name.clone(), Some(first), parent)
                .involve("second", name, Some(place), parent)
                .help("list the cell once, or give the second module another id");
            self.findings.push(finding);
            return None;
        }
        let number = self.flat.modules.len() as u32;
        self.flat.modules.push(Module {
            path,
            title,
            parent: at.module,
            enabled: true,
        });
        self.flat.module_conditions.push(at.condition);
        Some(number)
    }

    fn config(&mut self, config: ConfigType, place: &'static Location<'static>, at: At) {
        let mut fixed = None;
        let mut prefix = String::new();
        // The outermost cell has the last word about the value; prefixes stand one before the other.
        for (change, used) in &mut self.changes {
            match change {
                ConfigChange::Value { key, make, .. } if *key == config.key => {
                    *used = true;
                    if fixed.is_none() {
                        fixed = Some(make());
                    }
                }
                ConfigChange::Prefix(text) => {
                    *used = true;
                    prefix = format!("{prefix}{text}-");
                }
                _ => {}
            }
        }
        let settings = config.fields.iter().map(|field| DeclaredSetting {
            field,
            origin: Origin::Default,
            name: if prefix.is_empty() {
                field.flag.into()
            } else {
                format!("{prefix}{}", field.flag).into()
            },
        });
        self.flat.configs.push(PlannedConfig {
            config,
            module: at.module,
            slot: self.flat.configs.len() as u32,
            place,
            settings: settings.collect(),
        });
        self.flat.values.push(fixed);
    }

    fn node(&mut self, declared: &Declared, role: Role, at: At) {
        let (needs, gives) = (&mut self.flat.needs, &mut self.flat.gives);
        let (first_need, first_give) = (needs.0.len() as u32, gives.0.len() as u32);
        declared.needs(needs);
        declared.gives(gives);
        self.flat.nodes.push(Node {
            function: declared.function.clone(),
            role,
            module: at.module,
            lifecycle: at.lifecycle,
            enabled: true,
            library: at.library,
            condition: at.condition,
            instance_of: None,
            first_slot: 0,
            needs: Span {
                start: first_need,
                end: needs.0.len() as u32,
            },
            gives: Span {
                start: first_give,
                end: gives.0.len() as u32,
            },
        });
    }
}

impl Node {
    /// An instance of a per-module constructor for a module.
    pub(crate) fn instance(of: u32, original: &Self, module: u32, lifecycle: u32) -> Self {
        Self {
            function: original.function.clone(),
            role: Role::Provide(Visibility::PerModule),
            module,
            lifecycle,
            enabled: true,
            library: true,
            condition: None,
            instance_of: Some(of),
            first_slot: 0,
            needs: original.needs,
            gives: original.gives,
        }
    }
}
