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

use skep_base_net::{
    CREATE, EXCLUSIVE, NetError, Netlink, REPLACE,
    packet::{
        RouteNetlinkMessage,
        tc::{
            TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption,
        },
    },
};

use crate::link::{Interface, InterfaceHook, LinkError, interface_index};

/// `htons(ETH_P_ALL)`
const ALL_PROTOCOLS: u32 = (0x0003_u16.to_be()) as u32;
const HANDLE: u32 = 1;
const CLSACT_HANDLE: TcHandle = TcHandle {
    major: u16::MAX,
    minor: 0,
};

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

const fn parent(hook: InterfaceHook) -> TcHandle {
    TcHandle {
        major: u16::MAX,
        minor: match hook {
            InterfaceHook::Ingress => TcHandle::MIN_INGRESS,
            InterfaceHook::Egress => TcHandle::MIN_EGRESS,
        },
    }
}

fn tc(index: u32, handle: TcHandle, parent: TcHandle, info: u32) -> TcMessage {
    let mut message = TcMessage::default();
    message.header = TcHeader {
        index: index.cast_signed(),
        handle,
        parent,
        info,
        ..TcHeader::default()
    };
    message
}

fn kind(message: &TcMessage) -> Option<&str> {
    message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind.as_str()),
        _ => None,
    })
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
        let options = [
            TcFilterBpfOption::ProgFd(program_fd.as_raw_fd().cast_unsigned()),
            TcFilterBpfOption::ProgName(self.name(program)),
            TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
        ];
        let mut filter = self.message(hook, priority, HANDLE);
        filter.attributes = vec![
            TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
            TcAttribute::Options(options.map(TcOption::Bpf).into()),
        ];
        Netlink::open()
            .and_then(|net| {
                let filter = RouteNetlinkMessage::NewTrafficFilter(filter);
                net.change(filter, CREATE | REPLACE, "attach")
            })
            .map_err(|error| self.refused(program, hook, error.into()))
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
        let listed = match self.has_hook(hook) {
            Ok(false) => return Ok(Vec::new()),
            Ok(true) => self.dump(hook),
            Err(error) => Err(error),
        };
        listed.map_err(|error| failed(error.into()))
    }

    /// The filters at a hook, which is there.
    fn dump(&self, hook: InterfaceHook) -> Result<Vec<Filter>, NetError> {
        let request = tc(self.index, TcHandle::UNSPEC, parent(hook), 0);
        let listed = Netlink::open()?.list(RouteNetlinkMessage::GetTrafficFilter(request), "list filters");
        match listed {
            // The qdisc is gone, and its filters.
            Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::ENOENT)) => Ok(Vec::new()),
            listed => Ok(listed?.iter().filter_map(parse).collect()),
        }
    }

    fn name(&self, program: &str) -> String {
        name(program, &self.interface)
    }

    fn message(&self, hook: InterfaceHook, priority: u16, handle: u32) -> TcMessage {
        let info = u32::from(priority) << 16 | ALL_PROTOCOLS;
        tc(self.index, handle.into(), parent(hook), info)
    }

    /// Adds the qdisc; false if it is there.
    fn add_qdisc(&self, hook: InterfaceHook) -> Result<bool, LinkError> {
        let failed = |source| {
            self.unless_gone(source, |source| LinkError::Qdisc {
                interface: self.interface.clone(),
                source,
            })
        };
        let mut qdisc = tc(self.index, CLSACT_HANDLE, TcHandle::CLSACT, 0);
        qdisc.attributes = vec![TcAttribute::Kind("clsact".to_owned())];
        let added = Netlink::open().and_then(|net| {
            let qdisc = RouteNetlinkMessage::NewQueueDiscipline(qdisc);
            net.change(qdisc, CREATE | EXCLUSIVE, "add qdisc clsact")
        });
        match added {
            Err(error) if error.errno() == Some(libc::EEXIST) => {}
            added => return added.map(|()| true).map_err(|error| failed(error.into())),
        }
        // It is there, or a qdisc of another kind is: "ingress" would run filters for what leaves on what comes.
        if self.has_hook(hook).map_err(|error| failed(error.into()))? {
            Ok(false)
        } else {
            Err(failed(io::Error::from_raw_os_error(libc::EEXIST)))
        }
    }

    /// Whether the qdisc in the place of clsact runs filters at the hook.
    fn has_hook(&self, hook: InterfaceHook) -> Result<bool, NetError> {
        let qdiscs = qdiscs(self.index)?;
        let of_interface = qdiscs
            .iter()
            .filter(|qdisc| qdisc.header.index == self.index.cast_signed());
        Ok(of_interface.into_iter().any(|qdisc| match kind(qdisc) {
            Some("clsact") => true,
            Some("ingress") => hook == InterfaceHook::Ingress,
            _ => false,
        }))
    }

    fn remove(&self, hook: InterfaceHook, filter: &Filter) -> Result<(), LinkError> {
        let mut message = self.message(hook, filter.priority, filter.handle);
        message.attributes = vec![TcAttribute::Kind(TcFilterBpf::KIND.to_owned())];
        let removed = Netlink::open().and_then(|net| {
            net.change(
                RouteNetlinkMessage::DelTrafficFilter(message),
                0,
                "remove the filter",
            )
        });
        match removed {
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
            removed => removed.map_err(|error| {
                self.unless_gone(error.into(), |source| LinkError::RemoveFilter {
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
    let with_qdisc: BTreeSet<i32> = qdiscs(0)?
        .iter()
        .filter(|qdisc| qdisc.header.parent == TcHandle::CLSACT)
        .map(|qdisc| qdisc.header.index)
        .collect();
    let mut found = Vec::new();
    for interface in interfaces
        .iter()
        .filter(|known| with_qdisc.contains(&known.index.cast_signed()))
    {
        let filters = Filters {
            interface: interface.name.clone(),
            index: interface.index,
        };
        let mut all = Vec::new();
        for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
            match filters.dump(hook) {
                // The interface is gone.
                Err(error) if error.errno() == Some(libc::ENODEV) => {}
                listed => all.extend(listed?),
            }
        }
        if !all.is_empty() {
            found.push((interface, all));
        }
    }
    Ok(found)
}

/// The qdiscs of an interface; of all, for index 0.
fn qdiscs(index: u32) -> Result<Vec<TcMessage>, NetError> {
    let request = tc(index, TcHandle::UNSPEC, TcHandle::UNSPEC, 0);
    let listed = Netlink::open()?.list(RouteNetlinkMessage::GetQueueDiscipline(request), "list qdiscs")?;
    Ok(listed
        .into_iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewQueueDiscipline(qdisc) => Some(qdisc),
            _ => None,
        })
        .collect())
}

fn parse(message: &RouteNetlinkMessage) -> Option<Filter> {
    let RouteNetlinkMessage::NewTrafficFilter(message) = message else {
        return None;
    };
    let options = message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let (mut name, mut program) = (None, None);
    for option in options {
        match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(text)) => name = Some(text.clone()),
            TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => program = Some(*id),
            _ => {}
        }
    }
    Some(Filter {
        priority: (message.header.info >> 16) as u16,
        handle: message.header.handle.into(),
        name: name?,
        program: program?,
    })
}
