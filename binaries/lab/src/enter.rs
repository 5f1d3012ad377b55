// SPDX-License-Identifier: Apache-2.0

//! Placement of a process: control group first, then namespaces, then the program.
//!
//! The lab starts itself again for each process (`skep-lab place …`), because entering namespaces must
//! happen while a process has a single thread. The parent and the placed process shake hands over the
//! child's standard input and output: the child prints `placed` once its namespaces exist, the parent
//! sets up their network, writes `go`, and the child executes the program.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::Args;
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
};

use crate::cgroup;

/// Subcommand of `skep-lab` that places a process.
const PLACE: &str = "place";

/// Why a process could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The step that failed; are you root?
    #[error("{step}")]
    Step {
        step: String,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// The control group cannot be joined.
    #[error(transparent)]
    Cgroup(#[from] cgroup::CgroupError),
    /// The program is missing or cannot be executed; the steps before succeeded.
    #[error("starting {}", program.to_string_lossy())]
    Program {
        program: OsString,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
}

impl EnterError {
    /// The exit code of a shell.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Program { cause, .. } if cause.kind() == io::ErrorKind::NotFound => 127,
            Self::Program { .. } => 126,
            Self::Step { .. } | Self::Cgroup(_) => 1,
        }
    }
}

/// A folder that is mounted read-only elsewhere for a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub source: PathBuf,
    pub target: PathBuf,
}

/// A mount is written as `source=target`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not source=target")]
pub struct MountError(String);

impl FromStr for Mount {
    type Err = MountError;

    fn from_str(text: &str) -> Result<Self, MountError> {
        // Sources are folders of the lab: there is no such sign in their names.
        let (source, target) = text.split_once('=').ok_or_else(|| MountError(text.to_owned()))?;
        Ok(Self {
            source: source.into(),
            target: target.into(),
        })
    }
}

/// Control group, namespaces and program of a process.
#[derive(Debug, Clone, Default, Args)]
pub struct Placement {
    /// Control group to join (absolute path).
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Process whose namespaces (network, mounts, host name) to enter.
    #[arg(long)]
    pub beside: Option<u32>,
    /// Create a network namespace.
    #[arg(long)]
    pub new_network: bool,
    /// Pin the new network namespace under this name in `/run/netns`, where agents find those of pods.
    #[arg(long)]
    pub pin_network: Option<String>,
    /// Set up a node: own mounts, with an empty `/run` and a BPF file system of its own.
    #[arg(long)]
    pub new_node: bool,
    /// Set up a new node for a container runtime: a control group namespace of its own, whose root is the parent of the
    /// control group.
    #[arg(long)]
    pub containers: bool,
    /// Folder below `/run` that stays visible in a new node's mounts.
    #[arg(long)]
    pub keep: Option<PathBuf>,
    /// Folder to mount read-only, in mounts of its own: `source=target`; may be repeated.
    #[arg(long = "mount")]
    pub mounts: Vec<Mount>,
    /// Make the terminal on the standard input the controlling terminal of a new session.
    #[arg(long)]
    pub terminal: bool,
    /// Host name in the new namespaces.
    #[arg(long)]
    pub hostname: Option<String>,
    /// Print `placed` when everything exists, and wait for `go` on the standard input.
    #[arg(long)]
    pub handshake: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    pub program: Vec<OsString>,
}

