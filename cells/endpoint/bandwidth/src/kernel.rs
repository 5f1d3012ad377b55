// SPDX-License-Identifier: Apache-2.0

//! Settings of the kernel for paced packets, and whether it can pace.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use skep_base_settings::BandwidthConfig;

const DEFAULT_QDISC: &str = "net/core/default_qdisc";
/// Queues are at least as long.
const LENGTHS: [(&str, u64); 3] = [
    ("net/core/netdev_max_backlog", 1000),
    ("net/core/somaxconn", 4096),
    ("net/ipv4/tcp_max_syn_backlog", 4096),
];
/// The first kernel that keeps departure times of forwarded packets.
const DEPARTURES: (u32, u32) = (5, 18);

/// Settings that exclude each other. Texts are Cilium's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The kernel's stack drops the departure times of packets of pods: set `enable-bbr-hostns-only`, or
    /// `enable-host-legacy-routing` to false.
    #[error("BPF bandwidth manager's BBR setup requires BPF host routing.")]
    HostRouting,
    #[error("cannot enable --enable-bbr, needs kernel 5.18 or newer")]
    Kernel,
}

/// Why rates are not enforced.
#[derive(Debug, thiserror::Error)]
pub enum Unsupported {
    /// The network namespace is not the first one, as where nodes are containers, or the kernel has no queueing disciplines.
    #[error("cannot read {}", path.display())]
    NoDefault {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Use a kernel with `CONFIG_NET_SCH_FQ`, or load its module.
    #[error("the kernel has no queueing discipline fq")]
    NoFq,
}

/// A setting that cannot be changed. Rates are enforced nevertheless.
#[derive(Debug, thiserror::Error)]
#[error("cannot set {} to {value}", path.display())]
pub(crate) struct SysctlError {
    path: PathBuf,
    value: String,
    #[source]
    source: io::Error,
}

pub(crate) fn check(config: &BandwidthConfig, has_legacy_routing: bool) -> Result<(), ConfigError> {
    if !config.bbr {
        return Ok(());
    }
    if kernel_version().is_some_and(|version| version < DEPARTURES) {
        return Err(ConfigError::Kernel);
    }
    if has_legacy_routing && !config.bbr_host_only {
        return Err(ConfigError::HostRouting);
    }
    Ok(())
}

fn kernel_version() -> Option<(u32, u32)> {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Sets what paced packets need below `root`; returns what could not be set.
pub(crate) fn prepare(root: &Path, config: &BandwidthConfig) -> Result<Vec<SysctlError>, Unsupported> {
    let path = root.join(DEFAULT_QDISC);
    if let Err(source) = fs::read_to_string(&path) {
        return Err(Unsupported::NoDefault { path, source });
    }
    let mut refused = Vec::new();
    match set(root, DEFAULT_QDISC, "fq") {
        // The kernel looks the name up, and loads its module.
        Err(error) if error.source.raw_os_error() == Some(libc::ENOENT) => return Err(Unsupported::NoFq),
        set => refused.extend(set.err()),
    }
    for (name, least) in LENGTHS {
        let found = fs::read_to_string(root.join(name)).ok();
        let found: Option<u64> = found.and_then(|text| text.trim().parse().ok());
        if found.is_some_and(|found| found < least) {
            refused.extend(set(root, name, &least.to_string()).err());
        }
    }
    let algorithm = config.congestion_control();
    refused.extend(set(root, "net/ipv4/tcp_congestion_control", algorithm).err());
    if config.bbr {
        refused.extend(set(root, "net/ipv4/tcp_slow_start_after_idle", "0").err());
    }
    Ok(refused)
}

/// Sets a setting unless it is set.
fn set(root: &Path, name: &str, value: &str) -> Result<(), SysctlError> {
    let path = root.join(name);
    if fs::read_to_string(&path).is_ok_and(|text| text.trim() == value) {
        return Ok(());
    }
    match fs::write(&path, value) {
        Ok(()) => {
            tracing::info!(setting = name, value, "Changed sysctl");
            Ok(())
        }
        Err(source) => Err(SysctlError {
            path,
            value: value.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(bbr: bool) -> BandwidthConfig {
        BandwidthConfig {
            enabled: true,
            bbr,
            bbr_host_only: false,
        }
    }

    #[test]
    fn settings_of_the_kernel_are_raised() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for (name, value) in [
            (DEFAULT_QDISC, "pfifo_fast\n"),
            ("net/core/netdev_max_backlog", "300\n"),
            ("net/core/somaxconn", "9000\n"),
            ("net/ipv4/tcp_max_syn_backlog", "4096\n"),
            ("net/ipv4/tcp_congestion_control", "reno\n"),
            ("net/ipv4/tcp_slow_start_after_idle", "1\n"),
        ] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), value).unwrap();
        }
        let read = |name: &str| fs::read_to_string(at(name)).unwrap();

        assert!(prepare(root.path(), &config(false)).unwrap().is_empty());

        assert_eq!(read(DEFAULT_QDISC), "fq");
        assert_eq!(read("net/core/netdev_max_backlog"), "1000");
        assert_eq!(read("net/core/somaxconn"), "9000\n");
        assert_eq!(read("net/ipv4/tcp_congestion_control"), "cubic");
        assert_eq!(read("net/ipv4/tcp_slow_start_after_idle"), "1\n");

        assert!(prepare(root.path(), &config(true)).unwrap().is_empty());
        assert_eq!(read("net/ipv4/tcp_congestion_control"), "bbr");
        assert_eq!(read("net/ipv4/tcp_slow_start_after_idle"), "0");
    }

    #[test]
    fn namespaces_without_the_default_are_reported() {
        let root = tempfile::tempdir().unwrap();

        let error = prepare(root.path(), &config(false)).unwrap_err();

        assert!(matches!(error, Unsupported::NoDefault { .. }), "{error}");
    }

    #[test]
    fn bbr_of_pods_requires_bpf_host_routing() {
        assert_eq!(check(&config(false), true), Ok(()));
        assert_eq!(check(&config(true), true), Err(ConfigError::HostRouting));
        let of_host = BandwidthConfig {
            bbr_host_only: true,
            ..config(true)
        };
        assert_eq!(check(&of_host, true), Ok(()));
    }
}
