// SPDX-License-Identifier: Apache-2.0

//! Services: defaults, cluster addresses and node ports.

mod families;

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_json::{Value, json};

use self::families::{family, texts};
use super::Settings;
use super::validate::service::is_reached_from_outside;
use crate::error::{ApiError, Fault};
use crate::kinds::Kind;
use crate::object;

/// Which addresses and node ports are in use.
#[derive(Debug)]
pub(super) struct Allocator {
    networks: Vec<Network>,
    node_ports: RangeInclusive<u16>,
    ports: HashSet<u16>,
    next_port: u16,
}

#[derive(Debug)]
struct Network {
    network: IpNet,
    used: HashSet<IpAddr>,
    /// Offset of the address that is tried next.
    next: u128,
}

/// What one write takes and gives back. Takes effect when the write does.
#[derive(Debug, Default)]
pub(super) struct Plan {
    take: HashSet<IpAddr>,
    give: HashSet<IpAddr>,
    take_ports: HashSet<u16>,
    give_ports: HashSet<u16>,
}

impl Plan {
    /// Releases the addresses and node ports of a deleted object.
    pub(super) fn release(&mut self, kind: &Kind, object: &Value) {
        if kind.gvr.group.is_empty() && kind.gvr.resource == "services" {
            self.give.extend(addresses(object));
            self.give_ports.extend(ports(object));
        }
    }
}

fn addresses(service: &Value) -> Vec<IpAddr> {
    let list = object::items(service, &["spec", "clusterIPs"]);
    let single = object::at(service, &["spec", "clusterIP"]);
    let list: Vec<&Value> = if list.is_empty() {
        single.into_iter().collect()
    } else {
        list.iter().collect()
    };
    list.into_iter()
        .filter_map(|ip| ip.as_str()?.parse().ok())
        .collect()
}

fn port_number(value: Option<&Value>) -> Option<u16> {
    value
        .and_then(Value::as_u64)
        .and_then(|n| u16::try_from(n).ok())
        .filter(|n| *n > 0)
}

fn ports(service: &Value) -> Vec<u16> {
    let mut ports: Vec<u16> = object::items(service, &["spec", "ports"])
        .iter()
        .filter_map(|port| port_number(port.get("nodePort")))
        .collect();
    ports.extend(port_number(object::at(service, &["spec", "healthCheckNodePort"])));
    ports
}

fn invalid(service: &Value, fault: Fault) -> ApiError {
    ApiError::invalid("", "Service", object::name(service), &[fault])
}

impl Network {
    fn size(&self) -> u128 {
        let bits = u32::from(self.network.max_prefix_len() - self.network.prefix_len());
        // More addresses than anybody takes.
        1u128 << bits.min(64)
    }

    fn at(&self, offset: u128) -> Option<IpAddr> {
        match self.network.network() {
            IpAddr::V4(base) => u32::try_from(offset)
                .ok()
                .and_then(|o| u32::from(base).checked_add(o))
                .map(|n| IpAddr::V4(n.into())),
            IpAddr::V6(base) => u128::from(base).checked_add(offset).map(|n| IpAddr::V6(n.into())),
        }
    }

    fn first_usable(&self) -> u128 {
        1
    }

    fn last_usable(&self) -> u128 {
        // IPv4 broadcast addresses are not given away.
        let last = self.size().saturating_sub(1);
        if self.network.network().is_ipv4() {
            last.saturating_sub(1)
        } else {
            last
        }
    }

    fn free(&mut self, plan: &Plan) -> Option<IpAddr> {
        let (first, last) = (self.first_usable(), self.last_usable());
        // The lower part is for addresses that people choose (KEP-3070).
        let reserved = (self.size() / 16).clamp(16, 256).min(last / 2);
        let bounds = [(first.max(reserved), last), (first, reserved)];
        for (from, to) in bounds {
            if from > to {
                continue;
            }
            let mut offset = if (from..=to).contains(&self.next) {
                self.next
            } else {
                from
            };
            for _ in 0..=(to - from) {
                let address = self.at(offset)?;
                offset = if offset >= to { from } else { offset + 1 };
                let used = (self.used.contains(&address) && !plan.give.contains(&address))
                    || plan.take.contains(&address);
                if !used {
                    self.next = offset;
                    return Some(address);
                }
                if self.used.len() as u128 + plan.take.len() as u128 > to {
                    break;
                }
            }
        }
        None
    }
}

