// SPDX-License-Identifier: Apache-2.0

//! Connects needs with providers, and finds an order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::flatten::{Flat, PlacedConfig};
use super::lookup::{Found, find, is_inside};
use super::{Entry, Graph, Node, PlannedConfig, Provider, Role, problems};
use crate::assembly::Hive;
use crate::cell::Visibility;
use crate::config::{DeclaredSetting, Decoded};
use crate::finding::Finding;
use crate::health::HealthSink;
use crate::inject::{Builtin, Need, NeedKind, Source};
use crate::jobs::JobMetrics;
use crate::key::{Key, TypeMap, short_function};
use crate::metrics::HiveMetrics;
use crate::supply::GiveKind;

/// A need that nothing satisfies.
pub(crate) struct Unmet {
    pub(crate) node: u32,
    pub(crate) need: Need,
}

/// A node outside of a scope that needs one inside.
pub(crate) struct Escape {
    pub(crate) node: u32,
    pub(crate) target: u32,
    pub(crate) need: Need,
}

pub(crate) struct Connect {
    pub(crate) graph: Graph,
    pub(crate) conditions: Vec<super::flatten::PlacedCondition>,
    unmet: Vec<Unmet>,
    escapes: Vec<Escape>,
    /// Constructed although nothing asks for it: who measures the hive.
    observer: Option<u32>,
}

pub(crate) fn connect(
    _hive: &Hive,
    flat: Flat,
    findings: &mut Vec<Finding>,
) -> (Graph, Vec<Option<Box<dyn Decoded>>>) {
    let Flat {
        modules,
        lifecycles,
        conditions,
        configs,
        nodes,
        ..
    } = flat;
    let mut values = Vec::with_capacity(configs.len());
    let mut planned = Vec::with_capacity(configs.len());
    for (slot, config) in configs.into_iter().enumerate() {
        let PlacedConfig {
            config,
            private,
            module,
            place,
            fields,
            origins,
            value,
            ..
        } = config;
        let settings = fields
            .into_iter()
            .zip(origins.into_iter().map(Some).chain(std::iter::repeat(None)))
            .map(|(field, origin)| DeclaredSetting {
                field: field.field,
                name: field.name,
                origin: origin.unwrap_or(crate::config::Origin::Default),
            })
            .collect();
        planned.push(PlannedConfig {
            key: config.key,
            name: config.name,
            module,
            slot: slot as u32,
            place,
            settings,
            private,
        });
        values.push(value);
    }
    let graph = Graph {
        entries: TypeMap::with_capacity_and_hasher(nodes.len() * 2, Default::default()),
        modules,
        lifecycles,
        slots: planned.len() as u32,
        configs: planned,
        nodes,
        instances: HashMap::new(),
        order: Vec::new(),
        sink: None,
        metrics: None,
    };
    let mut connect = Connect {
        graph,
        conditions,
        unmet: Vec::new(),
        escapes: Vec::new(),
        observer: None,
    };
    connect.register(findings);
    connect.resolve();
    let reachable = connect.order(findings);
    problems::report(&connect, &reachable, findings);
    (connect.graph, values)
}

impl Connect {
    fn entry(&mut self, key: Key) -> &mut Entry {
        let entry = self.graph.entries.entry(key.id()).or_default();
        entry.key.get_or_insert(key);
        entry
    }

