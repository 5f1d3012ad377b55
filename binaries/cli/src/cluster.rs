// SPDX-License-Identifier: Apache-2.0

//! Commands on a whole cluster: those of `skep-cluster`, which this program becomes. It links no client of Kubernetes.
//!
//! `status`, `config`, `clustermesh`, `sysdump`, `preflight` and `version` are commands on a node and on a cluster; see
//! [`Place::of`].

use std::{
    env, ffi::OsString, os::unix::process::CommandExt as _, path::Path, path::PathBuf, process::Command,
};

const PROGRAM: &str = "skep-cluster";

/// Commands on clusters only.
const CLUSTER: [&str; 6] = [
    "install",
    "upgrade",
    "uninstall",
    "connectivity",
    "migrate",
    "context",
];

/// Commands on both, with the sub-commands that are on a cluster only.
const BOTH: [(&str, &[&str]); 6] = [
    ("status", &[]),
    ("version", &[]),
    ("sysdump", &[]),
    ("config", &["view", "set", "delete"]),
    (
        "clustermesh",
        &["enable", "disable", "connect", "disconnect", "inspect"],
    ),
    ("preflight", &[]),
];

/// Sub-commands of `preflight` on a node.
const NODE_PREFLIGHT: [&str; 4] = ["node", "validate-cnp", "validate-configmap", "help"];

/// Options that only commands on clusters have.
const OPTIONS: [&str; 4] = ["--context", "--kubeconfig", "--namespace", "--helm-release-name"];

/// Help about these commands.
pub(crate) const HELP: &str = "Commands on a cluster, by its API server:
  install, upgrade, uninstall   Install Skep by Helm, change it, remove it
  preflight                     Check whether cluster and nodes are ready for Skep
  connectivity                  Test and measure the connectivity of pods
  clustermesh                   enable, disable, connect, disconnect, inspect
  migrate                       Replace another CNI plugin or kube-proxy, node by node
  config                        view, set, delete
  context                       Print the context in use

status, sysdump, version and `clustermesh status` are about the cluster with --context, --kubeconfig or --namespace, or where no agent
has a socket and there is a kubeconfig; with --host always about the agent.";

/// What a command line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Node,
    Cluster,
}

/// What there is where the command runs.
#[derive(Debug, Clone, Copy)]
struct Surroundings {
    /// Started by a name of Cilium's agent command, or told the agent's socket.
    is_agents: bool,
    has_socket: bool,
    has_kubeconfig: bool,
}

impl Place {
    fn of(arguments: &[&str], here: Surroundings) -> Self {
        let is_option = |word: &str, option: &str| {
            word.strip_prefix(option)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let has = |option: &str| arguments.iter().any(|word| is_option(word, option));
        let mut words = words(arguments);
        let (first, second) = (words.next().unwrap_or_default(), words.next());
        if CLUSTER.contains(&first) {
            return Self::Cluster;
        }
        let Some((_, only_cluster)) = BOTH.iter().find(|(word, _)| *word == first) else {
            return Self::Node;
        };
        match second {
            Some(second) if only_cluster.contains(&second) => return Self::Cluster,
            Some(second) if first == "preflight" && NODE_PREFLIGHT.contains(&second) => return Self::Node,
            _ if first == "preflight" => return Self::Cluster,
            // The agent's options are `name=value`.
            _ if first == "config" => return Self::Node,
            Some(second) if first == "clustermesh" && second != "status" => return Self::Node,
            _ => {}
        }
        let wants_cluster = OPTIONS.iter().any(|option| has(option)) || has("--wait") || has("-n");
        match () {
            () if has("--host") || has("-H") || here.is_agents => Self::Node,
            () if wants_cluster => Self::Cluster,
            () if here.has_socket || !here.has_kubeconfig => Self::Node,
            () => Self::Cluster,
        }
    }
}

/// Words that are neither options nor their values.
fn words<'a>(arguments: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let takes_value = |word: &str| {
        matches!(
            word,
            "-H" | "-n"
                | "-o"
                | "--host"
                | "--output"
                | "--shell-sock-path"
                | "--bpf-root"
                | "--as"
                | "--as-group"
        ) || OPTIONS.contains(&word)
    };
    let mut previous = "";
    arguments.iter().copied().filter(move |word| {
        let is_value = takes_value(previous);
        previous = word;
        !is_value && !word.starts_with('-')
    })
}

