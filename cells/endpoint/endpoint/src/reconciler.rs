// SPDX-License-Identifier: Apache-2.0

//! Table → files, maps and hooks, on a thread that may block, all endpoints of a round stage by stage.
//!
//! Nothing refers to what is not there: the file comes first, so that a restart knows whatever was begun; then, once the policy
//! is realized, which is asked from the first packet on, what programs must know of packets of the interface; then the hook
//! that runs them; then the entries by address, from which on other programs deliver; last the routes of the kernel, if the
//! endpoint has its own. Deletion is the reverse; the policy goes with the row. Each stage may be repeated: an endpoint that
//! failed takes no part in those that follow, and is tried again.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use skep_base_net::NetError;
use skep_bpf_maps::endpoint::{self as family, endpoint_flags, lxc_flags};
use skep_bpf_sys::MapError;
use skep_datapath_hooks::{EndpointHooks, HookError};
use skep_datapath_maps::transaction::{Deletions, Owner, Stage as _, Transaction, Updates, WriteError};
use skep_policy_maps::PolicyMaps;
use statedb::{
    Obj,
    reconciler::{BatchOps, Config, Delete, Round, StatusKind, Update},
    row::BoxError,
};

use crate::{
    Endpoint, EndpointMaps, EndpointRoutes, EndpointRouting, EndpointState, Interfaces, Phase, StatusCode,
    maps::{EndpointMap, LxcMap},
    state_dir::{StateDir, StateError},
};

/// Endpoints of a round: all of them wait for the last one.
const ROUND: usize = 64;

/// Why an endpoint is not as it must be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error(transparent)]
    File(#[from] StateError),
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An entry was not deleted or read.
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error(transparent)]
    Route(#[from] NetError),
    #[error("no interface {0}")]
    NoInterface(String),
    /// An interface of this name was made after the endpoint.
    #[error("interface {name} has index {found}, not {wanted}")]
    OtherInterface { name: String, found: u32, wanted: u32 },
    /// It is not known whether the interface is there.
    #[error("looking for interface {name}")]
    Interface {
        name: String,
        #[source]
        source: std::io::Error,
    },
}

skep_datapath_maps::stages! {
    struct Stages {
        endpoints: Updates<EndpointMap>,
        /// With the flag of the egress program.
        flags: Updates<EndpointMap>,
        addresses: Updates<LxcMap>,
        stale_addresses: Deletions<LxcMap>,
        stale_endpoints: Deletions<EndpointMap>,
    }
}

/// Writes endpoints to files, maps and hooks.
#[derive(Debug)]
pub struct EndpointOps {
    maps: Arc<EndpointMaps>,
    policies: PolicyMaps,
    hooks: Arc<dyn EndpointHooks>,
    files: StateDir,
    interfaces: Arc<dyn Interfaces>,
    routing: EndpointRouting,
    routes: Arc<dyn EndpointRoutes>,
    /// Interfaces and addresses that this run has routed, by endpoint: to ask the kernel, which lists them all, takes time
    /// with the lock of all interfaces held.
    routed: HashMap<u16, (u32, Vec<IpAddr>)>,
    stages: Stages,
}

impl EndpointOps {
    pub fn new(
        maps: Arc<EndpointMaps>,
        policies: PolicyMaps,
        hooks: Arc<dyn EndpointHooks>,
        files: StateDir,
        interfaces: Arc<dyn Interfaces>,
        routing: EndpointRouting,
        routes: Arc<dyn EndpointRoutes>,
    ) -> Self {
        Self {
            maps,
            policies,
            hooks,
            files,
            interfaces,
            routing,
            routes,
            routed: HashMap::new(),
            stages: Stages::default(),
        }
    }

    /// Takes a step for all endpoints that have not failed.
    fn each(
        &mut self,
        txn: &mut Transaction<EndpointError>,
        endpoints: &[(Owner, &Endpoint)],
        step: fn(&mut Self, Owner, &Endpoint) -> Result<(), EndpointError>,
    ) {
        for (owner, endpoint) in endpoints {
            if txn.error(*owner).is_none()
                && let Err(error) = step(self, *owner, endpoint)
            {
                txn.fail(*owner, error);
            }
        }
    }