impl Placement {
    /// Places a program in a control group and in the namespaces of a process.
    pub(crate) fn beside(
        process: u32,
        cgroup: PathBuf,
        program: &Path,
        arguments: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            cgroup: Some(cgroup),
            beside: Some(process),
            program: std::iter::once(program.into())
                .chain(arguments.into_iter().map(OsString::from))
                .collect(),
            ..Self::default()
        }
    }

    /// The placement as arguments of `skep-lab place`.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![PLACE.into()];
        let mut option = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                arguments.push(name.into());
                arguments.push(value);
            }
        };
        option("--cgroup", self.cgroup.clone().map(Into::into));
        option("--beside", self.beside.map(|pid| pid.to_string().into()));
        option("--pin-network", self.pin_network.clone().map(Into::into));
        option("--keep", self.keep.clone().map(Into::into));
        option("--hostname", self.hostname.clone().map(Into::into));
        for mount in &self.mounts {
            let mut text = mount.source.clone().into_os_string();
            text.push("=");
            text.push(&mount.target);
            option("--mount", Some(text));
        }
        for (name, set) in [
            ("--new-network", self.new_network),
            ("--new-node", self.new_node),
            ("--containers", self.containers),
            ("--terminal", self.terminal),
            ("--handshake", self.handshake),
        ] {
            if set {
                arguments.push(name.into());
            }
        }
        arguments.push("--".into());
        arguments.extend(self.program.iter().cloned());
        arguments
    }

    /// Places the calling process, which must have a single thread, and executes the program.
    pub fn become_program(&self) -> Result<std::convert::Infallible, EnterError> {
        if let Some(group) = &self.cgroup {
            if self.containers {
                cgroup::join(group.parent().unwrap_or(group))?;
                unshare(CloneFlags::CLONE_NEWCGROUP).map_err(failed("making a control group namespace"))?;
            }
            cgroup::join(group)?;
        }
        if let Some(process) = self.beside {
            enter(process)?;
        }
        if self.new_network {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS)
                .map_err(failed("making a network namespace"))?;
        }
        if let Some(name) = &self.pin_network {
            pin_network(name)?;
        }
        if self.new_node {
            make_node_mounts(self.keep.as_deref())?;
            if self.containers {
                make_runtime_mounts()?;
            }
        }
        // After the pin, which the node is to see.
        if !self.mounts.is_empty() {
            make_pod_mounts(&self.mounts)?;
        }
        if self.terminal {
            control_terminal()?;
        }
        if let Some(name) = &self.hostname {
            nix::unistd::sethostname(name).map_err(failed("setting the host name"))?;
        }
        if self.handshake {
            handshake()?;
        }
        let Some((program, arguments)) = self.program.split_first() else {
            return Err(step("starting the program")(io::Error::other("no program")));
        };
        let cause = std::process::Command::new(program).args(arguments).exec();
        Err(EnterError::Program {
            program: program.clone(),
            cause,
        })
    }
}

/// Whether a process has not become its program yet: it is in the control group of a pod already, but not in its network.
pub(crate) fn is_placing(process: i32) -> bool {
    fs::read(format!("/proc/{process}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(PLACE.as_bytes()))
}

fn enter(process: u32) -> Result<(), EnterError> {
    let open = |kind: &str| {
        let path = format!("/proc/{process}/ns/{kind}");
        File::open(&path).map_err(step(&format!("opening {path}")))
    };
    // All are opened before the first is entered: another mount namespace has another /proc, perhaps.
    let namespaces = [
        (open("net")?, CloneFlags::CLONE_NEWNET),
        (open("uts")?, CloneFlags::CLONE_NEWUTS),
        (open("cgroup")?, CloneFlags::CLONE_NEWCGROUP),
        (open("mnt")?, CloneFlags::CLONE_NEWNS),
    ];
    for (file, kind) in namespaces {
        setns(&file, kind).map_err(failed(&format!("entering the namespaces of process {process}")))?;
    }
    Ok(())
}

fn make_node_mounts(keep: Option<&Path>) -> Result<(), EnterError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed("making a mount namespace"))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(failed("making the mounts private"))?;
    // Held open across the new /run, which hides it.
    let kept = match keep {
        Some(path) => Some((
            path,
            File::open(path).map_err(step(&format!("opening {}", path.display())))?,
        )),
        None => None,
    };
    mount(
        Some("tmpfs"),
        "/run",
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )
    .map_err(failed("mounting the node's /run"))?;
    if let Some((path, file)) = kept {
        fs::create_dir_all(path).map_err(step(&format!("making {}", path.display())))?;
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        mount(Some(source.as_str()), path, none, MsFlags::MS_BIND, none)
            .map_err(failed(&format!("keeping {}", path.display())))?;
    }
    // Where agents find the network namespaces of pods.
    for folder in ["/run/netns", "/run/cilium"] {
        fs::create_dir_all(folder).map_err(step(&format!("making {folder}")))?;
    }
    std::os::unix::fs::symlink("/run/netns", "/run/cilium/netns")
        .map_err(step("linking /run/cilium/netns"))?;
    let folder = Path::new("/sys/fs/bpf");
    if folder.is_dir() {
        // The machine's own, where it has one: which of two stacked ones a program means is unclear, so agents refuse.
        while umount2(folder, MntFlags::MNT_DETACH).is_ok() {}
        mount(Some("bpf"), folder, Some("bpf"), MsFlags::empty(), none)
            .map_err(failed("mounting the node's BPF file system"))?;
    }
    Ok(())
}

