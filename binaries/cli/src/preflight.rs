// SPDX-License-Identifier: Apache-2.0

//! `skep preflight` on a node: whether an agent can run here.

use std::{
    error::Error, fs, net::TcpListener, os::unix::process::CommandExt as _, path::Path, path::PathBuf,
    process::Command,
};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{
    failure::{Failure, fatal},
    print::{self, Format},
};

/// Oldest kernel.
const KERNEL: (u32, u32) = (5, 15);
/// Ports of the agent.
const PORTS: [(u16, &str); 3] = [
    (4240, "health of nodes"),
    (4244, "Hubble"),
    (9879, "health of the agent"),
];
/// Capabilities of the agent's container, by number and name.
const CAPABILITIES: [(u32, &str); 3] = [(12, "NET_ADMIN"), (21, "SYS_ADMIN"), (24, "SYS_RESOURCE")];

/// `skep preflight`; without a sub-command it is about the cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum PreflightCommand {
    /// Check kernel, mounts, capabilities, CNI configuration and ports of this node. The exit status is 1 if a check fails.
    Node(NodeOptions),
    /// Validate all Cilium network policies of the cluster: `skep-agent preflight validate-cnp`.
    #[command(disable_help_flag = true)]
    ValidateCnp {
        /// Arguments of `skep-agent preflight validate-cnp`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Validate the agent's settings in a directory: `skep-agent hive check`.
    ValidateConfigmap {
        /// Directory with a file for each setting.
        #[arg(long, default_value = "/tmp/cilium/config-map")]
        config_dir: PathBuf,
    },
}

/// Options of `skep preflight node`.
#[derive(Debug, Args)]
pub(crate) struct NodeOptions {
    /// Directory of CNI configurations.
    #[arg(long, default_value = "/host/etc/cni/net.d")]
    cni_config_directory: PathBuf,
    /// Root of the file system of processes.
    #[arg(long, default_value = "/proc", hide = true)]
    proc: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    Warning,
    Error,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    outcome: Outcome,
    text: String,
}

pub(crate) fn run(command: &PreflightCommand, format: Format) -> Result<String, Box<dyn Error>> {
    match command {
        PreflightCommand::Node(options) => node(options, format),
        PreflightCommand::ValidateCnp { arguments } => {
            let words = ["preflight", "validate-cnp"].map(str::to_owned);
            Err(become_agent(words.into_iter().chain(arguments.iter().cloned())))
        }
        PreflightCommand::ValidateConfigmap { config_dir } => Err(become_agent([
            "hive".to_owned(),
            "check".to_owned(),
            format!("--config-dir={}", config_dir.display()),
        ])),
    }
}

fn become_agent(arguments: impl IntoIterator<Item = String>) -> Box<dyn Error> {
    const AGENT: &str = "skep-agent";
    let beside = std::env::current_exe().map(|path| path.with_file_name(AGENT));
    let program = beside.ok().filter(|path| path.exists());
    let program = program.unwrap_or_else(|| PathBuf::from(AGENT));
    let error = Command::new(&program).args(arguments).exec();
    fatal(format!("cannot run {}: {error}", program.display())).into()
}

fn node(options: &NodeOptions, format: Format) -> Result<String, Box<dyn Error>> {
    let read = |name: &str| fs::read_to_string(options.proc.join(name)).unwrap_or_default();
    let mut checks = vec![
        kernel(&read("sys/kernel/osrelease")),
        btf(Path::new("/sys/kernel/btf/vmlinux")),
        mounts(&read("self/mounts"), &read("filesystems")),
        cgroups(&read("filesystems")),
        capabilities(&read("self/status")),
        plugins(&options.cni_config_directory),
    ];
    checks.extend(PORTS.iter().map(|(number, what)| port(*number, what)));
    let is_ready = checks.iter().all(|check| check.outcome != Outcome::Error);
    let text = match format {
        Format::Text => checks
            .iter()
            .map(|check| {
                let outcome = match check.outcome {
                    Outcome::Ok => "ok",
                    Outcome::Warning => "warning",
                    Outcome::Error => "error",
                };
                format!("{:14} {outcome:8} {}\n", check.name, check.text)
            })
            .collect(),
        format => print::value(&serde_json::to_value(&checks)?, format),
    };
    match is_ready {
        true => Ok(text),
        false => Err(Failure::Printed(text.trim_end().to_owned()).into()),
    }
}

fn check(name: &'static str, outcome: Outcome, text: impl Into<String>) -> Check {
    Check {
        name,
        outcome,
        text: text.into(),
    }
}

fn kernel(release: &str) -> Check {
    let release = release.trim();
    let mut parts = release
        .split(|letter: char| !letter.is_ascii_digit())
        .map(str::parse);
    let version = match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    };
    let outcome = match version {
        Some(version) if version >= KERNEL => Outcome::Ok,
        Some(_) => Outcome::Error,
        None => Outcome::Warning,
    };
    check(
        "kernel",
        outcome,
        format!("{release}, at least {}.{} is needed", KERNEL.0, KERNEL.1),
    )
}