    fn bring_up(&mut self, txn: &mut Transaction<EndpointError>, endpoints: &[(Owner, &Endpoint)]) {
        let maps = self.maps.clone();
        self.each(txn, endpoints, Self::save);
        self.each(txn, endpoints, Self::check_interface);
        self.each(txn, endpoints, Self::stage_facts);
        txn.run(&mut self.stages.endpoints, &maps.facts);
        self.each(txn, endpoints, Self::attach);
        txn.run(&mut self.stages.flags, &maps.facts);
        self.each(txn, endpoints, Self::stage_addresses);
        txn.run(&mut self.stages.addresses, &maps.lxc);
        self.each(txn, endpoints, Self::route);
        self.stages.clear();
    }

    /// The endpoint of the node: programs find its policy by its interface.
    fn bring_host(&mut self, txn: &mut Transaction<EndpointError>, endpoints: &[(Owner, &Endpoint)]) {
        let maps = self.maps.clone();
        self.each(txn, endpoints, Self::save);
        self.each(txn, endpoints, Self::stage_facts);
        txn.run(&mut self.stages.endpoints, &maps.facts);
        self.stages.clear();
    }

    /// The listener of Ingresses: the kernel delivers to its addresses.
    fn bring_ingress(&mut self, txn: &mut Transaction<EndpointError>, endpoints: &[(Owner, &Endpoint)]) {
        let maps = self.maps.clone();
        self.each(txn, endpoints, Self::save);
        self.each(txn, endpoints, Self::stage_addresses);
        txn.run(&mut self.stages.addresses, &maps.lxc);
        self.stages.clear();
    }

    fn take_down(&mut self, txn: &mut Transaction<EndpointError>, endpoints: &[(Owner, &Endpoint)]) {
        self.disconnect(txn, endpoints);
        self.each(txn, endpoints, |ops, _, endpoint| {
            Ok(ops.files.remove(endpoint.id)?)
        });
    }

    fn disconnect(&mut self, txn: &mut Transaction<EndpointError>, endpoints: &[(Owner, &Endpoint)]) {
        let maps = self.maps.clone();
        self.each(txn, endpoints, Self::stage_stale_addresses);
        txn.run(&mut self.stages.stale_addresses, &maps.lxc);
        self.each(txn, endpoints, Self::detach);
        txn.run(&mut self.stages.stale_endpoints, &maps.facts);
        self.stages.clear();
    }

    fn save(&mut self, _: Owner, endpoint: &Endpoint) -> Result<(), EndpointError> {
        let effective = match endpoint.is_host || endpoint.is_ingress() {
            true => endpoint.spec.datapath,
            false => self.routing.effective(endpoint.spec.datapath),
        };
        Ok(self.files.save(endpoint, effective)?)
    }

    /// Checks that the interface is the one that the endpoint was created with.
    fn check_interface(&mut self, _: Owner, endpoint: &Endpoint) -> Result<(), EndpointError> {
        let (name, wanted) = (&endpoint.spec.interface, endpoint.spec.ifindex);
        let found = self
            .interfaces
            .index(name)
            .map_err(|source| EndpointError::Interface {
                name: name.clone(),
                source,
            })?;
        match found {
            None => Err(EndpointError::NoInterface(name.clone())),
            Some(found) if found != wanted => Err(EndpointError::OtherInterface {
                name: name.clone(),
                found,
                wanted,
            }),
            Some(_) => Ok(()),
        }
    }

    /// What programs know of the endpoint. The flag of the egress program says who asks the policy about packets of the host:
    /// it is set after the program is attached, and cleared before it is detached.
    fn stage_facts(&mut self, owner: Owner, endpoint: &Endpoint) -> Result<(), EndpointError> {
        let (Some(identity), Some(policy)) = (endpoint.identity, endpoint.policy) else {
            return Ok(());
        };
        let ifindex = endpoint.spec.ifindex;
        let needs_program =
            !endpoint.is_host && self.routing.effective(endpoint.spec.datapath).require_egress_prog;
        let plain = endpoint.facts(identity, policy);
        let flagged = family::Endpoint {
            flags: plain.flags | endpoint_flags::EGRESS_PROGRAM,
            ..plain
        };
        let known = self.maps.facts.lookup(&ifindex)?;
        let is_flagged = known.is_some_and(|known| {
            known.id == endpoint.id && known.flags & endpoint_flags::EGRESS_PROGRAM != 0
        });
        let first = if needs_program && is_flagged {
            flagged
        } else {
            plain
        };
        if known != Some(first) {
            self.stages.endpoints.push(owner, (ifindex, first));
        }
        if needs_program && !is_flagged {
            self.stages.flags.push(owner, (ifindex, flagged));
        }
        Ok(())
    }

