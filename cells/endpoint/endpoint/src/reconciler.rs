// SPDX-License-Identifier: Apache-2.0

//! Table → files, maps and hooks.
//!
//! Nothing refers to what is not there: the file comes first, so that a restart knows whatever was begun; then the policy,
//! which is asked from the first packet on; then what programs must know of packets of the interface; then the hook that
//! runs them; then the entries by address, from which on other programs deliver; last the routes of the kernel, if the
//! endpoint has its own. Deletion is the reverse. Each step may be
//! repeated, and is where an error or a restart left one in between.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use skep_base_net::NetError;
use skep_bpf_maps::endpoint::{self as family, endpoint_flags, lxc_flags};
use skep_bpf_sys::MapError;
use skep_datapath_hooks::{EndpointHooks, HookError};
use skep_datapath_maps::transaction::WriteError;
use statedb::{
    Obj, Revision,
    reconciler::{Config, Ops, Round, StatusKind},
    row::BoxError,
};

use crate::{
    DatapathConfiguration, Endpoint, EndpointMaps, EndpointRoutes, EndpointRouting, Phase, Policies,
    state_dir::{StateDir, StateError},
};

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
}

/// Writes endpoints to files, maps and hooks.
#[derive(Debug)]
pub struct EndpointOps {
    maps: Arc<EndpointMaps>,
    hooks: Arc<dyn EndpointHooks>,
    files: StateDir,
    routing: EndpointRouting,
    routes: Arc<dyn EndpointRoutes>,
    /// Interfaces and addresses that this run has routed, by endpoint: to ask the kernel, which lists them all, takes time
    /// with the lock of all interfaces held.
    routed: HashMap<u16, (u32, Vec<IpAddr>)>,
}

impl EndpointOps {
    pub fn new(
        maps: Arc<EndpointMaps>,
        hooks: Arc<dyn EndpointHooks>,
        files: StateDir,
        routing: EndpointRouting,
        routes: Arc<dyn EndpointRoutes>,
    ) -> Self {
        Self {
            maps,
            hooks,
            files,
            routing,
            routes,
            routed: HashMap::new(),
        }
    }

    fn bring_up(&mut self, endpoint: &Endpoint) -> Result<(), EndpointError> {
        let Some(identity) = endpoint.identity else {
            return Ok(());
        };
        let EndpointMaps { lxc, policies, .. } = &*self.maps;
        let effective = self.routing.effective(endpoint.spec.datapath);
        self.files.save(endpoint, effective)?;
        let open = policies.write(endpoint.id, &Policies::allow_all())?;
        self.attach(endpoint, endpoint.facts(identity, open), effective)?;
        if self.routing.unreachable {
            // Of an endpoint before that had the address.
            for address in endpoint.spec.addresses() {
                self.routes.remove_unreachable(address)?;
            }
        }
        for (key, value) in endpoint.lxc_entries(identity) {
            if lxc.lookup(&key)? != Some(value) {
                lxc.update(&key, &value)
                    .map_err(|error| WriteError::new(error, lxc.max_entries()))?;
            }
        }
        if effective.install_endpoint_route {
            self.add_routes(endpoint)
        } else {
            self.remove_routes(endpoint)
        }
    }

    /// Routes the endpoint's addresses to its interface, unless this run has done so since the last refresh.
    fn add_routes(&mut self, endpoint: &Endpoint) -> Result<(), EndpointError> {
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

    /// Attaches the programs, and writes what they know of the endpoint. The flag of the egress program says who asks the
    /// policy about packets of the host: it is set after the program is attached, and cleared before it is detached.
    fn attach(
        &self,
        endpoint: &Endpoint,
        plain: family::Endpoint,
        effective: DatapathConfiguration,
    ) -> Result<(), EndpointError> {
        let facts = &self.maps.facts;
        let (id, interface, ifindex) = (endpoint.id, &endpoint.spec.interface, endpoint.spec.ifindex);
        let flagged = family::Endpoint {
            flags: plain.flags | endpoint_flags::EGRESS_PROGRAM,
            ..plain
        };
        let write = |known, wanted| match known == Some(wanted) {
            true => Ok(()),
            false => facts
                .update(&ifindex, &wanted)
                .map_err(|error| WriteError::new(error, facts.max_entries())),
        };
        let known = facts.lookup(&ifindex)?;
        let is_flagged =
            known.is_some_and(|known| known.id == id && known.flags & endpoint_flags::EGRESS_PROGRAM != 0);
        let keeps_flag = effective.require_egress_prog && is_flagged;
        let first = if keeps_flag { flagged } else { plain };
        write(known, first)?;
        self.hooks.attach(id, interface)?;
        if effective.require_egress_prog {
            self.hooks.attach_egress(id, interface)?;
            write(Some(first), flagged)?;
        } else if endpoint.phase == Phase::Restored {
            // An earlier run may have attached it.
            self.hooks.detach_egress(id, interface)?;
        }
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

    fn take_down(&mut self, endpoint: &Endpoint) -> Result<(), EndpointError> {
        let maps = self.maps.clone();
        let EndpointMaps { lxc, facts, policies } = &*maps;
        self.routed.remove(&endpoint.id);
        for (key, _) in endpoint.lxc_entries(endpoint.identity.unwrap_or_default()) {
            // The address may be another's by now: the agent before may have given it away.
            if lxc
                .lookup(&key)?
                .is_some_and(|value| value.endpoint == endpoint.id)
            {
                lxc.delete(&key)?;
            }
        }
        let ifindex = endpoint.spec.ifindex;
        // The interface may be another's by now, too.
        let owner = facts.lookup(&ifindex)?.map(|value| value.id);
        if owner.is_none_or(|owner| owner == endpoint.id) {
            self.remove_routes(endpoint)?;
        }
        self.hooks.detach(endpoint.id)?;
        if owner == Some(endpoint.id) {
            facts.delete(&ifindex)?;
        }
        policies.remove(endpoint.id)?;
        Ok(self.files.remove(endpoint.id)?)
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
        for id in policies.endpoints()? {
            if !is_known(id) {
                self.hooks.detach(id)?;
                policies.remove(id)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl Ops<Endpoint> for EndpointOps {
    fn update(&mut self, _: &Round<'_>, _: Revision, endpoint: &mut Endpoint) -> Result<(), BoxError> {
        match endpoint.phase {
            Phase::Live | Phase::Restored => self.bring_up(endpoint)?,
            Phase::Disconnecting => {
                self.take_down(endpoint)?;
                endpoint.phase = Phase::Disconnected;
            }
            Phase::Disconnected => {}
        }
        Ok(())
    }

    fn delete(&mut self, _: &Round<'_>, _: Revision, endpoint: &Endpoint) -> Result<(), BoxError> {
        match endpoint.phase {
            Phase::Disconnected => Ok(()),
            _ => Ok(self.take_down(endpoint)?),
        }
    }

    fn prune(
        &mut self,
        _: &Round<'_>,
        endpoints: &mut dyn Iterator<Item = &Obj<Endpoint>>,
    ) -> Result<(), BoxError> {
        let mut known: std::collections::BTreeSet<u16> = endpoints.map(|endpoint| endpoint.id).collect();
        known.extend(self.files.ids()?);
        let removed = self.remove_others(|id| known.contains(&id))?;
        if removed > 0 {
            tracing::info!(removed, "Pruned entries of deleted endpoints");
        }
        Ok(())
    }
}

pub(crate) fn config() -> Config {
    Config {
        retry_max: std::time::Duration::from_secs(10),
        ..Config::default()
    }
}
