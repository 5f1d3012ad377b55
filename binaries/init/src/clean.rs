// SPDX-License-Identifier: Apache-2.0

//! Removes what an earlier agent left on the node: of this agent and of Cilium's, which uses the same names.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use skep_base_net::Netlink;
use skep_bpf_sys::{
    filter::{self, Filters},
    link::{self, InterfaceHook},
    mount::BPF_ROOT,
};

use crate::{cni, error::InitError, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Detach programs and remove pinned maps and links. Also with variable CLEAN_CILIUM_BPF_STATE=true.
    #[arg(long)]
    pub(crate) bpf_state: bool,
    /// Also remove interfaces, the state of endpoints and the CNI configuration. Also with variable
    /// CLEAN_CILIUM_STATE=true.
    #[arg(long)]
    pub(crate) all_state: bool,
    /// Mount point of the BPF file system.
    #[arg(long, value_name = "DIR", default_value = BPF_ROOT)]
    pub(crate) bpf_root: PathBuf,
    /// Directory of the agent's sockets and state.
    #[arg(long, value_name = "DIR", default_value = "/var/run/cilium")]
    pub(crate) state_dir: PathBuf,
    /// The CNI configuration written by the agent.
    #[arg(long, env = "WRITE_CNI_CONF_WHEN_READY", value_name = "FILE")]
    pub(crate) cni_conf: Option<PathBuf>,
}

/// Whether the chart requests it: by a key of the agent's ConfigMap, as a variable of the init container.
fn is_set(names: [&str; 2]) -> bool {
    names
        .iter()
        .any(|name| env::var(name).is_ok_and(|value| value == "true"))
}

pub(crate) fn run(args: &Args) -> Result<(), InitError> {
    let all = args.all_state || is_set(["CILIUM_ALL_STATE", "CLEAN_CILIUM_STATE"]);
    if !(all || args.bpf_state || is_set(["CILIUM_BPF_STATE", "CLEAN_CILIUM_BPF_STATE"])) {
        say("The state stays");
        return Ok(());
    }
    // Programs before the maps that they use.
    filters()?;
    pins(&args.bpf_root)?;
    if all {
        interfaces()?;
        directory(&args.state_dir.join("state"))?;
        if let Some(path) = args.cni_conf.as_deref().filter(|path| path.exists()) {
            cni::remove(path)?;
        }
    }
    Ok(())
}

/// Detaches programs that filters run.
fn filters() -> Result<(), InitError> {
    let interfaces = link::interfaces().map_err(InitError::Interfaces)?;
    for (interface, _) in filter::everywhere(&interfaces).map_err(InitError::Interfaces)? {
        let filters = Filters::new(&interface.name)?;
        for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
            for found in filters.list(hook)? {
                let suffix = format!("-{}", interface.name);
                let program = found.name.strip_suffix(&suffix).unwrap_or_default();
                if program.starts_with("cil_") {
                    say(format_args!("Detaching {}", found.name));
                    filters.detach(program, hook)?;
                }
            }
        }
    }
    Ok(())
}

/// Removes pinned links, which detaches their programs, then maps.
fn pins(root: &Path) -> Result<(), InitError> {
    directory(&root.join("cilium"))?;
    let maps = root.join("tc/globals");
    let entries = match fs::read_dir(&maps) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(InitError::path("list", &maps))?,
    };
    for entry in entries {
        let entry = entry.map_err(InitError::path("list", &maps))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("cilium_") || name.starts_with("skep_") {
            cni::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Interfaces of the datapath, and those of pods: their pods must be made again.
fn interfaces() -> Result<(), InitError> {
    let netlink = Netlink::open()?;
    for link in netlink.links()? {
        if link.name.starts_with("cilium_") || link.name.starts_with("lxc") {
            say(format_args!("Removing interface {}", link.name));
            // One of a pair goes with the other.
            netlink.delete_link(&link.name)?;
        }
    }
    Ok(())
}

fn directory(path: &Path) -> Result<(), InitError> {
    if !path.exists() {
        return Ok(());
    }
    say(format_args!("Removing {}", path.display()));
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(InitError::path("remove", path)),
    }
}
