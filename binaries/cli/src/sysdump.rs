// SPDX-License-Identifier: Apache-2.0

//! `skep sysdump`: one archive with all that helps to find a fault on this node. Secrets are removed from all of it; what
//! cannot be collected is named in `errors.txt`.

mod redact;

use std::{
    error::Error,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use flate2::{Compression, write::GzEncoder};
use jiff::Zoned;
use serde_json::{Value, json};
use skep_base_api_client::Client;
use skep_base_net::{Netlink, RouteFilter};

use crate::{
    agent,
    own::{self, Output, Own},
    sysdump::redact::Redactor,
};

/// Options of `skep sysdump`.
#[derive(Debug, Args)]
pub(crate) struct SysdumpOptions {
    /// The archive, `-` for the standard output; default: `skep-sysdump-<time>.tar.gz` in the current directory.
    #[arg(long, value_name = "FILE")]
    output_filename: Option<PathBuf>,
    /// Log files, or directories of log files.
    #[arg(long, value_name = "PATH", default_values = ["/var/log/pods", "/var/run/cilium/cilium-cni.log"])]
    logs: Vec<PathBuf>,
    /// Omit the objects of Kubernetes, which `kubectl` lists.
    #[arg(long)]
    no_kubernetes: bool,
}

/// Texts and JSON of commands, by file.
const COMMANDS: &[(&str, &[&str])] = &[
    ("version.txt", &["version"]),
    ("status.txt", &["status", "--verbose"]),
    ("status.json", &["status", "-o", "json"]),
    ("health.json", &["health", "status", "-o", "json"]),
    ("config.txt", &["config", "--all"]),
    ("endpoints.txt", &["endpoint", "list"]),
    ("endpoints.json", &["endpoint", "list", "-o", "json"]),
    ("identities.json", &["identity", "list", "-o", "json"]),
    (
        "identities-endpoints.json",
        &["identity", "list", "--endpoints", "-o", "json"],
    ),
    ("ipcache.json", &["ip", "list", "-o", "json"]),
    ("nodes.json", &["node", "list", "-o", "json"]),
    ("node-ids.json", &["nodeid", "list", "-o", "json"]),
    ("services.txt", &["service", "list"]),
    ("services.json", &["service", "list", "-o", "json"]),
    ("lrp.json", &["lrp", "list", "-o", "json"]),
    ("policy.json", &["policy", "get"]),
    ("policy-selectors.txt", &["policy", "selectors", "--verbose"]),
    ("fqdn-cache.txt", &["fqdn", "cache", "list"]),
    ("clustermesh.txt", &["clustermesh", "status"]),
    ("cgroups.json", &["cgroups", "list", "-o", "json"]),
    ("metrics.txt", &["metrics", "list"]),
    ("hive.txt", &["hive"]),
    ("tables.json", &["statedb"]),
    ("maps.txt", &["map", "list"]),
    ("bpf/lb.txt", &["bpf", "lb", "list"]),
    ("bpf/lb-backends.txt", &["bpf", "lb", "list", "--backends"]),
    ("bpf/lb-frontends.txt", &["bpf", "lb", "list", "--frontends"]),
    ("bpf/lb-revnat.txt", &["bpf", "lb", "list", "--revnat"]),
    ("bpf/lb-affinity.txt", &["bpf", "lb", "affinity", "list"]),
    ("bpf/ipcache.txt", &["bpf", "ipcache", "list"]),
    ("bpf/endpoints.txt", &["bpf", "endpoint", "list"]),
    ("bpf/policy.txt", &["bpf", "policy", "list"]),
    ("bpf/ct.txt", &["bpf", "ct", "list", "global"]),
    ("bpf/nat.txt", &["bpf", "nat", "list"]),
    ("bpf/frag.txt", &["bpf", "frag", "list"]),
    ("bpf/ipmasq.txt", &["bpf", "ipmasq", "list"]),
    ("bpf/nodeid.txt", &["bpf", "nodeid", "list"]),
    ("bpf/metrics.txt", &["bpf", "metrics", "list"]),
];

/// Commands for each endpoint.
const OF_ENDPOINTS: &[(&str, &[&str])] = &[
    ("get.json", &["endpoint", "get"]),
    ("log.txt", &["endpoint", "log"]),
    ("health.txt", &["endpoint", "health"]),
    ("config.txt", &["endpoint", "config"]),
];

/// Files of the node, and directories with their files.
const FILES: &[&str] = &[
    "/proc/version",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/mounts",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/net/core",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/conf/all",
    "/proc/sys/net/ipv6/conf/all",
    "/proc/net/snmp",
    "/proc/net/softnet_stat",
    "/proc/net/nf_conntrack",
    "/etc/cni/net.d",
    "/etc/os-release",
];

/// Kinds of objects that `kubectl` lists.
const OBJECTS: &[&str] = &[
    "nodes",
    "pods",
    "services",
    "endpointslices",
    "namespaces",
    "events",
    "networkpolicies",
    "ciliumnodes",
    "ciliumendpoints",
    "ciliumidentities",
    "ciliumnetworkpolicies",
    "ciliumclusterwidenetworkpolicies",
    "ciliumendpointslices",
    "ciliumlocalredirectpolicies",
    "ciliumpodippools",
    "ciliumloadbalancerippools",
];

/// Most bytes of a log that are kept: its end.
const LOG: u64 = 8 << 20;
/// Most levels of directories of logs.
const DEPTH: usize = 4;

struct Archive {
    tar: tar::Builder<GzEncoder<File>>,
    folder: String,
    redactor: Redactor,
    errors: Vec<String>,
}

impl Archive {
    fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let text = self.redactor.text(&String::from_utf8_lossy(bytes));
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        header.set_mtime(now.unwrap_or(Duration::ZERO).as_secs());
        let path = format!("{}/{name}", self.folder);
        self.tar.append_data(&mut header, path, text.as_bytes())
    }

    /// Adds the output of a run; a failure is noted.
    fn add_output(&mut self, name: &str, output: &Output) -> io::Result<()> {
        if let Some(failure) = &output.failure {
            self.errors.push(format!("{name}: {failure}"));
        }
        match output.stdout.as_slice() {
            [] => Ok(()),
            stdout => self.add(name, stdout),
        }
    }

    /// Adds the end of a file, or those of the files in a directory.
    fn add_files(&mut self, path: &Path, depth: usize) -> io::Result<()> {
        let name = format!("files/{}", path.display().to_string().trim_start_matches('/'));
        let found = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => fs::read_dir(path).map(Some),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        match found {
            Ok(Some(entries)) if depth > 0 => {
                let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
                paths.sort();
                paths.iter().try_for_each(|path| self.add_files(path, depth - 1))
            }
            Ok(Some(_)) => Ok(()),
            Ok(None) => match end_of(path) {
                Ok(bytes) => self.add(&name, &bytes),
                Err(error) => {
                    self.errors.push(format!("{}: {error}", path.display()));
                    Ok(())
                }
            },
            Err(error) => {
                self.errors.push(format!("{}: {error}", path.display()));
                Ok(())
            }
        }
    }
}

