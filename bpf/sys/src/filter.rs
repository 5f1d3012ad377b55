// SPDX-License-Identifier: Apache-2.0

//! Attaching programs to interfaces by filters of the qdisc clsact: where the kernel has no links for them, or they are
//! not wanted.
//!
//! A filter stays when the process ends, and goes with its interface. It has a name, `<program>-<interface>`, as
//! `tc filter show` prints it.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use crate::{
    link::{Interface, InterfaceHook, LinkError, interface_index},
    netlink::{self, Body, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE},
};

const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
/// The program's result is the verdict (`direct-action`).
const ACT_DIRECT: u32 = 1;
/// `TC_H_CLSACT`
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// `htons(ETH_P_ALL)`
const ALL_PROTOCOLS: u32 = (0x0003_u16.to_be()) as u32;
const HANDLE: u32 = 1;
/// Bytes of `struct tcmsg`.
const TCMSG: usize = 20;

/// A filter that runs a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    pub priority: u16,
    pub handle: u32,
    /// Name, `<program>-<interface>` of ours.
    pub name: String,
    pub program: u32,
}

#[derive(Debug)]
pub struct Filters {
    interface: String,
    index: u32,
}

const fn parent(hook: InterfaceHook) -> u32 {
    match hook {
        InterfaceHook::Ingress => 0xffff_fff2,
        InterfaceHook::Egress => 0xffff_fff3,
    }
}

/// `struct tcmsg`
fn tcmsg(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let mut bytes = vec![0_u8; 4];
    for word in [index, handle, parent, info] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes
}

impl Filters {
    /// Filters of an interface.
    ///
    /// # Errors
    ///
    /// [`LinkError::NoInterface`].
    pub fn new(interface: &str) -> Result<Self, LinkError> {
        Ok(Self {
            interface: interface.to_owned(),
            index: interface_index(interface)?,
        })
    }

    /// Attaches a program by a filter of this priority, or replaces the program of ours in its place; then removes filters
    /// of the same program at other priorities. Adds qdisc clsact if it is missing.
    ///
    /// # Errors
    ///
    /// [`LinkError`]; what was attached before stays so.
    pub fn attach(
        &self,
        program: &str,
        program_fd: BorrowedFd<'_>,
        hook: InterfaceHook,
        priority: u16,
    ) -> Result<(), LinkError> {
        let there = self.prepare(hook)?;
        let name = self.name(program);
        // Another program's filter may have our priority and handle: it is not overwritten.
        let taken = there
            .iter()
            .any(|filter| (filter.priority, filter.handle) == (priority, HANDLE) && filter.name != name);
        if taken {
            return Err(self.refused(program, hook, io::ErrorKind::AlreadyExists.into()));
        }
        self.replace(program, program_fd, hook, priority)?;
        for old in there {
            if old.name == name && old.priority != priority {
                self.remove(hook, &old)?;
            }
        }
        Ok(())
    }

    /// As [`attach`](Self::attach), if no other program has a filter at the hook; false if one has. At an interface that
    /// was just made this takes two requests.
    ///
    /// # Errors
    ///
    /// As of [`attach`](Self::attach).
    pub fn attach_alone(
        &self,
        program: &str,
        program_fd: BorrowedFd<'_>,
        hook: InterfaceHook,
        priority: u16,
    ) -> Result<bool, LinkError> {
        let is_ours = |filter: &Filter| (&filter.name, filter.priority) == (&self.name(program), priority);
        if !self.prepare(hook)?.iter().all(is_ours) {
            return Ok(false);
        }
        self.replace(program, program_fd, hook, priority)?;
        Ok(true)
    }

    /// Adds the qdisc if it is missing. Returns the filters at the hook.
    fn prepare(&self, hook: InterfaceHook) -> Result<Vec<Filter>, LinkError> {
        if self.add_qdisc(hook)? {
            return Ok(Vec::new());
        }
        self.list(hook)
    }

    /// Adds our filter, or replaces it.
    fn replace(
        &self,
        program: &str,
        program_fd: BorrowedFd<'_>,
        hook: InterfaceHook,
        priority: u16,
    ) -> Result<(), LinkError> {
        let options = Body::default()
            .attribute(TCA_BPF_FD, &program_fd.as_raw_fd().to_ne_bytes())
            .text(TCA_BPF_NAME, &self.name(program))
            .attribute(TCA_BPF_FLAGS, &ACT_DIRECT.to_ne_bytes());
        let body = Body::new(&self.message(hook, priority, HANDLE))
            .text(TCA_KIND, "bpf")
            .nested(TCA_OPTIONS, &options);
        netlink::request(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, &body)
            .map_err(|source| self.refused(program, hook, source))
    }

    fn refused(&self, program: &str, hook: InterfaceHook, source: io::Error) -> LinkError {
        self.unless_gone(source, |source| LinkError::AttachInterface {
            program: program.to_owned(),
            interface: self.interface.clone(),
            hook: hook.name(),
            source,
        })
    }

    /// Removes filters of a program; false if there were none. The qdisc stays, others may use it.
    ///
    /// # Errors
    ///
    /// [`LinkError`] if they cannot be listed or removed.
    pub fn detach(&self, program: &str, hook: InterfaceHook) -> Result<bool, LinkError> {
        let name = self.name(program);
        let mut found = false;
        for filter in self.list(hook)? {
            if filter.name == name {
                self.remove(hook, &filter)?;
                found = true;
            }
        }
        Ok(found)
    }

    /// Id of the program of this name that a filter of ours runs.
    ///
    /// # Errors
    ///
    /// [`LinkError::List`].
    pub fn running(&self, program: &str, hook: InterfaceHook) -> Result<Option<u32>, LinkError> {
        let name = self.name(program);
        let found = self.list(hook)?.into_iter().find(|filter| filter.name == name);
        Ok(found.map(|filter| filter.program))
    }

