// SPDX-License-Identifier: Apache-2.0

//! Table → files, maps and hooks.
//!
//! Nothing refers to what is not there: the file comes first, so that a restart knows whatever was begun; then the policy,
//! which is asked from the first packet on; then what programs must know of packets of the interface; then the hook that
//! runs them; last the entries by address, from which on other programs deliver. Deletion is the reverse. Each step may be
//! repeated, and is where an error or a restart left one in between.

use std::sync::Arc;

use skep_bpf_maps::endpoint::lxc_flags;
use skep_bpf_sys::MapError;
use skep_datapath_maps::transaction::WriteError;
use skep_endpoint_hooks::{EndpointHooks, HookError};
use statedb::{
    Obj, Revision,
    reconciler::{Config, Ops, Round},
    row::BoxError,
};

use crate::{
    Endpoint, EndpointMaps, Phase, Policies,
    state_dir::{StateDir, StateError},
};

/// Why an endpoint is not as it must be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    /// Its file.
    #[error(transparent)]
    File(#[from] StateError),
    /// An entry was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An entry was not deleted or read.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The program at its interface.
    #[error(transparent)]
    Hook(#[from] HookError),
}

/// Writes endpoints to files, maps and hooks.
#[derive(Debug)]
pub struct EndpointOps {
    maps: Arc<EndpointMaps>,
    hooks: Arc<dyn EndpointHooks>,
    files: StateDir,
}

impl EndpointOps {
    /// Operations on these.
    pub fn new(maps: Arc<EndpointMaps>, hooks: Arc<dyn EndpointHooks>, files: StateDir) -> Self {
        Self { maps, hooks, files }
    }

    fn bring_up(&self, endpoint: &Endpoint) -> Result<(), EndpointError> {
        let Some(identity) = endpoint.identity else {
            return Ok(());
        };
        let EndpointMaps { lxc, facts, policies } = &*self.maps;
        self.files.save(endpoint)?;
        let open = policies.write(endpoint.id, &Policies::allow_all())?;
        let of_interface = endpoint.facts(identity, open);
        if facts.lookup(&endpoint.spec.ifindex)? != Some(of_interface) {
            facts
                .update(&endpoint.spec.ifindex, &of_interface)
                .map_err(|error| WriteError::new(error, facts.max_entries()))?;
        }
        self.hooks.attach(endpoint.id, &endpoint.spec.interface)?;
        for (key, value) in endpoint.lxc_entries(identity) {
            if lxc.lookup(&key)? != Some(value) {
                lxc.update(&key, &value)
                    .map_err(|error| WriteError::new(error, lxc.max_entries()))?;
            }
        }
        Ok(())
    }

    fn take_down(&self, endpoint: &Endpoint) -> Result<(), EndpointError> {
        let EndpointMaps { lxc, facts, policies } = &*self.maps;
        for (key, _) in endpoint.lxc_entries(endpoint.identity.unwrap_or_default()) {
            // The address may be another's by now: the agent before may have given it away.
            if lxc
                .lookup(&key)?
                .is_some_and(|value| value.endpoint == endpoint.id)
            {
                lxc.delete(&key)?;
            }
        }
        self.hooks.detach(endpoint.id)?;
        let ifindex = endpoint.spec.ifindex;
        if facts
            .lookup(&ifindex)?
            .is_some_and(|value| value.id == endpoint.id)
        {
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
            tracing::info!(removed, "entries of endpoints that are gone were removed");
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