    /// Notes who provides what.
    fn register(&mut self, findings: &mut Vec<Finding>) {
        for index in 0..self.graph.configs.len() {
            let (key, slot) = (self.graph.configs[index].key, self.graph.configs[index].slot);
            let (module, private) = (
                self.graph.configs[index].module,
                self.graph.configs[index].private,
            );
            let entry = self.entry(key);
            let first = if private {
                let first = entry
                    .private
                    .iter()
                    .find(|(of, _)| *of == module)
                    .map(|(_, provider)| *provider);
                if first.is_none() {
                    entry.private.push((module, Provider::Slot(slot)));
                }
                first
            } else {
                let first = entry.public;
                entry.public = first.or(Some(Provider::Slot(slot)));
                first
            };
            if let Some(first) = first {
                findings.push(problems::duplicate_config(&self.graph, first, index));
            }
        }
        for index in 1..self.graph.lifecycles.len() {
            let slot = self.graph.slots;
            self.graph.slots += 1;
            self.graph.lifecycles[index].slot = slot;
            if let Some(scope) = self.graph.lifecycles[index].scope {
                self.entry(scope.key).public = Some(Provider::Slot(slot));
            }
        }
        for index in 0..self.graph.nodes.len() {
            let node = &mut self.graph.nodes[index];
            let function = node.function.clone();
            node.first_slot = self.graph.slots;
            self.graph.slots += function.gives.0.len() as u32;
            if !node.enabled {
                for give in &function.gives.0 {
                    self.entry(give.key).disabled.push(index as u32);
                }
                continue;
            }
            match node.role {
                Role::Provide(visibility) => self.provide(index as u32, visibility, findings),
                Role::Decorate => self.decorate(index as u32, findings),
                Role::Replace | Role::Run | Role::Root => {}
            }
        }
        for index in 0..self.graph.nodes.len() {
            if self.graph.nodes[index].role == Role::Replace {
                self.replace(index as u32, findings);
            }
        }
        self.check_shadowing(findings);
    }

    fn provide(&mut self, index: u32, visibility: Visibility, findings: &mut Vec<Finding>) {
        let node = &self.graph.nodes[index as usize];
        let (function, module) = (node.function.clone(), node.module);
        for (number, give) in function.gives.0.iter().enumerate() {
            let provider = Provider::Node {
                node: index,
                give: number as u32,
            };
            let private = visibility == Visibility::Private;
            let entry = self.entry(give.key);
            let first = match give.kind {
                GiveKind::Member | GiveKind::Members => {
                    let many = give.kind == GiveKind::Members;
                    entry
                        .members
                        .push((index, number as u32, many, private.then_some(module)));
                    continue;
                }
                GiveKind::One if private => {
                    match entry
                        .private
                        .iter()
                        .find(|(of, _)| *of == module)
                        .map(|(_, provider)| *provider)
                    {
                        None => {
                            entry.private.push((module, provider));
                            continue;
                        }
                        Some(first) => first,
                    }
                }
                GiveKind::One => match entry.public {
                    None => {
                        entry.public = Some(provider);
                        continue;
                    }
                    Some(first) => first,
                },
            };
            findings.push(problems::duplicate(&self.graph, give.key, first, index));
            // Reported once is enough.
            self.graph.nodes[index as usize].library = true;
        }
    }

    fn decorate(&mut self, index: u32, findings: &mut Vec<Finding>) {
        let node = &self.graph.nodes[index as usize];
        let (function, module) = (node.function.clone(), node.module);
        let single = matches!(&*function.gives.0, [give] if give.kind == GiveKind::One);
        let key = function.gives.0.first().map(|give| give.key);
        let takes = key.is_some_and(|key| {
            function
                .needs
                .0
                .iter()
                .any(|need| need.key == key && need.kind == NeedKind::One)
        });
        match key {
            Some(key) if single && takes => self.entry(key).decorators.push((module, index)),
            _ => {
                findings.push(problems::bad_decorator(&self.graph, index));
                // Reported once is enough.
                self.graph.nodes[index as usize].enabled = false;
            }
        }
    }

    fn replace(&mut self, index: u32, findings: &mut Vec<Finding>) {
        let function = self.graph.nodes[index as usize].function.clone();
        let mut module = None;
        for (number, give) in function.gives.0.iter().enumerate() {
            let provider = Provider::Node {
                node: index,
                give: number as u32,
            };
            let Some(entry) = self
                .graph
                .entries
                .get_mut(&give.key.id())
                .filter(|_| give.kind == GiveKind::One)
            else {
                findings.push(problems::bad_replacement(&self.graph, index, give));
                continue;
            };
            let mut replaced = false;
            for slot in entry
                .public
                .iter_mut()
                .chain(entry.private.iter_mut().map(|(_, provider)| provider))
            {
                if let Provider::Node { node, .. } = *slot {
                    module.get_or_insert(self.graph.nodes[node as usize].module);
                    self.graph.nodes[node as usize].library = true;
                }
                *slot = provider;
                replaced = true;
            }
            if !replaced {
                findings.push(problems::bad_replacement(&self.graph, index, give));
            }
        }
        // It may use what is private to the module for which it stands in.
        if let Some(module) = module {
            self.graph.nodes[index as usize].module = module;
        }
    }