fn btf(types: &Path) -> Check {
    match types.exists() {
        true => check("btf", Outcome::Ok, "/sys/kernel/btf/vmlinux is there"),
        false => check(
            "btf",
            Outcome::Warning,
            "no /sys/kernel/btf/vmlinux: entries of ended flows are removed by slower operations",
        ),
    }
}

fn mounts(mounts: &str, filesystems: &str) -> Check {
    let is_mounted = mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some("/sys/fs/bpf") && words.next() == Some("bpf")
    });
    let is_known = filesystems
        .lines()
        .any(|line| line.split_whitespace().last() == Some("bpf"));
    match (is_mounted, is_known) {
        (true, _) => check("bpffs", Outcome::Ok, "/sys/fs/bpf is a BPF file system"),
        (false, true) => check(
            "bpffs",
            Outcome::Ok,
            "not mounted here: the agent's init container mounts it",
        ),
        (false, false) => check(
            "bpffs",
            Outcome::Error,
            "the kernel has no BPF file system (CONFIG_BPF_SYSCALL)",
        ),
    }
}

fn cgroups(filesystems: &str) -> Check {
    match filesystems
        .lines()
        .any(|line| line.split_whitespace().last() == Some("cgroup2"))
    {
        true => check("cgroup2", Outcome::Ok, "the kernel has cgroup version 2"),
        false => check(
            "cgroup2",
            Outcome::Error,
            "the kernel has no cgroup version 2: services cannot be translated at sockets",
        ),
    }
}

/// Capabilities of this process: agents have more only if they are allowed more.
fn capabilities(status: &str) -> Check {
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bounding = bounding.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let Some(bounding) = bounding else {
        return check("capabilities", Outcome::Warning, "unknown");
    };
    let missing = CAPABILITIES
        .iter()
        .filter(|(number, _)| bounding & (1 << number) == 0);
    let missing: Vec<&str> = missing.map(|(_, name)| *name).collect();
    match missing.is_empty() {
        true => check(
            "capabilities",
            Outcome::Ok,
            "a container here may have those of the agent",
        ),
        // A pod of checks has fewer than the agent's.
        false => check(
            "capabilities",
            Outcome::Warning,
            format!(
                "this container lacks {}; the agent requires them",
                missing.join(", ")
            ),
        ),
    }
}

/// CNI configurations that are not Cilium's.
fn plugins(folder: &Path) -> Check {
    let Ok(entries) = fs::read_dir(folder) else {
        return check(
            "cni",
            Outcome::Warning,
            format!("{} is not readable here", folder.display()),
        );
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let is_config = |name: &String| {
        [".conf", ".conflist", ".json"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    let mut others: Vec<String> = names
        .filter(|name| is_config(name) && !name.contains("cilium"))
        .collect();
    others.sort();
    match others.is_empty() {
        true => check("cni", Outcome::Ok, "no configuration of another plugin"),
        false => check(
            "cni",
            Outcome::Warning,
            format!(
                "{}: set aside by the agent (cni.exclusive), or chained with (cni.chainingMode)",
                others.join(", ")
            ),
        ),
    }
}

fn port(number: u16, what: &str) -> Check {
    match TcpListener::bind(("0.0.0.0", number)) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => check(
            "port",
            Outcome::Warning,
            format!("{number} ({what}) is in use: fine if that is an agent"),
        ),
        _ => check("port", Outcome::Ok, format!("{number} ({what}) is free")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_say_what_is_missing() {
        assert_eq!(kernel("5.10.0-33-amd64\n").outcome, Outcome::Error);
        assert_eq!(kernel("6.12.95+deb13-amd64").outcome, Outcome::Ok);
        assert_eq!(mounts("bpf /sys/fs/bpf bpf rw 0 0\n", "").outcome, Outcome::Ok);
        assert_eq!(mounts("", "nodev\tbpf\n").outcome, Outcome::Ok);
        assert_eq!(mounts("", "nodev\tproc\n").outcome, Outcome::Error);
        assert_eq!(cgroups("nodev\tcgroup2\n").outcome, Outcome::Ok);
        assert_eq!(cgroups("nodev\tcgroup\n").outcome, Outcome::Error);
        assert_eq!(btf(Path::new("/nonexistent/vmlinux")).outcome, Outcome::Warning);
        let some = capabilities("CapBnd:\t00000000a80425fb\n");
        assert_eq!(
            some.text,
            "this container lacks NET_ADMIN, SYS_ADMIN, SYS_RESOURCE; the agent requires them"
        );
    }

    #[test]
    fn configurations_of_other_plugins_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["05-cilium.conflist", "10-calico.conflist", "calico-kubeconfig"] {
            fs::write(folder.path().join(name), "").unwrap();
        }

        let found = plugins(folder.path());

        assert_eq!(found.outcome, Outcome::Warning);
        assert!(found.text.starts_with("10-calico.conflist:"), "{}", found.text);
    }
}
