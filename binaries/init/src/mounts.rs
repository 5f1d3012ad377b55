// SPDX-License-Identifier: Apache-2.0

//! File systems that must be mounted on the host.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use skep_bpf_sys::mount;

use crate::{error::InitError, say};

#[derive(Debug, clap::Args)]
pub(crate) struct CgroupArgs {
    /// Mount point. Default: where the system mounted cgroup v2, else /run/cilium/cgroupv2.
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) host: Host,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BpfArgs {
    /// Mount point.
    #[arg(default_value = mount::BPF_ROOT)]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) host: Host,
}

/// Whose namespaces a command acts in.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Host {
    /// The host's /proc, to act in the namespaces of its process 1. Default: the namespaces of this process.
    #[arg(long, value_name = "DIR")]
    pub(crate) host_proc: Option<PathBuf>,
}

impl Host {
    /// Moves this process, which has one thread, into the host's namespaces.
    pub(crate) fn enter(&self) -> Result<(), InitError> {
        let Some(proc) = &self.host_proc else {
            return Ok(());
        };
        // The path leads to another place once the mount namespace is the host's.
        let open = |name| {
            let path = proc.join("1/ns").join(name);
            let file = File::open(&path).map_err(InitError::path("open", &path))?;
            Ok::<_, InitError>((path, file))
        };
        let namespaces = [
            (open("cgroup")?, LinkNameSpaceType::ControlGroup),
            (open("mnt")?, LinkNameSpaceType::Mount),
        ];
        for ((path, file), kind) in namespaces {
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(kind)).map_err(|error| {
                InitError::Namespace {
                    path,
                    source: error.into(),
                }
            })?;
        }
        Ok(())
    }
}

pub(crate) fn cgroup(args: &CgroupArgs) -> Result<(), InitError> {
    args.host.enter()?;
    let found = match &args.path {
        Some(path) => mount::is_cgroup2(path).then(|| path.clone()),
        None => mount::find_cgroup2(),
    };
    announce(
        "cgroup2",
        found.as_deref(),
        args.path
            .as_deref()
            .unwrap_or(Path::new(mount::CGROUP_ROOT_FALLBACK)),
    );
    mount::cgroup2(args.path.as_deref())?;
    Ok(())
}

pub(crate) fn bpf(args: &BpfArgs) -> Result<(), InitError> {
    args.host.enter()?;
    let found = mount::is_bpffs(&args.path).then_some(&*args.path);
    announce("bpf", found, &args.path);
    let root = mount::bpffs(&args.path)?;
    if root != args.path {
        say(format_args!(
            "{} has another file system: bpf is mounted at {}",
            args.path.display(),
            root.display()
        ));
    }
    Ok(())
}

fn announce(kind: &str, found: Option<&Path>, path: &Path) {
    match found {
        Some(found) => say(format_args!("{kind} is mounted at {}", found.display())),
        None => say(format_args!("Mounting {kind} at {}", path.display())),
    }
}