    fn check_shadowing(&self, findings: &mut Vec<Finding>) {
        for node in self
            .graph
            .nodes
            .iter()
            .filter(|node| node.enabled && !node.shadows)
        {
            if node.role != Role::Provide(Visibility::Private) {
                continue;
            }
            for give in node
                .function
                .gives
                .0
                .iter()
                .filter(|give| give.kind == GiveKind::One)
            {
                let Some(entry) = self.graph.entries.get(&give.key.id()) else {
                    continue;
                };
                let outer = entry.private.iter().find(|(module, _)| {
                    *module != node.module && is_inside(&self.graph.modules, node.module, *module)
                });
                if let Some(hidden) = outer.map(|(_, provider)| *provider).or(entry.public) {
                    findings.push(problems::shadowing(&self.graph, node, give.key, hidden));
                }
            }
        }
    }

    /// Finds the provider of every need.
    fn resolve(&mut self) {
        let sink = self.public_node(Key::of::<Arc<dyn HealthSink>>());
        let metrics = self.public_node(Key::of::<Arc<dyn JobMetrics>>());
        self.observer = self
            .public_node(Key::of::<Arc<dyn HiveMetrics>>())
            .map(|(node, _)| node);
        let mut index = 0;
        // Instances of per-module constructors are added while this runs.
        while index < self.graph.nodes.len() {
            let node = &self.graph.nodes[index];
            if node.enabled
                && (node.role != Role::Provide(Visibility::PerModule) || node.instance_of.is_some())
            {
                self.resolve_node(index as u32);
            }
            index += 1;
        }
        let slot =
            |at: Option<(u32, u32)>| at.map(|(node, give)| self.graph.nodes[node as usize].first_slot + give);
        (self.graph.sink, self.graph.metrics) = (slot(sink), slot(metrics));
        self.connect_reporters(sink.into_iter().chain(metrics).map(|(node, _)| node).collect());
    }

    fn public_node(&self, key: Key) -> Option<(u32, u32)> {
        match self.graph.entries.get(&key.id())?.public? {
            Provider::Node { node, give } => Some((node, give)),
            Provider::Slot(_) => None,
        }
    }

    /// Whoever reports health or runs jobs comes after those who receive the reports, except what these
    /// need themselves.
    fn connect_reporters(&mut self, receivers: Vec<u32>) {
        if receivers.is_empty() {
            return;
        }
        let mut needed = vec![false; self.graph.nodes.len()];
        let mut stack = receivers.clone();
        while let Some(node) = stack.pop() {
            if !std::mem::replace(&mut needed[node as usize], true) {
                stack.extend(&self.graph.nodes[node as usize].edges);
            }
        }
        for (node, needed) in self.graph.nodes.iter_mut().zip(needed) {
            let reports = node
                .function
                .needs
                .0
                .iter()
                .any(|need| matches!(need.kind, NeedKind::Builtin(Builtin::Health | Builtin::Jobs)));
            if reports && !needed && node.enabled {
                node.edges.extend(&receivers);
            }
        }
    }

