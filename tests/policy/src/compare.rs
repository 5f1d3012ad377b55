// SPDX-License-Identifier: Apache-2.0

//! Compares what follows from a step with what was recorded.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use skep_identity::NumericIdentity;
use skep_policy_model::{
    Direction, MapState, ObjectError, SelectorCache,
    filter::{Filter, FilterKey, PeerPolicy, ProxyClass},
    l7::{L7Rules, TlsSecret},
    object::Class,
    ports::Ports,
    rule::Verdict,
};

use crate::{
    format::{EndpointState, Probe, Scenario, Step},
    rows::{Place, Row, auth_text, first_difference, first_packet, protocol},
    world::{World, label, text_of},
};

/// Identities of the node have other numbers from here on.
const FIRST_LOCAL: u32 = 0x0100_0000;

type Selections = BTreeMap<String, BTreeSet<u32>>;

/// What was recorded up to a step: recordings have what changed.
pub(crate) struct Comparison<'a> {
    scenario: &'a Scenario,
    /// Labels of recorded local identities.
    labels: BTreeMap<u32, String>,
    rows: BTreeMap<String, Vec<Value>>,
    /// Endpoints whose maps are equal in effect alone.
    inexact: BTreeSet<String>,
    selectors: Selections,
    subjects: Selections,
    /// Policies that failed keep selectors of the failed attempt.
    had_error: bool,
    pub(crate) notes: Vec<String>,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        Self {
            scenario,
            labels: BTreeMap::new(),
            rows: BTreeMap::new(),
            inexact: BTreeSet::new(),
            selectors: Selections::new(),
            subjects: Selections::new(),
            had_error: false,
            notes: Vec::new(),
        }
    }

    /// The number here of a recorded identity.
    fn identity(&self, world: &World, number: u32) -> u32 {
        if number < FIRST_LOCAL {
            return number;
        }
        let labels = self.labels.get(&number);
        labels
            .and_then(|labels| world.local.get(labels))
            .map_or(number, |identity| identity.get())
    }

    pub(crate) fn step(
        &mut self,
        world: &World,
        step: &Step,
        results: &[Result<(), ObjectError>],
    ) -> Result<(), String> {
        compare_results(step, results)?;
        self.compare_identities(world, step)?;
        self.had_error |= step.endpoints.values().any(|state| state.error.is_some());
        self.compare_selections(world, step)?;
        for (name, state) in &step.endpoints {
            self.compare_endpoint(world, name, state)
                .map_err(|why| format!("endpoint {name}: {why}"))?;
        }
        let all = |probes: &[Probe]| {
            let mut probes = probes.iter();
            probes.try_for_each(|probe| {
                let identity = |number| self.identity(world, number);
                let rows = self
                    .rows
                    .get(&probe.endpoint)
                    .filter(|_| !self.inexact.contains(&probe.endpoint));
                let rows = rows
                    .into_iter()
                    .flatten()
                    .map(|row| Row::recorded(row, &self.scenario.origins, identity));
                let rows: Vec<Option<Row>> = rows.collect::<Result<_, _>>()?;
                compare_probe(world, probe, &rows, identity)
            })
        };
        match all(&step.probes) {
            // A fault of the recorded program: a computation from the same state has other verdicts, which are right.
            Err(_) if !step.probes_if_recomputed.is_empty() => all(&step.probes_if_recomputed),
            compared => compared,
        }
    }

    fn compare_identities(&mut self, world: &World, step: &Step) -> Result<(), String> {
        if let Some(recorded) = &step.local_identities {
            let mut expected = BTreeSet::new();
            for (number, texts) in recorded {
                // The label of no name is that of the root.
                let texts: Vec<_> = texts
                    .iter()
                    .map(|text| if text == "fqdn:" { "fqdn:." } else { text })
                    .collect();
                let labels: Vec<_> = texts.into_iter().map(label).collect();
                let text = text_of(&labels);
                if *number >= FIRST_LOCAL {
                    self.labels.insert(*number, text.clone());
                }
                expected.insert(text);
            }
            let mut found: BTreeSet<String> = world.local.keys().cloned().collect();
            found.insert(world.host_labels());
            same("local identities", &expected, &found)?;
        }
        let Some(recorded) = &step.ipcache else {
            return Ok(());
        };
        let expected: BTreeSet<_> = recorded
            .iter()
            .map(|(prefix, number)| (*prefix, self.identity(world, *number)))
            .collect();
        let found = world
            .ipcache
            .iter()
            .map(|(prefix, identity)| (*prefix, identity.get()))
            .collect();
        same("ipcache", &expected, &found)
    }

    fn compare_selections(&mut self, world: &World, step: &Step) -> Result<(), String> {
        let mut changes = |changes: &BTreeMap<String, Option<(usize, Vec<u32>)>>, is_peer: bool| {
            for (text, change) in changes {
                let known = if is_peer {
                    &mut self.selectors
                } else {
                    &mut self.subjects
                };
                match change {
                    None => known.remove(text),
                    Some((_, numbers)) => known.insert(text.clone(), numbers.iter().copied().collect()),
                };
            }
        };
        changes(&step.selectors, true);
        changes(&step.subjects, false);
        if self.had_error {
            return Ok(());
        }
        let found = |cache: &SelectorCache| -> Selections {
            let selections = cache.iter().map(|(_, cached)| {
                let identities = cached.selection.iter().map(|identity| identity.get()).collect();
                (cached.selector.to_string(), identities)
            });
            selections.collect()
        };
        let translated = |selections: &Selections| -> Selections {
            let translate = |numbers: &BTreeSet<u32>| {
                numbers
                    .iter()
                    .map(|number| self.identity(world, *number))
                    .collect()
            };
            selections
                .iter()
                .map(|(text, numbers)| (text.clone(), translate(numbers)))
                .collect()
        };
        let sorts = [
            ("selectors", &self.selectors, world.policies.peers()),
            ("subjects", &self.subjects, world.policies.subjects()),
        ];
        for (what, recorded, cache) in sorts {
            let (recorded, found): (BTreeSet<_>, BTreeSet<_>) = (
                translated(recorded).into_iter().collect(),
                found(cache).into_iter().collect(),
            );
            same(what, &recorded, &found)?;
        }
        Ok(())
    }

    fn compare_endpoint(&mut self, world: &World, name: &str, state: &EndpointState) -> Result<(), String> {
        let endpoint = world.endpoints.get(name).ok_or("is not there")?;
        let local = world
            .policies
            .local(NumericIdentity::new(endpoint.identity))
            .ok_or("has no policy")?;
        check("identity", &state.identity, &endpoint.identity)?;
        check("error", &state.error.is_some(), &local.error().is_some())
            .map_err(|why| format!("{why} ({:?}, {:?})", state.error, local.error()))?;
        check("ingress", &state.ingress, &local.policy().ingress.is_enforced)?;
        check("egress", &state.egress, &local.policy().egress.is_enforced)?;
        if let Some(rows) = &state.map {
            self.rows.insert(name.to_owned(), rows.clone());
        }
        let map = world.policies.map_of(endpoint.id).ok_or("has no map")?;
        let translate = |rows: &[Value]| -> Result<Vec<Row>, String> {
            let identity = |number| self.identity(world, number);
            let rows = rows
                .iter()
                .map(|row| Row::recorded(row, &self.scenario.origins, identity));
            rows.filter_map(Result::transpose).collect()
        };
        let recorded = translate(self.rows.get(name).map(Vec::as_slice).unwrap_or_default())?;
        let found = Row::all(map);
        let mut is_exact = true;
        if let Some(difference) = first_difference(&recorded, &found) {
            is_exact = false;
            let afresh = state.map_if_recomputed.as_deref().map(translate).transpose()?;
            let peers = world.policies.peers().identities();
            let peers: Vec<_> = peers.map(|(identity, _)| identity).collect();
            if let Some(packet) = first_packet(&recorded, &found, &peers)
                && afresh
                    .as_ref()
                    .is_none_or(|afresh| first_packet(afresh, &found, &peers).is_some())
            {
                return Err(format!("{difference}; {packet}"));
            }
            if afresh.is_none_or(|afresh| first_difference(&afresh, &found).is_some()) {
                self.notes.push(format!("{name}: equal in effect: {difference}"));
            }
        }
        match is_exact {
            true => self.inexact.remove(name),
            false => self.inexact.insert(name.to_owned()),
        };
        if let Some(recorded) = &state.redirects {
            let found = map.redirects().iter();
            let found: BTreeMap<String, String> = found
                .map(|redirect| (redirect.id(endpoint.id), redirect.class.to_string()))
                .collect();
            check("redirects", recorded, &found)?;
        }
        if let Some(recorded) = &state.skipped_redirects {
            check("skipped redirects", recorded, &map.skipped_redirects())?;
        }
        if let Some(recorded) = &state.l7 {
            let found = redirecting_filters(world, endpoint.identity);
            let sorted = |filters: Vec<Value>| {
                filters
                    .into_iter()
                    .map(|one| one.to_string())
                    .collect::<BTreeSet<_>>()
            };
            let recorded = recorded.iter().map(canonical).collect();
            same("l7", &sorted(recorded), &sorted(found))?;
        }
        Ok(())
    }
}

