// SPDX-License-Identifier: Apache-2.0

//! Removes what an earlier agent left on the node: of this agent and of Cilium's, which uses the same names.

use std::{
    env, fmt, fs, io,
    path::{Path, PathBuf},
};

use skep_base_net::{Netlink, Route, RouteFilter, packet::route::RouteProtocol};
use skep_bpf_sys::{
    filter::{self, Filters},
    link::{self, InterfaceHook},
    mount::BPF_ROOT,
};

use crate::{error::InitError, say};

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
    let places = Places {
        bpf_root: args.bpf_root.clone(),
        state_dir: args.state_dir.clone(),
        cni_conf: args.cni_conf.clone(),
    };
    for leftover in leftovers(&places, all)? {
        say(&leftover);
        leftover.remove()?;
    }
    Ok(())
}

/// Where an agent leaves state.
#[derive(Debug, Clone)]
pub struct Places {
    /// Mount point of the BPF file system.
    pub bpf_root: PathBuf,
    /// Directory of sockets and state.
    pub state_dir: PathBuf,
    /// The CNI configuration.
    pub cni_conf: Option<PathBuf>,
}

/// What an agent left on the node. Its text says what removal does.
#[derive(Debug)]
pub enum Leftover {
    /// A filter that runs a program.
    Filter {
        interface: String,
        hook: InterfaceHook,
        program: String,
    },
    File(PathBuf),
    Directory(PathBuf),
    Interface(String),
    /// Routes of the agent's own protocol.
    Routes(Vec<Route>),
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter {
                interface, program, ..
            } => write!(f, "Detaching {program}-{interface}"),
            Self::File(path) | Self::Directory(path) => write!(f, "Removing {}", path.display()),
            Self::Interface(name) => write!(f, "Removing interface {name}"),
            Self::Routes(routes) => write!(f, "Removing {} routes", routes.len()),
        }
    }
}

/// Protocol of the agent's routes.
const ROUTES: RouteProtocol = RouteProtocol::Other(207);

/// What an agent left on the node, in the order of removal: programs before the maps that they use. `all`: interfaces,
/// routes, endpoints and the CNI configuration, too.
pub fn leftovers(places: &Places, all: bool) -> Result<Vec<Leftover>, InitError> {
    let mut found = Vec::new();
    filters(&mut found)?;
    // Pinned links, whose removal detaches their programs, then maps.
    directory(places.bpf_root.join("cilium"), &mut found);
    pins(&places.bpf_root, &mut found)?;
    if !all {
        return Ok(found);
    }
    let netlink = Netlink::open()?;
    let routes = netlink.routes(&RouteFilter {
        protocol: Some(ROUTES),
        ..RouteFilter::default()
    })?;
    if !routes.is_empty() {
        found.push(Leftover::Routes(routes));
    }
    // Interfaces of the datapath, and those of pods: their pods must be made again.
    let names = netlink.links()?.into_iter().map(|link| link.name);
    let own = names.filter(|name| name.starts_with("cilium_") || name.starts_with("lxc"));
    found.extend(own.map(Leftover::Interface));
    directory(places.state_dir.join("state"), &mut found);
    let conf = places.cni_conf.iter().filter(|path| path.exists());
    found.extend(conf.cloned().map(Leftover::File));
    Ok(found)
}

impl Leftover {
    /// Removes it; fine if it is gone.
    pub fn remove(&self) -> Result<(), InitError> {
        let removed = |path: &Path, result: io::Result<()>| match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(InitError::path("remove", path)),
        };
        match self {
            Self::Filter {
                interface,
                hook,
                program,
            } => drop(Filters::new(interface)?.detach(program, *hook)?),
            Self::File(path) => removed(path, fs::remove_file(path))?,
            Self::Directory(path) => removed(path, fs::remove_dir_all(path))?,
            // One of a pair goes with the other.
            Self::Interface(name) => drop(Netlink::open()?.delete_link(name)?),
            Self::Routes(routes) => {
                let netlink = Netlink::open()?;
                for route in routes {
                    netlink.delete_route(route)?;
                }
            }
        }
        Ok(())
    }
}

fn filters(found: &mut Vec<Leftover>) -> Result<(), InitError> {
    let interfaces = link::interfaces().map_err(InitError::Interfaces)?;
    for (interface, _) in filter::everywhere(&interfaces).map_err(InitError::Interfaces)? {
        let filters = Filters::new(&interface.name)?;
        for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
            for filter in filters.list(hook)? {
                let suffix = format!("-{}", interface.name);
                let program = filter.name.strip_suffix(&suffix).unwrap_or_default();
                if program.starts_with("cil_") {
                    found.push(Leftover::Filter {
                        interface: interface.name.clone(),
                        hook,
                        program: program.to_owned(),
                    });
                }
            }
        }
    }
    Ok(())
}

fn pins(root: &Path, found: &mut Vec<Leftover>) -> Result<(), InitError> {
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
            found.push(Leftover::File(entry.path()));
        }
    }
    Ok(())
}

fn directory(path: PathBuf, found: &mut Vec<Leftover>) {
    if path.exists() {
        found.push(Leftover::Directory(path));
    }
}