impl Allocator {
    pub(super) fn new(settings: &Settings) -> Self {
        Allocator {
            networks: settings
                .service_networks
                .iter()
                .map(|network| Network {
                    network: network.trunc(),
                    used: HashSet::new(),
                    next: 0,
                })
                .collect(),
            node_ports: settings.node_ports.clone(),
            ports: HashSet::new(),
            next_port: *settings.node_ports.start(),
        }
    }

    /// Takes over what a stored service has.
    pub(super) fn account(&mut self, service: &Value) {
        let plan = Plan {
            take: addresses(service).into_iter().collect(),
            take_ports: ports(service).into_iter().collect(),
            ..Plan::default()
        };
        self.commit(plan);
    }

    pub(super) fn commit(&mut self, plan: Plan) {
        for network in &mut self.networks {
            for address in plan.give.iter().filter(|a| network.network.contains(*a)) {
                network.used.remove(address);
            }
            for address in plan.take.iter().filter(|a| network.network.contains(*a)) {
                network.used.insert(*address);
            }
        }
        for port in &plan.give_ports {
            self.ports.remove(port);
        }
        self.ports.extend(plan.take_ports);
    }

    fn families(&self) -> Vec<&'static str> {
        self.networks.iter().map(|n| family(&n.network.addr())).collect()
    }

    /// Defaults a service and gives it what it needs.
    pub(super) fn admit(
        &mut self,
        plan: &mut Plan,
        old: Option<&Value>,
        service: &mut Value,
    ) -> Result<(), ApiError> {
        if let Some(old) = old {
            keep_allocated(old, service);
            plan.give.extend(addresses(old));
            plan.give_ports.extend(ports(old));
        }
        object::map_mut(service, "spec");
        let kind = default_spec(service);
        if kind == "ExternalName" {
            return give_addresses_up(old, service);
        }
        self.check_immutable(old, service)?;
        families::choose(&self.families(), old, service)?;
        self.choose_addresses(plan, service)?;
        self.choose_ports(plan, service, &kind)
    }

    fn check_immutable(&self, old: Option<&Value>, service: &Value) -> Result<(), ApiError> {
        let Some(old) = old else { return Ok(()) };
        let before = object::text(old, &["spec", "clusterIP"]);
        let after = object::text(service, &["spec", "clusterIP"]);
        if !before.is_empty() && object::text(old, &["spec", "type"]) != "ExternalName" && before != after {
            let value = object::at(service, &["spec", "clusterIPs"])
                .cloned()
                .unwrap_or_else(|| json!([after]));
            return Err(invalid(
                service,
                Fault::invalid("spec.clusterIPs[0]", &value, "may not change once set"),
            ));
        }
        Ok(())
    }

    fn choose_addresses(&mut self, plan: &mut Plan, service: &mut Value) -> Result<(), ApiError> {
        let mut wanted = texts(service, "clusterIPs");
        if wanted.first().is_some_and(|ip| ip == "None") {
            return Ok(());
        }
        for (index, wanted_family) in texts(service, "ipFamilies").iter().enumerate() {
            let network = self
                .networks
                .iter_mut()
                .find(|n| family(&n.network.addr()) == wanted_family);
            let Some(network) = network else { continue };
            if let Some(text) = wanted.get(index) {
                let Ok(address) = text.parse::<IpAddr>() else {
                    continue;
                };
                let refuse = |why: String| {
                    let detail = format!("failed to allocate IP {address}: {why}");
                    invalid(
                        service,
                        Fault::invalid("spec.clusterIPs", &json!([text]), &detail),
                    )
                };
                if plan.give.contains(&address) {
                    plan.give.remove(&address);
                    plan.take.insert(address);
                    continue;
                }
                if !network.network.contains(&address) {
                    return Err(refuse(format!(
                        "the provided IP ({address}) is not in the valid range. The range of valid IPs is {}",
                        network.network
                    )));
                }
                if network.used.contains(&address) || plan.take.contains(&address) {
                    return Err(refuse("provided IP is already allocated".to_owned()));
                }
                plan.take.insert(address);
            } else {
                let Some(address) = network.free(plan) else {
                    return Err(ApiError::internal(&format!(
                        "failed to allocate a serviceIP: range is full ({})",
                        network.network
                    )));
                };
                plan.take.insert(address);
                wanted.push(address.to_string());
            }
        }
        let spec = object::map_mut(service, "spec");
        if let Some(first) = wanted.first() {
            spec.insert("clusterIP".to_owned(), first.as_str().into());
        }
        spec.insert("clusterIPs".to_owned(), json!(wanted));
        Ok(())
    }

    fn choose_ports(&mut self, plan: &mut Plan, service: &mut Value, kind: &str) -> Result<(), ApiError> {
        let allocates = kind == "NodePort"
            || (kind == "LoadBalancer"
                && object::at(service, &["spec", "allocateLoadBalancerNodePorts"])
                    != Some(&Value::Bool(false)));
        let mut ports = object::items(service, &["spec", "ports"]).to_vec();
        if matches!(kind, "NodePort" | "LoadBalancer") {
            self.take_node_ports(plan, service, &ports)?;
            if allocates {
                self.give_node_ports(plan, &mut ports)?;
            }
        }
        self.choose_health_port(plan, service, kind)?;
        let spec = object::map_mut(service, "spec");
        if spec.contains_key("ports") {
            spec.insert("ports".to_owned(), ports.into());
        }
        Ok(())
    }

    /// Takes the node ports that the service asks for.
    fn take_node_ports(&self, plan: &mut Plan, service: &Value, ports: &[Value]) -> Result<(), ApiError> {
        // One service may use one node port for several protocols, once each.
        let mut own: HashSet<u16> = HashSet::new();
        let mut seen = HashSet::new();
        for (index, port) in ports.iter().enumerate() {
            let Some(number) = port_number(port.get("nodePort")) else {
                continue;
            };
            if !seen.insert((number, port.get("protocol"))) {
                let field = format!("spec.ports[{index}].nodePort");
                return Err(invalid(service, Fault::duplicate(field, &number.into())));
            }
            if own.insert(number) && !plan.give_ports.contains(&number) {
                self.check_free(plan, service, format!("spec.ports[{index}].nodePort"), number)?;
            }
        }
        for number in &own {
            plan.give_ports.remove(number);
            plan.take_ports.insert(*number);
        }
        Ok(())
    }

    /// Allocates node ports for those that ask for none; a port number has the same one for all protocols.
    fn give_node_ports(&mut self, plan: &mut Plan, ports: &mut [Value]) -> Result<(), ApiError> {
        for index in 0..ports.len() {
            if port_number(ports[index].get("nodePort")).is_some() {
                continue;
            }
            let twin = ports
                .iter()
                .filter(|p| {
                    p.get("port") == ports[index].get("port")
                        && p.get("protocol") != ports[index].get("protocol")
                })
                .find_map(|p| port_number(p.get("nodePort")));
            let number = match twin {
                Some(number) => number,
                None => self.free_port(plan)?,
            };
            if let Some(port) = ports[index].as_object_mut() {
                port.insert("nodePort".to_owned(), number.into());
            }
        }
        Ok(())
    }

    /// The port at which nodes tell whether they have a backend.
    fn choose_health_port(
        &mut self,
        plan: &mut Plan,
        service: &mut Value,
        kind: &str,
    ) -> Result<(), ApiError> {
        if kind != "LoadBalancer" || object::text(service, &["spec", "externalTrafficPolicy"]) != "Local" {
            let asked = port_number(object::at(service, &["spec", "healthCheckNodePort"]));
            if let Some(number) = asked.filter(|number| !plan.give_ports.contains(number)) {
                let detail =
                    "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
                let fault = Fault::invalid("spec.healthCheckNodePort", &number.into(), detail);
                return Err(invalid(service, fault));
            }
            object::map_mut(service, "spec").shift_remove("healthCheckNodePort");
            return Ok(());
        }
        let number = match port_number(object::at(service, &["spec", "healthCheckNodePort"])) {
            Some(number) => {
                if !plan.give_ports.remove(&number) {
                    self.check_free(plan, service, "spec.healthCheckNodePort".to_owned(), number)?;
                }
                number
            }
            None => self.free_port(plan)?,
        };
        plan.take_ports.insert(number);
        object::map_mut(service, "spec").insert("healthCheckNodePort".to_owned(), number.into());
        Ok(())
    }

    /// Refuses a port that is not for services, or that another one has.
    fn check_free(&self, plan: &Plan, service: &Value, field: String, port: u16) -> Result<(), ApiError> {
        let refuse = |detail: &str| Err(invalid(service, Fault::invalid(field, &port.into(), detail)));
        if !self.node_ports.contains(&port) {
            let (from, to) = (self.node_ports.start(), self.node_ports.end());
            return refuse(&format!(
                "provided port is not in the valid range. The range of valid ports is {from}-{to}"
            ));
        }
        if self.ports.contains(&port) || plan.take_ports.contains(&port) {
            return refuse("provided port is already allocated");
        }
        Ok(())
    }

    fn free_port(&mut self, plan: &mut Plan) -> Result<u16, ApiError> {
        let (first, last) = (*self.node_ports.start(), *self.node_ports.end());
        let mut port = self.next_port.clamp(first, last);
        for _ in first..=last {
            let candidate = port;
            port = if port >= last { first } else { port + 1 };
            let used = (self.ports.contains(&candidate) && !plan.give_ports.contains(&candidate))
                || plan.take_ports.contains(&candidate);
            if !used {
                self.next_port = port;
                plan.give_ports.remove(&candidate);
                plan.take_ports.insert(candidate);
                return Ok(candidate);
            }
        }
        Err(ApiError::internal("failed to allocate a nodePort: range is full"))
    }
}