fn compare_results(step: &Step, results: &[Result<(), ObjectError>]) -> Result<(), String> {
    for (index, result) in results.iter().enumerate() {
        let recorded = step.results.iter().find(|recorded| recorded.op == index);
        let class = recorded.and_then(|recorded| recorded.class.as_deref());
        let is_same = match (class, result) {
            (None, Ok(())) | (Some("panic"), Err(_)) => true,
            (Some("refused"), Err(error)) => error.class == Class::Invalid,
            (Some("decode"), Err(error)) => error.class == Class::Decode,
            _ => false,
        };
        if !is_same {
            let error = recorded
                .and_then(|recorded| recorded.error.as_deref())
                .unwrap_or_default();
            let found = result
                .as_ref()
                .map_or_else(ToString::to_string, |()| "accepted".to_owned());
            return Err(format!(
                "operation {index}: recorded {} {error}, found {found}",
                class.unwrap_or("accepted")
            ));
        }
    }
    Ok(())
}

fn check<T: PartialEq + std::fmt::Debug>(what: &str, recorded: &T, found: &T) -> Result<(), String> {
    match recorded == found {
        true => Ok(()),
        false => Err(format!("{what}: recorded {recorded:?}, found {found:?}")),
    }
}

fn same<T: Ord + std::fmt::Debug>(
    what: &str,
    recorded: &BTreeSet<T>,
    found: &BTreeSet<T>,
) -> Result<(), String> {
    if recorded == found {
        return Ok(());
    }
    let missing: Vec<_> = recorded.difference(found).collect();
    let more: Vec<_> = found.difference(recorded).collect();
    Err(format!("{what}: recorded {missing:?}, found {more:?}"))
}

