// SPDX-License-Identifier: Apache-2.0

//! Connects needs with providers, and finds an order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::flatten::Flat;
use super::lookup::{Found, find, is_inside};
use super::{Entry, Graph, Node, Provider, Role, Span, problems};
use crate::cell::Visibility;
use crate::config::Shared;
use crate::finding::Finding;
use crate::health::HealthSink;
use crate::inject::{Builtin, Need, NeedKind, Needs, Source};
use crate::jobs::JobMetrics;
use crate::key::{Key, TypeMap, short_function};
use crate::metrics::HiveMetrics;
use crate::supply::{GiveKind, Gives};

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
    /// Who comes after whom: the edges of one node after those of another.
    edges: Vec<(u32, u32)>,
}

pub(crate) fn connect(flat: Flat, findings: &mut Vec<Finding>) -> (Graph, Vec<Option<Shared>>) {
    let Flat {
        modules,
        lifecycles,
        conditions,
        configs,
        values,
        nodes,
        needs: Needs(needs),
        gives: Gives(gives),
        ..
    } = flat;
    let keys = gives.len() + configs.len() + lifecycles.len();
    let mut sources = Vec::with_capacity(needs.len());
    sources.resize(needs.len(), Source::Absent);
    let graph = Graph {
        entries: Vec::with_capacity(keys),
        entry_numbers: TypeMap::with_capacity_and_hasher(keys, Default::default()),
        modules,
        lifecycles,
        slots: configs.len() as u32,
        configs,
        nodes,
        needs,
        sources,
        gives,
        edges: Vec::new(),
        edge_spans: Vec::new(),
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
        edges: Vec::new(),
    };
    connect.edges.reserve(connect.graph.needs.len());
    connect.register(findings);
    connect.resolve();
    let reachable = connect.order(findings);
    problems::report(&connect, &reachable, findings);
    (connect.graph, values)
}

impl Connect {
    fn entry(&mut self, key: Key) -> &mut Entry {
        let entries = &mut self.graph.entries;
        let number = *self.graph.entry_numbers.entry(key.id()).or_insert_with(|| {
            entries.push(Entry::of(key));
            entries.len() as u32 - 1
        });
        &mut entries[number as usize]
    }

