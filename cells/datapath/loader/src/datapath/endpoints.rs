// SPDX-License-Identifier: Apache-2.0

//! The programs at interfaces of endpoints: attached at once by filters, by links when no endpoint waits.

use std::collections::BTreeSet;

use parking_lot::MutexGuard;
use skep_bpf_sys::link::{self, LinkError};
use skep_datapath_hooks::HookError;

use super::{DatapathError, PacketDatapath, State, attached};
use crate::attach::{self, Attachment, Hook, Owner, tc_hook};

/// A program of interfaces of endpoints, and where it is attached.
pub(super) type EndpointProgram = (&'static str, Hook);

const FROM_CONTAINER: EndpointProgram = ("cil_from_container", Hook::Ingress);
/// What endpoints have that the kernel routes to.
const TO_CONTAINER: EndpointProgram = ("cil_to_container", Hook::Egress);

impl PacketDatapath {
    /// Puts new programs into the links of endpoints, also those that an earlier process has attached. New endpoints come in
    /// between.
    pub(super) fn replace_in_endpoints(
        &self,
        state: &mut MutexGuard<'_, State>,
        how: Attachment,
        errors: &mut Vec<LinkError>,
    ) -> Result<(), DatapathError> {
        let root = self.store.root();
        let mut ids = BTreeSet::new();
        for known in state.attached.clone() {
            let Owner::Endpoint(id) = known.owner else {
                continue;
            };
            ids.insert(id);
            MutexGuard::bump(state);
            let program = (known.program, known.hook);
            // Detached or moved meanwhile.
            if state.at_endpoint(id, program) != Some(&known) {
                continue;
            }
            if let Err(error) = self.attach_endpoint(state, id, &known.interface, program, how) {
                errors.push(error);
            }
        }
        for name in attach::owners(&root.join("cilium/endpoints"))? {
            let Ok(id) = name.parse() else { continue };
            if ids.contains(&id) {
                continue;
            }
            let directory = Owner::Endpoint(id).links(&root);
            for (program, _) in [FROM_CONTAINER, TO_CONTAINER] {
                let Some(program_fd) = state.loaded.as_ref().and_then(|loaded| loaded.program(program))
                else {
                    continue;
                };
                if let Err(error) = link::replace(&directory, program, program_fd) {
                    errors.push(error);
                }
            }
        }
        Ok(())
    }

    fn attach_endpoint(
        &self,
        state: &mut State,
        id: u16,
        interface: &str,
        program: EndpointProgram,
        how: Attachment,
    ) -> Result<(), LinkError> {
        let owner = Owner::Endpoint(id);
        let done = self.attach_one(state, owner, interface, program.0, program.1, how)?;
        state.forget(id, program);
        state.attached.extend(done);
        Ok(())
    }

    /// Attaches a program of an endpoint by a filter for now, if that is quicker. To make a link the kernel waits for a grace
    /// period, with the lock of all interfaces: 8 to 20 ms, one endpoint after the other.
    fn attach_quickly(
        &self,
        state: &mut State,
        id: u16,
        interface: &str,
        program: EndpointProgram,
    ) -> Result<bool, LinkError> {
        let owner = Owner::Endpoint(id);
        let (name, hook) = program;
        let loaded = state.loaded.as_ref().and_then(|loaded| loaded.program(name));
        let (Some(program_fd), Some(tc)) = (loaded, tc_hook(hook)) else {
            return Ok(false);
        };
        let directory = owner.links(&self.store.root());
        let priority = self.settings.attach.priority();
        if !attach::attach_quickly(&directory, interface, name, program_fd, tc, priority)? {
            return Ok(false);
        }
        let attached = attached(owner, interface, name, hook, program_fd)?;
        state.forget(id, program);
        state.attached.push(attached);
        state.unlinked.insert((id, program));
        self.unlinked.trigger();
        Ok(true)
    }

    /// Replaces the filters of new endpoints by links, one after the other; new endpoints come in between.
    ///
    /// # Errors
    ///
    /// [`DatapathError::Links`]: those have their filters still, and are tried again next time.
    pub fn link_endpoints(&self) -> Result<(), DatapathError> {
        let unlinked = self.state.lock().unlinked.clone();
        let mut errors = Vec::new();
        for (id, program) in unlinked {
            let mut state = self.state.lock();
            // Attached or detached meanwhile.
            if !state.unlinked.contains(&(id, program)) {
                continue;
            }
            let Some(interface) = state
                .at_endpoint(id, program)
                .map(|known| known.interface.clone())
            else {
                continue;
            };
            match self.attach_endpoint(&mut state, id, &interface, program, Attachment::Link) {
                Ok(()) => {}
                // It is deleted with its pod, which the owner of the endpoint notices.
                Err(LinkError::NoInterface { .. }) => {
                    state.unlinked.remove(&(id, program));
                }
                Err(error) => errors.push(error),
            }
            // A new endpoint that waits is next.
            MutexGuard::unlock_fair(state);
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(DatapathError::Links(errors))
        }
    }

    /// As [`EndpointHooks::attach`](skep_datapath_hooks::EndpointHooks::attach).
    pub(crate) fn attach_to_endpoint(&self, id: u16, interface: &str) -> Result<(), HookError> {
        self.attach_program(id, interface, FROM_CONTAINER)
    }

    /// As [`EndpointHooks::attach_egress`](skep_datapath_hooks::EndpointHooks::attach_egress).
    pub(crate) fn attach_egress_to_endpoint(&self, id: u16, interface: &str) -> Result<(), HookError> {
        self.attach_program(id, interface, TO_CONTAINER)
    }

    fn attach_program(&self, id: u16, interface: &str, program: EndpointProgram) -> Result<(), HookError> {
        let mut state = self.state.lock();
        if state.loaded.is_none() {
            return Err(HookError::NotLoaded { endpoint: id });
        }
        self.attach_or_move(&mut state, id, interface, program)
            .map_err(|source| match source {
                LinkError::NoInterface { interface } => HookError::NoInterface {
                    endpoint: id,
                    interface,
                },
                source => HookError::Attach {
                    endpoint: id,
                    interface: interface.to_owned(),
                    source,
                },
            })
    }

    fn attach_or_move(
        &self,
        state: &mut State,
        id: u16,
        interface: &str,
        program: EndpointProgram,
    ) -> Result<(), LinkError> {
        let before = state
            .at_endpoint(id, program)
            .map(|known| known.interface.clone())
            .filter(|before| before != interface);
        let how = self.attachment();
        if how != Attachment::Link || !self.attach_quickly(state, id, interface, program)? {
            self.attach_endpoint(state, id, interface, program, how)?;
        }
        match before.map(|before| attach::remove_filter(&before, program.0, program.1)) {
            None | Some(Err(LinkError::NoInterface { .. })) => Ok(()),
            Some(removed) => removed.map(drop),
        }
    }

    /// As [`EndpointHooks::detach`](skep_datapath_hooks::EndpointHooks::detach).
    pub(crate) fn detach_from_endpoint(&self, id: u16) -> Result<(), HookError> {
        let mut state = self.state.lock();
        let directory = Owner::Endpoint(id).links(&self.store.root());
        let mut failed = None;
        for program in [TO_CONTAINER, FROM_CONTAINER] {
            let (name, hook) = program;
            let done = match state.at_endpoint(id, program) {
                Some(known) => attach::detach(&directory, &known.interface, name, hook),
                // Attached by an earlier process: a filter goes with its interface.
                None => link::detach(&directory, name),
            };
            failed = failed.or(done.err());
            state.forget(id, program);
        }
        attach::remove_empty(&directory);
        match failed {
            None => Ok(()),
            Some(source) => Err(HookError::Detach { endpoint: id, source }),
        }
    }

    /// As [`EndpointHooks::detach_egress`](skep_datapath_hooks::EndpointHooks::detach_egress).
    pub(crate) fn detach_egress_from_endpoint(&self, id: u16, interface: &str) -> Result<(), HookError> {
        let mut state = self.state.lock();
        let directory = Owner::Endpoint(id).links(&self.store.root());
        let (name, hook) = TO_CONTAINER;
        let done = attach::detach(&directory, interface, name, hook);
        state.forget(id, TO_CONTAINER);
        attach::remove_empty(&directory);
        done.map(drop)
            .map_err(|source| HookError::Detach { endpoint: id, source })
    }
}