    /// The filters at a hook that run programs, ours and others'.
    ///
    /// # Errors
    ///
    /// [`LinkError::List`].
    pub fn list(&self, hook: InterfaceHook) -> Result<Vec<Filter>, LinkError> {
        let failed = |source| {
            self.unless_gone(source, |source| LinkError::List {
                interface: self.interface.clone(),
                source,
            })
        };
        if !self.has_hook(hook).map_err(failed)? {
            return Ok(Vec::new());
        }
        self.dump(hook).map_err(failed)
    }

    /// The filters at a hook, which is there.
    fn dump(&self, hook: InterfaceHook) -> io::Result<Vec<Filter>> {
        let mut filters = Vec::new();
        let body = Body::new(&tcmsg(self.index, 0, parent(hook), 0));
        let result = netlink::dump(RTM_GETTFILTER, &body, |kind, message| {
            if kind == RTM_NEWTFILTER {
                filters.extend(parse(message));
            }
        });
        match result {
            // The qdisc is gone, and its filters.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(Vec::new()),
            result => result.map(|()| filters),
        }
    }

    fn name(&self, program: &str) -> String {
        name(program, &self.interface)
    }

    fn message(&self, hook: InterfaceHook, priority: u16, handle: u32) -> Vec<u8> {
        let info = u32::from(priority) << 16 | ALL_PROTOCOLS;
        tcmsg(self.index, handle, parent(hook), info)
    }

    /// Adds the qdisc; false if it is there.
    fn add_qdisc(&self, hook: InterfaceHook) -> Result<bool, LinkError> {
        let failed = |source| {
            self.unless_gone(source, |source| LinkError::Qdisc {
                interface: self.interface.clone(),
                source,
            })
        };
        let body = Body::new(&tcmsg(self.index, CLSACT_HANDLE, CLSACT, 0)).text(TCA_KIND, "clsact");
        match netlink::request(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &body) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            result => return result.map(|()| true).map_err(failed),
        }
        // It is there, or a qdisc of another kind is: "ingress" would run filters for what leaves on what comes.
        if self.has_hook(hook).map_err(failed)? {
            Ok(false)
        } else {
            Err(failed(io::Error::from_raw_os_error(libc::EEXIST)))
        }
    }

    /// Whether the qdisc in the place of clsact runs filters at the hook.
    fn has_hook(&self, hook: InterfaceHook) -> io::Result<bool> {
        let mut found = false;
        let body = Body::new(&tcmsg(self.index, 0, 0, 0));
        netlink::dump(RTM_GETQDISC, &body, |kind, message| {
            let qdisc = message
                .get(TCMSG..)
                .and_then(|attributes| netlink::find(attributes, TCA_KIND))
                .map(netlink::text);
            if kind == RTM_NEWQDISC && netlink::word(message, 4) == Some(self.index) {
                found |= match qdisc.as_deref() {
                    Some("clsact") => true,
                    Some("ingress") => hook == InterfaceHook::Ingress,
                    _ => false,
                };
            }
        })?;
        Ok(found)
    }

    fn remove(&self, hook: InterfaceHook, filter: &Filter) -> Result<(), LinkError> {
        let body = Body::new(&self.message(hook, filter.priority, filter.handle)).text(TCA_KIND, "bpf");
        match netlink::request(RTM_DELTFILTER, 0, &body) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result.map_err(|source| {
                self.unless_gone(source, |source| LinkError::RemoveFilter {
                    interface: self.interface.clone(),
                    filter: filter.name.clone(),
                    source,
                })
            }),
        }
    }

    /// The error, or that the interface is gone: the kernel says that in several ways.
    fn unless_gone(&self, source: io::Error, error: impl FnOnce(io::Error) -> LinkError) -> LinkError {
        match interface_index(&self.interface) {
            Ok(index) if index == self.index => error(source),
            _ => LinkError::NoInterface {
                interface: self.interface.clone(),
            },
        }
    }
}

/// Name of our filter for a program at an interface.
pub fn name(program: &str, interface: &str) -> String {
    format!("{program}-{interface}")
}

/// The filters that run programs at an interface, ours and others'. Interfaces without are left out.
pub fn everywhere(interfaces: &[Interface]) -> io::Result<Vec<(&Interface, Vec<Filter>)>> {
    let mut with_qdisc = BTreeSet::new();
    let body = Body::new(&tcmsg(0, 0, 0, 0));
    netlink::dump(RTM_GETQDISC, &body, |_, message| {
        if netlink::word(message, 12) == Some(CLSACT) {
            with_qdisc.extend(netlink::word(message, 4));
        }
    })?;
    let mut found = Vec::new();
    for interface in interfaces
        .iter()
        .filter(|known| with_qdisc.contains(&known.index))
    {
        let filters = Filters {
            interface: interface.name.clone(),
            index: interface.index,
        };
        let mut all = Vec::new();
        for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
            match filters.dump(hook) {
                // The interface is gone.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                listed => all.extend(listed?),
            }
        }
        if !all.is_empty() {
            found.push((interface, all));
        }
    }
    Ok(found)
}

fn parse(message: &[u8]) -> Option<Filter> {
    let attributes = message.get(TCMSG..)?;
    let options = netlink::find(attributes, TCA_OPTIONS)?;
    let info = netlink::word(message, 16)?;
    Some(Filter {
        priority: (info >> 16) as u16,
        handle: netlink::word(message, 8)?,
        name: netlink::text(netlink::find(options, TCA_BPF_NAME)?),
        program: netlink::word(netlink::find(options, TCA_BPF_ID)?, 0)?,
    })
}