    fn resolve_node(&mut self, index: u32) {
        let function = self.graph.nodes[index as usize].function.clone();
        let module = self.graph.nodes[index as usize].module;
        let own = match self.graph.nodes[index as usize].role {
            Role::Decorate => function.gives.0.first().map(|give| give.key),
            _ => None,
        };
        let mut sources = Vec::with_capacity(function.needs.0.len());
        for need in &function.needs.0 {
            let source = match need.kind {
                NeedKind::Builtin(_) => Source::Builtin,
                NeedKind::Group => self.group(index, *need),
                NeedKind::One | NeedKind::Optional | NeedKind::After => {
                    let before = (own == Some(need.key)).then_some(index);
                    match self.provider_slot(index, module, *need, before) {
                        Some(slot) if need.kind != NeedKind::After => Source::Slot(slot),
                        Some(_) => Source::Edge,
                        None if need.kind == NeedKind::Optional => Source::Absent,
                        None => {
                            self.unmet.push(Unmet {
                                node: index,
                                need: *need,
                            });
                            Source::Absent
                        }
                    }
                }
            };
            sources.push(source);
        }
        self.graph.nodes[index as usize].sources = sources;
    }

    fn provider_slot(&mut self, index: u32, module: u32, need: Need, before: Option<u32>) -> Option<u32> {
        let entry = self.graph.entries.get(&need.key.id())?;
        let (target, give) = match find(&self.graph.modules, entry, module, before) {
            Found::Provider(Provider::Slot(slot)) => return Some(slot),
            Found::Provider(Provider::Node { node, give }) => (node, give),
            Found::Decorator(node) => (node, 0),
            Found::Nothing => return None,
        };
        let target = match self.graph.nodes[target as usize].role {
            Role::Provide(Visibility::PerModule) => self.instance(target, index),
            _ => target,
        };
        self.edge(index, target, need);
        Some(self.graph.nodes[target as usize].first_slot + give)
    }

    /// The instance of a per-module constructor for the module of `index`.
    fn instance(&mut self, of: u32, index: u32) -> u32 {
        let asking = &self.graph.nodes[index as usize];
        let key = (of, asking.module);
        if let Some(instance) = self.graph.instances.get(&key) {
            return *instance;
        }
        let original = &self.graph.nodes[of as usize];
        let mut node = Node::instance(of, original, asking.module, original.lifecycle);
        node.first_slot = self.graph.slots;
        self.graph.slots += node.function.gives.0.len() as u32;
        let number = self.graph.nodes.len() as u32;
        self.graph.nodes.push(node);
        self.graph.instances.insert(key, number);
        number
    }

    fn group(&mut self, index: u32, need: Need) -> Source {
        let Some(entry) = self.graph.entries.get(&need.key.id()) else {
            return Source::Absent;
        };
        let module = self.graph.nodes[index as usize].module;
        let mut slots = Vec::with_capacity(entry.members.len());
        let mut targets = Vec::with_capacity(entry.members.len());
        for &(node, give, many, private) in &entry.members {
            if private.is_none_or(|outer| is_inside(&self.graph.modules, module, outer)) {
                slots.push((self.graph.nodes[node as usize].first_slot + give, many));
                targets.push(node);
            }
        }
        self.graph.nodes[index as usize].edges.extend(targets);
        Source::Group(slots.into())
    }

    fn edge(&mut self, from: u32, to: u32, need: Need) {
        let (inner, outer) = (
            self.graph.nodes[from as usize].lifecycle,
            self.graph.nodes[to as usize].lifecycle,
        );
        if inner != outer && outer != 0 && !self.is_around(outer, inner) {
            if inner == 0 || self.is_around(inner, outer) {
                self.escapes.push(Escape {
                    node: from,
                    target: to,
                    need,
                });
            } else if !self.graph.lifecycles[inner as usize].needs.contains(&outer) {
                self.graph.lifecycles[inner as usize].needs.push(outer);
            }
        }
        self.graph.nodes[from as usize].edges.push(to);
    }

    /// Whether scope `outer` contains scope `inner`.
    fn is_around(&self, outer: u32, inner: u32) -> bool {
        let mut at = inner;
        while at != 0 {
            at = self.graph.lifecycles[at as usize].parent;
            if at == outer {
                return true;
            }
        }
        outer == 0
    }