    /// Notes who provides what.
    fn register(&mut self, findings: &mut Vec<Finding>) {
        for index in 0..self.graph.configs.len() {
            let config = &self.graph.configs[index];
            let slot = config.slot;
            let entry = self.entry(config.config.key);
            let first = entry.public;
            entry.public = first.or(Some(Provider::Slot(slot)));
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
            let (gives, role) = (node.gives, node.role);
            node.first_slot = self.graph.slots;
            self.graph.slots += gives.len();
            if !node.enabled {
                for give in gives.numbers() {
                    let key = self.graph.gives[give].key;
                    self.entry(key).more_mut().disabled.push(index as u32);
                }
                continue;
            }
            match role {
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
        let (gives, module) = (node.gives, node.module);
        for (number, give) in gives.numbers().enumerate() {
            let give = self.graph.gives[give];
            let provider = Provider::Node {
                node: index,
                give: number as u32,
            };
            let private = visibility == Visibility::Private;
            let entry = self.entry(give.key);
            let first = match give.kind {
                GiveKind::Member | GiveKind::Members => {
                    let many = give.kind == GiveKind::Members;
                    let member = (index, number as u32, many, private.then_some(module));
                    entry.more_mut().members.push(member);
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
                            entry.more_mut().private.push((module, provider));
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
        let module = self.graph.nodes[index as usize].module;
        let gives = self.graph.gives_of(index);
        let single = matches!(gives, [give] if give.kind == GiveKind::One);
        let key = gives.first().map(|give| give.key);
        let mut needs = self.graph.needs_of(index).iter();
        let takes = key.is_some_and(|key| needs.any(|need| need.key == key && need.kind == NeedKind::One));
        match key {
            Some(key) if single && takes => self.entry(key).more_mut().decorators.push((module, index)),
            _ => {
                findings.push(problems::bad_decorator(&self.graph, index));
                // Reported once is enough.
                self.graph.nodes[index as usize].enabled = false;
            }
        }
    }

    fn replace(&mut self, index: u32, findings: &mut Vec<Finding>) {
        let mut module = None;
        for (number, give) in self.graph.nodes[index as usize].gives.numbers().enumerate() {
            let give = self.graph.gives[give];
            let provider = Provider::Node {
                node: index,
                give: number as u32,
            };
            let Some(entry) = self
                .graph
                .entry_numbers
                .get(&give.key.id())
                .filter(|_| give.kind == GiveKind::One)
                .map(|entry| &mut self.graph.entries[*entry as usize])
            else {
                findings.push(problems::bad_replacement(&self.graph, index, &give));
                continue;
            };
            let mut replaced = false;
            let Entry { public, more, .. } = entry;
            let private = more.iter_mut().flat_map(|more| &mut more.private);
            for slot in public.iter_mut().chain(private.map(|(_, provider)| provider)) {
                if let Provider::Node { node, .. } = *slot {
                    module.get_or_insert(self.graph.nodes[node as usize].module);
                    self.graph.nodes[node as usize].library = true;
                }
                *slot = provider;
                replaced = true;
            }
            if !replaced {
                findings.push(problems::bad_replacement(&self.graph, index, &give));
            }
        }
        // It may use what is private to the module for which it stands in.
        if let Some(module) = module {
            self.graph.nodes[index as usize].module = module;
        }
    }

    fn check_shadowing(&self, findings: &mut Vec<Finding>) {
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if !node.enabled || node.role != Role::Provide(Visibility::Private) {
                continue;
            }
            let gives = self.graph.gives_of(index as u32).iter();
            for give in gives.filter(|give| give.kind == GiveKind::One) {
                let Some(entry) = self.graph.entry(give.key) else {
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
        self.list_edges(&[]);
        self.connect_reporters(sink.into_iter().chain(metrics).map(|(node, _)| node).collect());
    }

    /// Makes the lists of edges. `more` has further ones, by node.
    fn list_edges(&mut self, more: &[(u32, u32)]) {
        let graph = &mut self.graph;
        graph.edges.clear();
        graph.edge_spans.clear();
        graph.edges.reserve(self.edges.len() + more.len());
        graph.edge_spans.reserve(graph.nodes.len());
        let (mut own, mut more) = (self.edges.iter().peekable(), more.iter().peekable());
        for node in 0..graph.nodes.len() as u32 {
            let start = graph.edges.len() as u32;
            for edges in [&mut own, &mut more] {
                while let Some((_, to)) = edges.next_if(|(from, _)| *from == node) {
                    graph.edges.push(*to);
                }
            }
            let end = graph.edges.len() as u32;
            graph.edge_spans.push(Span { start, end });
        }
    }

    fn public_node(&self, key: Key) -> Option<(u32, u32)> {
        match self.graph.entry(key)?.public? {
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
                stack.extend(self.graph.edges_of(node));
            }
        }
        let mut more = Vec::new();
        for (index, node) in self.graph.nodes.iter().enumerate() {
            let index = index as u32;
            let mut needs = self.graph.needs_of(index).iter();
            let reports =
                needs.any(|need| matches!(need.kind, NeedKind::Builtin(Builtin::Health | Builtin::Jobs)));
            if reports && !needed[index as usize] && node.enabled {
                more.extend(receivers.iter().map(|receiver| (index, *receiver)));
            }
        }
        self.list_edges(&more);
    }

    fn resolve_node(&mut self, index: u32) {
        let node = &self.graph.nodes[index as usize];
        let (module, needs) = (node.module, node.needs);
        let own = match node.role {
            Role::Decorate => self.graph.gives_of(index).first().map(|give| give.key),
            _ => None,
        };
        for number in needs.numbers() {
            let need = self.graph.needs[number];
            let source = match need.kind {
                NeedKind::Builtin(_) => Source::Builtin,
                NeedKind::Group => self.group(index, need),
                NeedKind::One | NeedKind::Optional | NeedKind::After => {
                    let before = (own == Some(need.key)).then_some(index);
                    match self.provider_slot(index, module, need, before) {
                        Some(slot) if need.kind != NeedKind::After => Source::Slot(slot),
                        Some(_) => Source::Edge,
                        None if need.kind == NeedKind::Optional => Source::Absent,
                        None => {
                            self.unmet.push(Unmet { node: index, need });
                            Source::Absent
                        }
                    }
                }
            };
            self.graph.sources[number] = source;
        }
    }

    fn provider_slot(&mut self, index: u32, module: u32, need: Need, before: Option<u32>) -> Option<u32> {
        let entry = self.graph.entry(need.key)?;
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
        self.graph.slots += node.gives.len();
        let start = self.graph.needs.len();
        self.graph.needs.extend_from_within(original.needs.numbers());
        let end = self.graph.needs.len();
        self.graph.sources.resize(end, Source::Absent);
        node.needs = Span {
            start: start as u32,
            end: end as u32,
        };
        let number = self.graph.nodes.len() as u32;
        self.graph.nodes.push(node);
        self.graph.instances.insert(key, number);
        number
    }

    fn group(&mut self, index: u32, need: Need) -> Source {
        let Some(entry) = self.graph.entry(need.key) else {
            return Source::Absent;
        };
        let module = self.graph.nodes[index as usize].module;
        let mut slots = Vec::with_capacity(entry.members.len());
        for &(node, give, many, private) in &entry.members {
            if private.is_none_or(|outer| is_inside(&self.graph.modules, module, outer)) {
                slots.push((self.graph.nodes[node as usize].first_slot + give, many));
                self.edges.push((index, node));
            }
        }
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
        self.edges.push((from, to));
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
        for (waiting, edges) in waiting.iter_mut().zip(&self.graph.edge_spans) {
            *waiting = edges.len();
        }
        for edge in &self.graph.edges {
            starts[*edge as usize + 1] += 1;
        }
        for index in 0..nodes.len() {
            starts[index + 1] += starts[index];
        }
        let mut dependents = vec![0u32; starts[nodes.len()] as usize];
        let mut fill = starts.clone();
        for index in 0..nodes.len() as u32 {
            for edge in self.graph.edges_of(index) {
                dependents[fill[*edge as usize] as usize] = index;
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
                stack.extend(self.graph.edges_of(index));
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
        let entry = self.entry(need.key);
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