/// `rows` are those that cells of the probe name by their places.
fn compare_probe(
    world: &World,
    probe: &Probe,
    rows: &[Option<Row>],
    identity: impl Fn(u32) -> u32,
) -> Result<(), String> {
    let endpoint = world
        .endpoints
        .get(&probe.endpoint)
        .ok_or("probe of an unknown endpoint")?;
    let map = world
        .policies
        .map_of(endpoint.id)
        .ok_or("probe of an endpoint without map")?;
    let direction = match probe.direction.as_str() {
        "ingress" => Direction::Ingress,
        _ => Direction::Egress,
    };
    for (peer, recorded, cells) in &probe.rows {
        let address = peer
            .as_str()
            .and_then(|text| text.strip_prefix("ip:")?.parse().ok());
        let found = match address {
            Some(address) => world.identity_of(address),
            None => NumericIdentity::new(identity(*recorded)),
        };
        check(&format!("identity of {peer}"), &identity(*recorded), &found.get())?;
        for (port, cell) in probe.ports.iter().zip(cells.split(' ')) {
            let (verdict, auth) = match cell.split_once('+') {
                Some((verdict, auth)) => (verdict, auth),
                None => (cell, ""),
            };
            let (verdict, row) = match verdict.split_once('@') {
                Some((verdict, row)) => (verdict, row.parse().ok().and_then(|row: usize| rows.get(row))),
                None => (verdict, None),
            };
            let (found_verdict, found_auth, place) = verdict_of(map, direction, found, port)?;
            if let Some(Some(row)) = row
                && Some(row.place) != place
            {
                return Err(format!(
                    "probe {} {} {peer} {port}: recorded by {row}, found by {place:?}",
                    probe.endpoint, probe.direction
                ));
            }
            if (verdict, auth.trim_end_matches('!'))
                != (found_verdict.as_str(), found_auth.trim_end_matches('!'))
            {
                return Err(format!(
                    "probe {} {} {peer} {port}: recorded {cell}, found {found_verdict}+{found_auth}",
                    probe.endpoint, probe.direction
                ));
            }
        }
    }
    Ok(())
}

fn verdict_of(
    map: &MapState,
    direction: Direction,
    identity: NumericIdentity,
    port: &str,
) -> Result<(String, String, Option<Place>), String> {
    let broken = || format!("port {port} is not of this format");
    let (name, number) = port.split_once('/').ok_or_else(broken)?;
    let (protocol, number) = (
        protocol(name).ok_or_else(broken)?,
        number.parse().map_err(|_| broken())?,
    );
    let Some(found) = map.lookup(direction, identity, protocol, number) else {
        return Ok(("drop".to_owned(), String::new(), None));
    };
    let entry = found.row.entry;
    let verdict = match &entry.proxy {
        _ if entry.is_deny => "deny".to_owned(),
        Some(proxy) => format!("redirect:{}", proxy.class),
        None => "allow".to_owned(),
    };
    let place = (direction, found.row.identity.get(), found.row.key);
    Ok((verdict, auth_text(found.auth), Some(place)))
}