/// Drops the addresses of a service that becomes a name; one that asks for addresses cannot be a name.
fn give_addresses_up(old: Option<&Value>, service: &mut Value) -> Result<(), ApiError> {
    for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let asked = object::at(service, &["spec", key]).filter(|value| match value {
            Value::Array(items) => !items.is_empty(),
            value => value.as_str().is_some_and(|text| !text.is_empty()),
        });
        if asked.is_some() && asked != old.and_then(|old| object::at(old, &["spec", key])) {
            let field = match key {
                "clusterIP" => "clusterIPs",
                other => other,
            };
            let fault = Fault::forbidden(
                format!("spec.{field}"),
                "may not be set for ExternalName services",
            );
            return Err(invalid(service, fault));
        }
        object::map_mut(service, "spec").shift_remove(key);
    }
    Ok(())
}

/// Takes over from the stored service what an update leaves out, and drops what the new type does not use.
fn keep_allocated(old: &Value, service: &mut Value) {
    let kind_of = |s: &Value| match object::text(s, &["spec", "type"]) {
        "" => "ClusterIP".to_owned(),
        other => other.to_owned(),
    };
    let (before, after) = (kind_of(old), kind_of(service));
    let node_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    let old_ports = object::items(old, &["spec", "ports"]).to_vec();
    if before != "ExternalName" && after != "ExternalName" {
        let spec = object::map_mut(service, "spec");
        if spec
            .get("clusterIP")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .is_empty()
        {
            for key in ["clusterIP", "clusterIPs"] {
                if let Some(value) = object::at(old, &["spec", key]) {
                    spec.insert(key.to_owned(), value.clone());
                }
            }
        }
        for key in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if !spec.contains_key(key)
                && let Some(value) = object::at(old, &["spec", key])
            {
                spec.insert(key.to_owned(), value.clone());
            }
        }
    }
    if node_ports(&before)
        && let Some(ports) = service.pointer_mut("/spec/ports").and_then(Value::as_array_mut)
    {
        for port in ports.iter_mut().filter_map(Value::as_object_mut) {
            let twin = old_ports.iter().find(|o| {
                let protocol = |p: Option<&Value>| p.and_then(Value::as_str).unwrap_or("TCP").to_owned();
                o.get("port") == port.get("port")
                    && protocol(o.get("protocol")) == protocol(port.get("protocol"))
            });
            let number = twin.and_then(|o| o.get("nodePort")).cloned();
            if node_ports(&after) {
                if let (Some(number), None) = (number, port_number(port.get("nodePort"))) {
                    port.insert("nodePort".to_owned(), number);
                }
            } else if port.get("nodePort") == number.as_ref() {
                port.shift_remove("nodePort");
            }
        }
    }
    let same =
        |key: &str, service: &Value| object::at(service, &["spec", key]) == object::at(old, &["spec", key]);
    let mut unused = Vec::new();
    if is_reached_from_outside(old) && !is_reached_from_outside(service) {
        unused.push("externalTrafficPolicy");
    }
    if before == "LoadBalancer" && after != "LoadBalancer" {
        unused.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    // What the update sets anew is the client's mistake.
    unused.retain(|key| same(key, service));
    let spec = object::map_mut(service, "spec");
    for key in unused {
        spec.shift_remove(key);
    }
    if after == "LoadBalancer"
        && !spec.contains_key("healthCheckNodePort")
        && let Some(value) = object::at(old, &["spec", "healthCheckNodePort"])
    {
        spec.insert("healthCheckNodePort".to_owned(), value.clone());
    }
}

