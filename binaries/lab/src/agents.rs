// SPDX-License-Identifier: Apache-2.0

//! The agents: one on each node, configured by a folder like that of a mounted ConfigMap, restarted when
//! they end.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use skep_base_api_client::Client;
use skep_base_api_types::State;
use tokio_util::sync::CancellationToken;

use crate::{
    cni,
    control_plane::Access,
    machine::{Machine, MachineError},
    paths::LabPaths,
    process::{Process, find, last_lines, own_folder},
};

/// Delay before an agent that ended is restarted.
const RESTART: Duration = Duration::from_millis(500);
/// Lines of the log that are reported when an agent ends by itself.
const LAST_WORDS: usize = 8;
/// How long an agent may take to stop.
const STOP: Duration = Duration::from_secs(10);

/// Why the agents cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Build it (`cargo build`), or name it with `--agent`.
    #[error("the agent's program is not at {}; build it or name it with --agent", path.display())]
    Missing { path: PathBuf },
    /// Write `key=value`, as files of a mounted ConfigMap are named.
    #[error("`{text}` is not of the form key=value")]
    Setting { text: String },
    /// A file of the configuration cannot be written.
    #[error("writing {}", path.display())]
    Write {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// The program of the agent: `named`, or beside this program, or in the search path.
pub fn program(named: Option<&Path>) -> Result<PathBuf, AgentError> {
    if let Some(path) = named {
        // Agents start in other folders.
        return std::fs::canonicalize(path).map_err(|_| AgentError::Missing {
            path: path.to_owned(),
        });
    }
    find("skep-agent").ok_or_else(|| AgentError::Missing {
        path: own_folder().map_or_else(|| "skep-agent".into(), |folder| folder.join("skep-agent")),
    })
}

/// Splits `key=value` texts.
pub fn settings(texts: &[String]) -> Result<BTreeMap<String, String>, AgentError> {
    texts
        .iter()
        .map(|text| match text.split_once('=') {
            // Keys become names of files.
            Some((key, value)) if !key.is_empty() && !key.contains('/') => {
                Ok((key.to_owned(), value.to_owned()))
            }
            _ => Err(AgentError::Setting { text: text.clone() }),
        })
        .collect()
}

#[derive(Debug, Clone)]
pub enum Report {
    Started {
        node: String,
        pid: u32,
    },
    Ended {
        node: String,
        how: String,
        /// The last lines of its log.
        tail: String,
    },
}

#[derive(Debug, Clone)]
pub struct Agent {
    program: PathBuf,
    machine: Arc<Machine>,
    config: PathBuf,
}

impl Agent {
    /// Writes the configuration of a node's agent.
    pub fn configure(
        paths: &LabPaths,
        api: &Access,
        machine: Arc<Machine>,
        program: PathBuf,
        more: &BTreeMap<String, String>,
    ) -> Result<Self, AgentError> {
        let config = paths.folder.join("config").join(&machine.node.name);
        let mut keys: BTreeMap<String, String> = [
            ("k8s-api-server-urls", api.url.clone()),
            ("k8s-node-name", machine.node.name.clone()),
            ("kube-proxy-replacement", "true".to_owned()),
            ("enable-ipv4", "true".to_owned()),
            ("enable-ipv6", "true".to_owned()),
            // The kubelet of the lab allocates pod CIDRs.
            ("ipam", "kubernetes".to_owned()),
            ("identity-allocation-mode", "crd".to_owned()),
            // Of many nodes on one machine: its memory is not for each of them.
            ("bpf-ct-global-tcp-max", "65536".to_owned()),
            ("bpf-ct-global-any-max", "32768".to_owned()),
            ("bpf-nat-global-max", "65536".to_owned()),
            // Pods of the networks in the Node, which the lab has routes to.
            ("ipam", "kubernetes".to_owned()),
            ("identity-allocation-mode", "crd".to_owned()),
            ("write-cni-conf-when-ready", cni::CONFIGURATION.to_owned()),
            ("cgroup-root", machine.cgroup_root().display().to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        if let Some(path) = &api.kubeconfig {
            keys.insert("k8s-kubeconfig-path".to_owned(), path.display().to_string());
        }
        keys.extend(more.clone());
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |cause| AgentError::Write { path, cause }
        };
        std::fs::create_dir_all(&config).map_err(failed(&config))?;
        for (key, value) in keys {
            let path = config.join(key);
            std::fs::write(&path, value).map_err(failed(&path))?;
        }
        Ok(Self {
            program,
            machine,
            config,
        })
    }

    #[must_use]
    pub fn node(&self) -> &str {
        &self.machine.node.name
    }

    /// Runs it until stopped, and reports each start and end.
    pub async fn run(self, stop: CancellationToken, report: impl Fn(Report)) -> Result<(), AgentError> {
        let (node, log) = (self.node().to_owned(), self.machine.log("agent"));
        loop {
            let program: Vec<OsString> = vec![
                self.program.clone().into_os_string(),
                "--config-dir".into(),
                self.config.clone().into_os_string(),
            ];
            let placement = self.machine.placement("agent", program)?;
            let mut process = Process::place("agent", &placement, &log)
                .await
                .map_err(MachineError::from)?;
            report(Report::Started {
                node: node.clone(),
                pid: process.pid(),
            });
            tokio::select! {
                ended = process.ended() => {
                    tracing::warn!(node, ?ended, "Agent exited, restarting it");
                    report(Report::Ended {
                        node: node.clone(),
                        how: ended.map_or_else(|err| err.to_string(), |status| status.to_string()),
                        tail: last_lines(&log, LAST_WORDS),
                    });
                    tokio::select! {
                        () = tokio::time::sleep(RESTART) => {}
                        () = stop.cancelled() => return Ok(()),
                    }
                }
                () = stop.cancelled() => {
                    process.stop(STOP).await;
                    return Ok(());
                }
            }
        }
    }

    /// Whether it reports that it is healthy.
    pub async fn is_well(&self) -> bool {
        is_well(self.machine.pid()).await
    }
}

/// Whether the agent of process `pid` answers `/v1/healthz` with an overall state of `Ok`.
pub async fn is_well(pid: u32) -> bool {
    // What the process sees as its root.
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    let client = Client::at(&root.join("run/cilium/cilium.sock")).with_timeout(Duration::from_secs(2));
    let health = tokio::task::spawn_blocking(move || client.health(true)).await;
    health.is_ok_and(|health| health.is_ok_and(|health| health.cilium.state == State::Ok))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_pairs() {
        let read = settings(&["a=b".into(), "c=d=e".into()]).unwrap();
        assert_eq!(read["c"], "d=e");
        for text in ["x", "=y", "../x=y"] {
            let error = settings(&[text.into()]).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn a_missing_program_is_named() {
        let err = program(Some(Path::new("/nowhere/agent"))).unwrap_err();
        assert!(err.to_string().contains("/nowhere/agent"));
    }
}