/// The end of a file. Files below `/proc` have no size.
fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > LOG {
        io::Seek::seek(&mut file, io::SeekFrom::Start(size - LOG))?;
    }
    let mut bytes = Vec::new();
    file.take(LOG).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Interfaces with their addresses, and routes.
fn network() -> Result<Value, skep_base_net::NetError> {
    let netlink = Netlink::open()?;
    let mut interfaces = Vec::new();
    for link in netlink.links()? {
        let addresses: Vec<String> = netlink
            .addresses(&link)?
            .iter()
            .map(|address| format!("{address:?}"))
            .collect();
        interfaces.push(json!({"name": link.name, "link": format!("{link:?}"), "addresses": addresses}));
    }
    let routes = netlink.routes(&RouteFilter::default())?;
    let routes: Vec<String> = routes.iter().map(|route| format!("{route:?}")).collect();
    Ok(json!({"interfaces": interfaces, "routes": routes}))
}

pub(crate) fn run(agent: &Client, own: &Own, options: &SysdumpOptions) -> Result<String, Box<dyn Error>> {
    let folder = format!("skep-sysdump-{}", Zoned::now().strftime("%Y%m%d-%H%M%S"));
    let is_piped = options.output_filename.as_deref() == Some(Path::new("-"));
    let path = match &options.output_filename {
        Some(_) if is_piped => PathBuf::from("/dev/stdout"),
        Some(path) => path.clone(),
        None => PathBuf::from(format!("{folder}.tar.gz")),
    };
    let file = File::create(&path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
    let mut archive = Archive {
        tar: tar::Builder::new(GzEncoder::new(file, Compression::default())),
        folder,
        redactor: Redactor::new()?,
        errors: Vec::new(),
    };
    for (name, words) in COMMANDS {
        archive.add_output(name, &own.run(words))?;
    }
    let endpoints: Value = agent::get(agent, &agent::LIST_ENDPOINTS, "").unwrap_or_default();
    for endpoint in endpoints.as_array().into_iter().flatten() {
        let id = endpoint["id"].to_string();
        for (name, words) in OF_ENDPOINTS {
            let output = own.run(&[*words, &[&*id]].concat());
            archive.add_output(&format!("endpoints/{id}/{name}"), &output)?;
        }
    }
    match agent::get::<Value>(agent, &agent::GET_DEBUG_INFO, "") {
        Ok(info) => archive.add("debuginfo.json", format!("{info:#}\n").as_bytes())?,
        Err(error) => archive.errors.push(format!("debuginfo.json: {error}")),
    }
    match network() {
        Ok(found) => archive.add("network.json", format!("{found:#}\n").as_bytes())?,
        Err(error) => archive.errors.push(format!("network.json: {error}")),
    }
    for path in FILES {
        archive.add_files(Path::new(path), 1)?;
    }
    for path in &options.logs {
        archive.add_files(path, DEPTH)?;
    }
    if !options.no_kubernetes {
        for kind in OBJECTS {
            let mut kubectl = Command::new("kubectl");
            kubectl.args([
                "get",
                kind,
                "--all-namespaces",
                "--request-timeout=10s",
                "-o",
                "yaml",
            ]);
            archive.add_output(&format!("kubernetes/{kind}.yaml"), &own::run(kubectl))?;
        }
    }
    let errors = archive.errors.join("\n") + "\n";
    archive.add("errors.txt", errors.as_bytes())?;
    let count = archive.errors.len();
    archive.tar.into_inner()?.finish()?;
    if is_piped {
        return Ok(String::new());
    }
    Ok(format!(
        "Wrote {} ({count} parts could not be collected: see errors.txt in it)\n",
        path.display()
    ))
}