/// Fills in the plain defaults; returns the type.
pub(super) fn default_spec(service: &mut Value) -> String {
    let spec = object::map_mut(service, "spec");
    let kind = spec
        .entry("type")
        .or_insert_with(|| "ClusterIP".into())
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let affinity = spec.entry("sessionAffinity").or_insert_with(|| "None".into());
    if affinity == "ClientIP" {
        let config = spec.entry("sessionAffinityConfig").or_insert_with(|| json!({}));
        let client = object::map_mut(config, "clientIP");
        if !client.contains_key("timeoutSeconds") {
            client.insert("timeoutSeconds".to_owned(), 10800.into());
        }
    } else {
        spec.shift_remove("sessionAffinityConfig");
    }
    let external = matches!(kind.as_str(), "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP"
            && spec
                .get("externalIPs")
                .and_then(Value::as_array)
                .is_some_and(|l| !l.is_empty()));
    if external && !spec.contains_key("externalTrafficPolicy") {
        spec.insert("externalTrafficPolicy".to_owned(), "Cluster".into());
    }
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer")
        && !spec.contains_key("internalTrafficPolicy")
    {
        spec.insert("internalTrafficPolicy".to_owned(), "Cluster".into());
    }
    if kind == "LoadBalancer" && !spec.contains_key("allocateLoadBalancerNodePorts") {
        spec.insert("allocateLoadBalancerNodePorts".to_owned(), true.into());
    }
    if let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports.iter_mut().filter_map(Value::as_object_mut) {
            if port
                .get("protocol")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .is_empty()
            {
                port.insert("protocol".to_owned(), "TCP".into());
            }
            let unset = match port.get("targetPort") {
                None => true,
                Some(Value::String(text)) => text.is_empty(),
                Some(other) => other == 0,
            };
            if unset && let Some(number) = port.get("port").cloned() {
                port.insert("targetPort".to_owned(), number);
            }
        }
    }
    kind
}