    fn attach(&mut self, _: Owner, endpoint: &Endpoint) -> Result<(), EndpointError> {
        let (id, interface) = (endpoint.id, &endpoint.spec.interface);
        self.hooks.attach(id, interface)?;
        if self.routing.effective(endpoint.spec.datapath).require_egress_prog {
            self.hooks.attach_egress(id, interface)?;
        } else if endpoint.phase == Phase::Restored {
            // An earlier run may have attached it.
            self.hooks.detach_egress(id, interface)?;
        }
        Ok(())
    }

    fn stage_addresses(&mut self, owner: Owner, endpoint: &Endpoint) -> Result<(), EndpointError> {
        if self.routing.unreachable {
            // Of an endpoint before that had the address.
            for address in endpoint.spec.addresses() {
                self.routes.remove_unreachable(address)?;
            }
        }
        for (key, value) in endpoint.lxc_entries(endpoint.identity.unwrap_or_default()) {
            if self.maps.lxc.lookup(&key)? != Some(value) {
                self.stages.addresses.push(owner, (key, value));
            }
        }
        Ok(())
    }

    /// Routes the endpoint's addresses to its interface, unless this run has done so since the last refresh.
    fn route(&mut self, _: Owner, endpoint: &Endpoint) -> Result<(), EndpointError> {
        if !self
            .routing
            .effective(endpoint.spec.datapath)
            .install_endpoint_route
        {
            return self.remove_routes(endpoint);
        }
        let wanted = (endpoint.spec.ifindex, endpoint.spec.addresses().collect());
        let is_routed = self.routed.get(&endpoint.id) == Some(&wanted);
        if is_routed && endpoint.status.kind != StatusKind::Refreshing {
            return Ok(());
        }
        self.routed.remove(&endpoint.id);
        self.routes.set(wanted.0, &wanted.1)?;
        self.routed.insert(endpoint.id, wanted);
        Ok(())
    }

    /// Removes the routes to an endpoint that this or an earlier run has made.
    fn remove_routes(&mut self, endpoint: &Endpoint) -> Result<(), EndpointError> {
        self.routed.remove(&endpoint.id);
        let requested = endpoint.spec.datapath;
        let is_made =
            endpoint.phase != Phase::Live || self.routing.effective(requested).install_endpoint_route;
        if is_made && !self.routing.leaves_routes(requested) {
            self.routes.set(endpoint.spec.ifindex, &[])?;
        }
        Ok(())
    }

    fn stage_stale_addresses(&mut self, owner: Owner, endpoint: &Endpoint) -> Result<(), EndpointError> {
        for (key, _) in endpoint.lxc_entries(endpoint.identity.unwrap_or_default()) {
            // The address may be another's by now: the agent before may have given it away.
            let found = self.maps.lxc.lookup(&key)?;
            if found.is_some_and(|value| value.endpoint == endpoint.id) {
                self.stages.stale_addresses.push(owner, key);
            }
        }
        Ok(())
    }

    fn detach(&mut self, owner: Owner, endpoint: &Endpoint) -> Result<(), EndpointError> {
        if endpoint.is_ingress() {
            return Ok(());
        }
        self.routed.remove(&endpoint.id);
        let ifindex = endpoint.spec.ifindex;
        // The interface may be another's by now, too.
        let known = self.maps.facts.lookup(&ifindex)?.map(|value| value.id);
        if known.is_none_or(|known| known == endpoint.id) {
            self.remove_routes(endpoint)?;
        }
        self.hooks.detach(endpoint.id)?;
        if known == Some(endpoint.id) {
            self.stages.stale_endpoints.push(owner, ifindex);
        }
        Ok(())
    }

    /// Removes what no endpoint stands for. What belongs to an id whose file could not be read is kept, as the file is.
    fn remove_others(&self, is_known: impl Fn(u16) -> bool) -> Result<usize, EndpointError> {
        let EndpointMaps { lxc, facts, policies } = &*self.maps;
        let mut removed = 0;
        for (key, value) in lxc.entries()? {
            if value.flags & lxc_flags::HOST == 0 && !is_known(value.endpoint) {
                removed += usize::from(lxc.delete(&key)?);
            }
        }
        for (ifindex, value) in facts.entries()? {
            if !is_known(value.id) {
                if value.flags & endpoint_flags::EGRESS_PROGRAM != 0 && !self.routing.external {
                    self.routes.set(ifindex, &[])?;
                }
                self.hooks.detach(value.id)?;
                removed += usize::from(facts.delete(&ifindex)?);
            }
        }
        for id in policies.instances()? {
            if !is_known(id) {
                self.hooks.detach(id)?;
            }
        }
        Ok(removed)
    }
}

