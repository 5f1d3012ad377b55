// SPDX-License-Identifier: Apache-2.0

//! Settings of the kernel that the programs need.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A setting that is not what the programs need, and cannot be changed. Set it on the node, or mount `/proc/sys` writable,
/// there or where `procfs` says.
#[derive(Debug, thiserror::Error)]
#[error("{} is {found}, not {wanted}, and cannot be changed", path.display())]
pub struct SysctlError {
    pub path: PathBuf,
    pub found: String,
    pub wanted: &'static str,
    #[source]
    pub source: io::Error,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sysctl {
    /// Below the directory of all settings.
    name: String,
    value: &'static str,
    /// Good to have, but nothing depends on it: changed only if it is this now, and fine if it cannot be.
    instead_of: Option<&'static str>,
}

impl Sysctl {
    fn new(name: impl Into<String>, value: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            instead_of: None,
        }
    }

    /// Sets it unless it is set; true if it was changed. A setting that the kernel does not have, or not in this network
    /// namespace, needs none.
    fn apply(&self, root: &Path) -> Result<bool, SysctlError> {
        let path = root.join(&self.name);
        let Ok(text) = fs::read_to_string(&path) else {
            return Ok(false);
        };
        let found = text.trim();
        if found == self.value || self.instead_of.is_some_and(|value| found != value) {
            return Ok(false);
        }
        match fs::write(&path, self.value) {
            Ok(()) => Ok(true),
            Err(source) => Err(SysctlError {
                path,
                found: found.to_owned(),
                wanted: self.value,
                source,
            }),
        }
    }
}

/// Settings of the node, and of these interfaces of the pair that joins node and pods.
pub(crate) fn wanted(interfaces: &[&str], ipv4: bool, ipv6: bool) -> Vec<Sysctl> {
    let compiler = Sysctl {
        instead_of: Some("0"),
        ..Sysctl::new("net/core/bpf_jit_enable", "1")
    };
    let unprivileged = Sysctl {
        instead_of: Some("0"),
        ..Sysctl::new("kernel/unprivileged_bpf_disabled", "1")
    };
    let mut all = vec![compiler, unprivileged];
    if ipv4 {
        all.push(Sysctl::new("net/ipv4/conf/all/rp_filter", "0"));
        all.push(Sysctl::new("net/ipv4/fib_multipath_use_neigh", "1"));
    }
    for interface in interfaces {
        if ipv4 {
            for (name, value) in [
                ("rp_filter", "0"),
                ("accept_local", "1"),
                ("send_redirects", "0"),
                ("forwarding", "1"),
            ] {
                all.push(Sysctl::new(format!("net/ipv4/conf/{interface}/{name}"), value));
            }
        }
        if ipv6 {
            all.push(Sysctl::new(format!("net/ipv6/conf/{interface}/forwarding"), "1"));
        }
    }
    all
}

/// Applies settings; returns those that could not be.
pub(crate) fn apply(root: &Path, settings: &[Sysctl]) -> Vec<SysctlError> {
    let mut failed = Vec::new();
    for setting in settings {
        match setting.apply(root) {
            Ok(false) => {}
            Ok(true) => tracing::info!(setting = setting.name, value = setting.value, "Changed sysctl"),
            Err(error) if setting.instead_of.is_some() => {
                tracing::info!(error = hive::error_chain(&error), "Cannot change sysctl");
            }
            Err(error) => failed.push(error),
        }
    }
    failed
}

/// Whether an interface forwards packets of a family; true if the kernel does not say.
pub(crate) fn forwards(root: &Path, interface: &str, is_ipv6: bool) -> bool {
    let family = if is_ipv6 { "ipv6" } else { "ipv4" };
    let path = root.join(format!("net/{family}/conf/{interface}/forwarding"));
    fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(settings: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in settings {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        root
    }

    fn read(root: &tempfile::TempDir, name: &str) -> String {
        fs::read_to_string(root.path().join(name)).unwrap()
    }

    #[test]
    fn settings_are_changed_where_they_exist() {
        let root = kernel(&[
            ("net/ipv4/conf/cilium_host/rp_filter", "2\n"),
            ("net/ipv4/conf/cilium_host/accept_local", "1\n"),
            ("net/core/bpf_jit_enable", "2\n"),
            ("kernel/unprivileged_bpf_disabled", "0\n"),
        ]);

        let failed = apply(root.path(), &wanted(&["cilium_host"], true, true));

        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(read(&root, "net/ipv4/conf/cilium_host/rp_filter"), "0");
        assert_eq!(read(&root, "net/ipv4/conf/cilium_host/accept_local"), "1\n");
        // Compiled, and something printed: as good as 1.
        assert_eq!(read(&root, "net/core/bpf_jit_enable"), "2\n");
        assert_eq!(read(&root, "kernel/unprivileged_bpf_disabled"), "1");
    }

    #[test]
    fn forwarding_is_read_for_each_family() {
        let root = kernel(&[
            ("net/ipv4/conf/eth0/forwarding", "1\n"),
            ("net/ipv6/conf/eth0/forwarding", "0\n"),
        ]);
        assert!(forwards(root.path(), "eth0", false));
        assert!(!forwards(root.path(), "eth0", true));
    }
}