fn has_kubeconfig() -> bool {
    if let Some(paths) = env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        return env::split_paths(&paths).any(|path| path.exists());
    }
    env::home_dir().is_some_and(|home| home.join(".kube/config").exists())
}

/// Becomes `skep-cluster` if the command line is about a cluster; returns otherwise, or the error if it cannot.
pub(crate) fn start(socket: &str) -> Option<String> {
    let arguments: Vec<OsString> = env::args_os().collect();
    let texts: Vec<&str> = arguments
        .iter()
        .skip(1)
        .map(|word| word.to_str().unwrap_or_default())
        .collect();
    let name = arguments.first().and_then(|name| Path::new(name).file_name());
    let here = Surroundings {
        is_agents: env::var_os("CILIUM_SOCK").is_some()
            || name.is_some_and(|name| name == "cilium-dbg" || name == "cilium"),
        has_socket: Path::new(socket.trim_start_matches("unix://")).exists(),
        has_kubeconfig: has_kubeconfig(),
    };
    if Place::of(&texts, here) == Place::Node {
        return None;
    }
    let beside = env::current_exe().map(|path| path.with_file_name(PROGRAM));
    let program = beside.ok().filter(|path| path.exists());
    let program = program.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(&arguments[1..]).exec();
    Some(format!(
        "cannot run {}, which has the commands on clusters: {error}",
        program.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAPTOP: Surroundings = Surroundings {
        is_agents: false,
        has_socket: false,
        has_kubeconfig: true,
    };
    const AGENT: Surroundings = Surroundings {
        is_agents: false,
        has_socket: true,
        has_kubeconfig: true,
    };

    #[track_caller]
    fn place(line: &str, here: Surroundings) -> Place {
        Place::of(&line.split(' ').collect::<Vec<_>>(), here)
    }

    #[test]
    fn commands_on_both_are_about_the_agent_where_there_is_one() {
        for line in [
            "status",
            "status --verbose",
            "sysdump",
            "version",
            "clustermesh status",
        ] {
            assert_eq!(place(line, AGENT), Place::Node, "{line}");
            assert_eq!(place(line, LAPTOP), Place::Cluster, "{line}");
            let pod = Surroundings {
                has_kubeconfig: false,
                ..LAPTOP
            };
            assert_eq!(place(line, pod), Place::Node, "{line}");
            let named = Surroundings {
                is_agents: true,
                ..LAPTOP
            };
            assert_eq!(place(line, named), Place::Node, "{line}");
            assert_eq!(
                place(&format!("{line} -H unix:///x.sock"), LAPTOP),
                Place::Node,
                "{line}"
            );
            assert_eq!(
                place(&format!("--context east {line}"), AGENT),
                Place::Cluster,
                "{line}"
            );
        }
    }

    #[test]
    fn words_decide_before_the_place() {
        for line in [
            "install --wait",
            "-n system connectivity test",
            "config view",
            "clustermesh connect",
            "preflight",
            "migrate plan",
        ] {
            assert_eq!(place(line, AGENT), Place::Cluster, "{line}");
        }
        for line in [
            "config",
            "config PolicyEnforcement=always",
            "config get x",
            "clustermesh enable-config",
            "preflight node -o json",
            "bpf lb list",
            "policy get",
        ] {
            assert_eq!(place(line, LAPTOP), Place::Node, "{line}");
        }
    }
}