impl BatchOps<Endpoint> for EndpointOps {
    fn batch(&mut self, _: &Round<'_>, deletes: &mut [Delete<Endpoint>], updates: &mut [Update<Endpoint>]) {
        let mut txn = Transaction::default();
        let (mut up, mut down, mut saved) = (Vec::new(), Vec::new(), Vec::new());
        let mut ingress = Vec::new();
        let mut former: Vec<(Owner, Endpoint)> = Vec::new();
        for entry in &*deletes {
            let owner = txn.add_owner();
            if entry.object.phase != Phase::Disconnected {
                down.push((owner, &*entry.object));
            }
        }
        for entry in &*updates {
            let (owner, endpoint) = (txn.add_owner(), &entry.object);
            if let Some(spec) = endpoint.former.clone() {
                let endpoint = endpoint.clone();
                former.push((owner, Endpoint { spec, ..endpoint }));
            }
            match endpoint.phase {
                Phase::Live | Phase::Restored if endpoint.policy.is_none() || endpoint.is_host => {
                    saved.push((owner, endpoint));
                }
                Phase::Live | Phase::Restored => {
                    if endpoint.status.kind != StatusKind::Refreshing {
                        let message = format!("Regenerating endpoint: {}", endpoint.reason.as_str());
                        endpoint.log.ok(EndpointState::Regenerating, message);
                    }
                    match endpoint.is_ingress() {
                        true => ingress.push((owner, endpoint)),
                        false => up.push((owner, endpoint)),
                    }
                }
                Phase::Disconnecting => down.push((owner, endpoint)),
                _ => {}
            }
        }
        self.take_down(&mut txn, &down);
        let former: Vec<_> = former
            .iter()
            .map(|(owner, endpoint)| (*owner, endpoint))
            .collect();
        self.disconnect(&mut txn, &former);
        self.bring_host(&mut txn, &saved);
        self.bring_ingress(&mut txn, &ingress);
        self.bring_up(&mut txn, &up);
        let mut errors = txn.finish();
        for (entry, error) in deletes.iter_mut().zip(&mut errors) {
            entry.result = error.map_or(Ok(()), |error| Err(with_causes(&error)));
        }
        for (entry, error) in updates.iter_mut().zip(errors) {
            log(&entry.object, error.as_ref());
            match error {
                Some(error) => entry.result = Err(with_causes(&error)),
                None if entry.object.phase == Phase::Disconnecting => {
                    entry.object.phase = Phase::Disconnected;
                }
                None => {
                    entry.object.is_written |= entry.object.policy.is_some() || entry.object.is_host;
                    entry.object.former = None;
                }
            }
        }
    }

    fn prune(
        &mut self,
        _: &Round<'_>,
        endpoints: &mut dyn Iterator<Item = &Obj<Endpoint>>,
    ) -> Result<(), BoxError> {
        let mut known: BTreeSet<u16> = endpoints.map(|endpoint| endpoint.id).collect();
        known.extend(self.files.ids()?);
        let removed = self.remove_others(|id| known.contains(&id))?;
        // To which nothing is attached any more.
        self.policies.prune(known);
        if removed > 0 {
            tracing::info!(removed, "Pruned entries of deleted endpoints");
        }
        Ok(())
    }
}

/// The status of an endpoint has the text of its error, which clients show: the causes belong to it.
fn with_causes(error: &EndpointError) -> BoxError {
    hive::error_chain(error).to_string().into()
}

/// Logs that an endpoint was written, or why not.
fn log(endpoint: &Endpoint, error: Option<&EndpointError>) {
    if !endpoint.is_live() || endpoint.log.last_state() != Some(EndpointState::Regenerating) {
        return;
    }
    let log = &endpoint.log;
    match error {
        None => {
            let text = "Completed endpoint regeneration with no pending regeneration requests";
            log.ok(EndpointState::Ready, text);
            let reason = endpoint.reason.as_str();
            log.ok(
                EndpointState::Ready,
                format!("Successfully regenerated endpoint program (Reason: {reason})"),
            );
        }
        Some(error) => {
            let text = format!("Error regenerating endpoint: {}", hive::error_chain(error));
            log.add(StatusCode::Failure, EndpointState::NotReady, text);
        }
    }
}

pub(crate) fn config() -> Config {
    Config {
        round_size: ROUND,
        retry_max: Duration::from_secs(10),
        blocking: true,
        ..Config::default()
    }
}