/// Mounts the control groups of a node, and lets containers see mounts of the node.
fn make_runtime_mounts() -> Result<(), EnterError> {
    let none: Option<&str> = None;
    let folder = "/sys/fs/cgroup";
    // Which of two stacked ones a program means is unclear, so agents refuse.
    while umount2(folder, MntFlags::MNT_DETACH).is_ok() {}
    mount(Some("none"), folder, Some("cgroup2"), MsFlags::empty(), none)
        .map_err(failed("mounting the node's control groups"))?;
    // What init containers write there is for the node.
    let settings = Path::new("/etc/sysctl.d");
    if settings.is_dir() {
        mount(Some("tmpfs"), settings, Some("tmpfs"), MsFlags::empty(), none)
            .map_err(failed("mounting the node's /etc/sysctl.d"))?;
    }
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none).map_err(failed("sharing the mounts"))
}

fn make_pod_mounts(mounts: &[Mount]) -> Result<(), EnterError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed("making a mount namespace"))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(failed("making the mounts private"))?;
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    for Mount { source, target } in mounts {
        let what = format!("mounting {} at {}", source.display(), target.display());
        fs::create_dir_all(target).map_err(step(&format!("making {}", target.display())))?;
        mount(Some(source), target, none, MsFlags::MS_BIND, none).map_err(failed(&what))?;
        mount(none, target, none, read_only, none).map_err(failed(&what))?;
    }
    Ok(())
}

fn control_terminal() -> Result<(), EnterError> {
    let what = "taking the terminal";
    nix::unistd::setsid().map_err(failed(what))?;
    rustix::process::ioctl_tiocsctty(io::stdin()).map_err(|errno| step(what)(errno.into()))
}

fn pin_network(name: &str) -> Result<(), EnterError> {
    let folder = Path::new("/run/netns");
    fs::create_dir_all(folder).map_err(step("making /run/netns"))?;
    let pin = folder.join(name);
    unpin(&pin);
    File::create(&pin).map_err(step(&format!("making {}", pin.display())))?;
    let none: Option<&str> = None;
    mount(Some("/proc/self/ns/net"), &pin, none, MsFlags::MS_BIND, none).map_err(failed(&format!(
        "pinning the network namespace at {}",
        pin.display()
    )))
}

/// Removes the pin of a pod's network namespace; one that is not there is fine.
pub fn unpin(pin: &Path) {
    // A pin left by a pod of the same name: its namespace must not be mistaken for the new one.
    let _ = umount2(pin, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(pin);
}

fn handshake() -> Result<(), EnterError> {
    let mut out = io::stdout().lock();
    writeln!(out, "placed")
        .and_then(|()| out.flush())
        .map_err(step("telling the lab"))?;
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(step("waiting for the lab"))?;
    if line.trim_end() == "go" {
        Ok(())
    } else {
        Err(step("waiting for the lab")(io::Error::other("the lab gave up")))
    }
}

fn step(what: &str) -> impl FnOnce(io::Error) -> EnterError {
    let step = what.to_owned();
    move |cause| EnterError::Step { step, cause }
}

fn failed(what: &str) -> impl FnOnce(nix::errno::Errno) -> EnterError {
    let wrap = step(what);
    move |errno| wrap(errno.into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        placement: Placement,
    }

    #[test]
    fn arguments_are_read_back_as_the_same_placement() {
        let placement = Placement {
            cgroup: Some("/g".into()),
            beside: Some(7),
            new_network: true,
            pin_network: Some("web".into()),
            new_node: true,
            containers: true,
            keep: Some("/run/x".into()),
            mounts: vec![Mount {
                source: "/run/a".into(),
                target: "/var/run/b=c".into(),
            }],
            terminal: true,
            hostname: Some("h".into()),
            handshake: true,
            program: vec!["echo".into(), "--x".into()],
        };

        let read = Line::try_parse_from(placement.arguments()).unwrap().placement;

        assert_eq!(format!("{read:?}"), format!("{placement:?}"));
    }
}