    /// Orders all nodes; ties go to what was declared first. Returns who is needed by something that runs.
    fn order(&mut self, findings: &mut Vec<Finding>) -> Vec<bool> {
        let nodes = &self.graph.nodes;
        let mut starts = vec![0u32; nodes.len() + 1];
        let mut waiting = vec![0u32; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            waiting[index] = node.edges.len() as u32;
            for edge in &node.edges {
                starts[*edge as usize + 1] += 1;
            }
        }
        for index in 0..nodes.len() {
            starts[index + 1] += starts[index];
        }
        let mut dependents = vec![0u32; starts[nodes.len()] as usize];
        let mut fill = starts.clone();
        for (index, node) in nodes.iter().enumerate() {
            for edge in &node.edges {
                dependents[fill[*edge as usize] as usize] = index as u32;
                fill[*edge as usize] += 1;
            }
        }

        let mut ready: BinaryHeap<Reverse<u32>> = (0..nodes.len() as u32)
            .filter(|index| waiting[*index as usize] == 0)
            .map(Reverse)
            .collect();
        let mut order = Vec::with_capacity(nodes.len());
        while let Some(Reverse(index)) = ready.pop() {
            order.push(index);
            for at in starts[index as usize]..starts[index as usize + 1] {
                let dependent = dependents[at as usize];
                waiting[dependent as usize] -= 1;
                if waiting[dependent as usize] == 0 {
                    ready.push(Reverse(dependent));
                }
            }
        }
        if order.len() < nodes.len() {
            problems::cycles(&self.graph, &waiting, findings);
        }

        let mut reachable = vec![false; nodes.len()];
        let mut stack: Vec<u32> = (0..nodes.len() as u32)
            .filter(|index| {
                let node = &nodes[*index as usize];
                node.enabled && matches!(node.role, Role::Run | Role::Root)
            })
            .chain(self.observer)
            .collect();
        while let Some(index) = stack.pop() {
            if !std::mem::replace(&mut reachable[index as usize], true) {
                stack.extend(&nodes[index as usize].edges);
            }
        }
        order.retain(|index| reachable[*index as usize]);
        self.graph.order = order;
        reachable
    }

    pub(crate) fn unmet(&self) -> &[Unmet] {
        &self.unmet
    }

    pub(crate) fn escapes(&self) -> &[Escape] {
        &self.escapes
    }
}

impl Graph {
    /// The name of a node's function for people.
    pub(crate) fn name(&self, index: u32) -> String {
        let node = &self.nodes[index as usize];
        match node.role {
            Role::Root => format!("root::<{}>", crate::key::short_type(node.function.name)),
            _ => short_function(node.function.name),
        }
    }

    pub(crate) fn module_of(&self, index: u32) -> &crate::module::ModulePath {
        &self.modules[self.nodes[index as usize].module as usize].path
    }

    /// Where the values are that `need` asks for, seen from the root.
    pub(crate) fn look(&self, need: &Need) -> Option<Source> {
        let entry = self.entries.get(&need.key.id());
        match need.kind {
            NeedKind::Builtin(_) | NeedKind::After => None,
            NeedKind::Group => {
                let members = entry.map(|entry| entry.members.as_slice()).unwrap_or_default();
                let slots = members.iter().filter(|(_, _, _, private)| private.is_none());
                let slots =
                    slots.map(|&(node, give, many, _)| (self.nodes[node as usize].first_slot + give, many));
                Some(Source::Group(slots.collect()))
            }
            NeedKind::One | NeedKind::Optional => {
                let slot = entry.and_then(|entry| match find(&self.modules, entry, 0, None) {
                    Found::Provider(Provider::Slot(slot)) => Some(slot),
                    Found::Provider(Provider::Node { node, give }) => {
                        let node = self.instances.get(&(node, 0)).copied().unwrap_or(node);
                        Some(self.nodes[node as usize].first_slot + give)
                    }
                    Found::Decorator(node) => Some(self.nodes[node as usize].first_slot),
                    Found::Nothing => None,
                });
                match (slot, need.kind) {
                    (Some(slot), _) => Some(Source::Slot(slot)),
                    (None, NeedKind::Optional) => Some(Source::Absent),
                    (None, _) => None,
                }
            }
        }
    }
}