/// Filters of an identity that redirect some peer, as recordings show them.
fn redirecting_filters(world: &World, identity: u32) -> Vec<Value> {
    let mut found = Vec::new();
    let Some(local) = world.policies.local(NumericIdentity::new(identity)) else {
        return found;
    };
    for direction in Direction::BOTH {
        for (key, filter) in &local.policy().direction(direction).filters {
            if filter
                .values()
                .any(|policy| ProxyClass::of(policy, direction).is_some())
            {
                found.push(canonical(&filter_value(direction, key, filter)));
            }
        }
    }
    found
}

fn filter_value(direction: Direction, key: &FilterKey, filter: &Filter) -> Value {
    let mut object = Map::new();
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    set(
        "dir",
        json!(if direction == Direction::Ingress { "I" } else { "E" }),
    );
    set("tier", json!(key.tier.0));
    let (port, end, name) = match &key.ports {
        Ports::Number { port, end } | Ports::Exact { port, end } => (*port, *end, ""),
        Ports::Name { name, end } => (0, *end, name.as_str()),
    };
    set("port", json!(port));
    if end != 0 {
        set("endPort", json!(end));
    }
    if !name.is_empty() {
        set("portName", json!(name));
    }
    set("proto", json!(key.protocol.to_string()));
    set(
        "peers",
        filter
            .iter()
            .map(|(selector, policy)| peer_value(selector.as_str(), policy))
            .collect(),
    );
    Value::Object(object)
}

fn peer_value(selector: &str, policy: &PeerPolicy) -> Value {
    let mut object = Map::new();
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    set("selector", json!(selector));
    if policy.level != 0 {
        set("priority", json!(policy.level));
    }
    match policy.verdict {
        Verdict::Allow => None,
        Verdict::Deny => set("verdict", json!("deny")),
        Verdict::Pass => set("verdict", json!("pass")),
    };
    if policy.is_redirect() {
        set("parser", json!(policy.parser.name()));
    }
    if let Some(listener) = &policy.listener {
        set("listener", json!(&**listener));
    }
    if policy.listener_priority != 0 {
        set("listenerPriority", json!(policy.listener_priority));
    }
    match &policy.rules {
        L7Rules::None => {}
        L7Rules::Http(rules) => {
            set("http", rules.iter().map(|rule| json!(rule)).collect());
        }
        L7Rules::Dns(rules) => {
            let rules = rules.iter().map(|rule| {
                let fields = [
                    ("matchName", &rule.match_name),
                    ("matchPattern", &rule.match_pattern),
                ];
                let fields = fields.into_iter().filter(|(_, text)| !text.is_empty());
                Value::Object(
                    fields
                        .map(|(name, text)| (name.to_owned(), json!(text)))
                        .collect(),
                )
            });
            set("dns", rules.collect());
        }
    }
    if !policy.server_names.is_empty() {
        set("serverNames", json!(policy.server_names));
    }
    for (name, tls) in [
        ("terminatingTLS", &policy.terminating_tls),
        ("originatingTLS", &policy.originating_tls),
    ] {
        if let Some(tls) = tls {
            set(name, tls_value(tls));
        }
    }
    if let Some(auth) = policy.auth {
        set("auth", json!(auth.name()));
    }
    Value::Object(object)
}

fn tls_value(tls: &TlsSecret) -> Value {
    let mut object = Map::new();
    object.insert(
        "secret".to_owned(),
        json!(format!("{}/{}", tls.secret.namespace, tls.secret.name)),
    );
    object.insert("inline".to_owned(), json!(tls.values.is_some()));
    if let Some(values) = &tls.values {
        let items = [
            ("ca", &values.trusted_ca),
            ("cert", &values.certificate),
            ("key", &values.private_key),
        ];
        for (name, text) in items.into_iter().filter(|(_, text)| !text.is_empty()) {
            object.insert(name.to_owned(), json!(text));
        }
    }
    Value::Object(object)
}

/// A value with sorted fields, peers and rules: their order is not a rule's.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields
                .iter()
                .map(|(name, value)| {
                    let mut value = canonical(value);
                    if let Value::Array(items) = &mut value
                        && ["peers", "http", "dns", "serverNames"].contains(&name.as_str())
                    {
                        items.sort_by_key(ToString::to_string);
                    }
                    (name.clone(), value)
                })
                .collect();
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(items) => items.iter().map(canonical).collect(),
        other => other.clone(),
    }
}
