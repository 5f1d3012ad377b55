// SPDX-License-Identifier: Apache-2.0

//! One program at one hook of one interface: by a pinned link, or by a filter.

use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use skep_bpf_sys::{
    filter::{self, Filters},
    link::{self, InterfaceHook, InterfaceLinks, LinkError, program_name},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    Ingress,
    Egress,
    /// What an interface receives, before the kernel.
    Xdp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    Link,
    /// By filters of qdisc clsact, of this priority.
    Filter {
        priority: u16,
    },
}

/// Whose hooks: names the directory of the links.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Owner {
    Device(String),
    Endpoint(u16),
}

impl Owner {
    /// Directory of the links, below the root of the BPF file system.
    pub(crate) fn links(&self, bpf_root: &Path) -> PathBuf {
        match self {
            // A dot would be the name of a file system's own.
            Self::Device(name) => bpf_root
                .join("cilium/devices")
                .join(name.replace('.', "-"))
                .join("links"),
            Self::Endpoint(id) => bpf_root
                .join("cilium/endpoints")
                .join(id.to_string())
                .join("links"),
        }
    }
}

/// A program that is attached, and the id that the kernel has for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) owner: Owner,
    pub(crate) interface: String,
    pub(crate) program: &'static str,
    pub(crate) hook: Hook,
    pub(crate) id: u32,
}

pub(crate) fn tc_hook(hook: Hook) -> Option<InterfaceHook> {
    match hook {
        Hook::Ingress => Some(InterfaceHook::Ingress),
        Hook::Egress => Some(InterfaceHook::Egress),
        Hook::Xdp => None,
    }
}

/// Attaches a tc program, or replaces the one that is there; then removes what the other kind of attachment has left.
pub(crate) fn attach_tc(
    directory: &Path,
    interface: &str,
    program: &'static str,
    program_fd: BorrowedFd<'_>,
    hook: InterfaceHook,
    how: Attachment,
) -> Result<(), LinkError> {
    match how {
        Attachment::Link => {
            InterfaceLinks::new(directory, interface)?.attach(program, program_fd, hook)?;
            Filters::new(interface)?.detach(program, hook)?;
        }
        Attachment::Filter { priority } => {
            Filters::new(interface)?.attach(program, program_fd, hook, priority)?;
            link::detach(directory, program)?;
            remove_empty(directory);
        }
    }
    Ok(())
}

/// Attaches a tc program by a filter, where a link would take a grace period of the kernel: at an interface without link of
/// ours and without programs of others. False elsewhere.
pub(crate) fn attach_quickly(
    directory: &Path,
    interface: &str,
    program: &'static str,
    program_fd: BorrowedFd<'_>,
    hook: InterfaceHook,
    priority: u16,
) -> Result<bool, LinkError> {
    if directory.join(program).exists() {
        return Ok(false);
    }
    match Filters::new(interface)?.attach_alone(program, program_fd, hook, priority) {
        // Another qdisc is in the place: there is no way but the link.
        Err(LinkError::Qdisc { .. }) => Ok(false),
        result => result,
    }
}

/// Detaches a program, however it is attached; fine if the interface is gone.
pub(crate) fn detach(
    directory: &Path,
    interface: &str,
    program: &'static str,
    hook: Hook,
) -> Result<bool, LinkError> {
    let had_link = link::detach(directory, program)?;
    Ok(detach_without_link(directory, interface, program, hook)? || had_link)
}

/// Detaches a program that no link of ours attaches; fine if the interface is gone.
pub(crate) fn detach_without_link(
    directory: &Path,
    interface: &str,
    program: &'static str,
    hook: Hook,
) -> Result<bool, LinkError> {
    let removed = match hook {
        Hook::Xdp => InterfaceLinks::new(directory, interface).and_then(|links| links.remove_xdp(program)),
        Hook::Ingress | Hook::Egress => remove_filter(interface, program, hook),
    };
    match removed {
        Err(LinkError::NoInterface { .. }) => Ok(false),
        // By the link of another process.
        Err(LinkError::Occupied { .. }) => Ok(false),
        removed => removed,
    }
}

/// Removes the filter of a tc program; false if there is none.
pub(crate) fn remove_filter(interface: &str, program: &'static str, hook: Hook) -> Result<bool, LinkError> {
    match tc_hook(hook) {
        Some(hook) => Filters::new(interface)?.detach(program, hook),
        None => Ok(false),
    }
}

/// Id of the program that is attached, by whatever.
pub(crate) fn running(
    directory: &Path,
    interface: &str,
    program: &'static str,
    hook: Hook,
) -> Result<Option<u32>, LinkError> {
    if let Some(id) = link::running(directory, program)? {
        return Ok(Some(id));
    }
    let Some(hook) = tc_hook(hook) else {
        return Ok(None);
    };
    match Filters::new(interface).and_then(|filters| filters.running(program, hook)) {
        Err(LinkError::NoInterface { .. }) => Ok(None),
        running => running,
    }
}

/// Those of the programs that interfaces run by a filter or, at XDP, by whatever, with the names of the interfaces: an
/// earlier process may have left them there.
pub(crate) fn found<'a>(programs: &[(&'a str, Hook)]) -> io::Result<BTreeSet<(String, &'a str)>> {
    let interfaces = link::interfaces()?;
    let mut found = BTreeSet::new();
    for (interface, filters) in filter::everywhere(&interfaces)? {
        for (program, _) in programs {
            let name = filter::name(program, &interface.name);
            if filters.iter().any(|there| there.name == name) {
                found.insert((interface.name.clone(), *program));
            }
        }
    }
    for interface in &interfaces {
        let name = interface.xdp.map(program_name).transpose()?.flatten();
        let is_there =
            |(program, hook): &&(&str, Hook)| *hook == Hook::Xdp && name.as_deref() == Some(*program);
        if let Some((program, _)) = programs.iter().find(is_there) {
            found.insert((interface.name.clone(), *program));
        }
    }
    Ok(found)
}

/// Removes the directory of links and the one around it, unless something is in them.
pub(crate) fn remove_empty(directory: &Path) {
    let _ = fs::remove_dir(directory);
    if let Some(owner) = directory.parent() {
        let _ = fs::remove_dir(owner);
    }
}

/// Names of the directories of interfaces or endpoints that have links.
pub(crate) fn owners(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_pinned_where_cilium_has_them() {
        let root = Path::new("/sys/fs/bpf");
        assert_eq!(
            Owner::Device("eth0.100".to_owned()).links(root),
            Path::new("/sys/fs/bpf/cilium/devices/eth0-100/links")
        );
        assert_eq!(
            Owner::Endpoint(481).links(root),
            Path::new("/sys/fs/bpf/cilium/endpoints/481/links")
        );
    }
}
