// SPDX-License-Identifier: Apache-2.0

//! `skep-operator` of each cluster, in the lab's network. It is elected by a Lease on the cluster's API server.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use skep_k8s_client::Client;
use skep_k8s_types::Kind;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    cgroup::{self, CgroupError},
    control_plane::Access,
    enter::Placement,
    paths::LabPaths,
    plan::Cluster,
    process::{self, ProcessError},
    restarter::{Ended, Restarter},
};

/// How long an operator may take until it leads.
const LEADS: Duration = Duration::from_secs(60);
/// Time between two looks at the Lease.
const LOOK: Duration = Duration::from_millis(100);
const PROGRAM: &str = "skep-operator";
/// Namespace and name of the Lease.
const LEASE: (&str, &str) = ("kube-system", "cilium-operator-resource-lock");

static LEASES: Kind = Kind::new("coordination.k8s.io", "v1", "Lease", "leases", true);

/// Why a cluster has no operator.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Build it: `cargo build`.
    #[error("there is no program `{PROGRAM}` beside this one or in PATH: build it with cargo build")]
    Missing,
    /// A control group cannot be created.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The process ended before it led.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// It is not elected; see its log.
    #[error("{PROGRAM} of cluster {cluster} does not lead within {} s, see {}", LEADS.as_secs(), log.display())]
    Late { cluster: String, log: PathBuf },
}

pub fn program() -> Result<PathBuf, OperatorError> {
    process::find(PROGRAM).ok_or(OperatorError::Missing)
}

/// What operators of all clusters have in common.
pub(crate) struct Operators<'a> {
    pub(crate) paths: &'a LabPaths,
    pub(crate) program: PathBuf,
    /// What the user says of all operators.
    pub(crate) settings: &'a BTreeMap<String, String>,
    pub(crate) fabric: u32,
}

impl Operators<'_> {
    /// Starts the operator of a cluster, which runs until `stop`; returns when it leads.
    pub(crate) async fn start(
        &self,
        cluster: &Cluster,
        (access, client): &(Access, Arc<dyn Client>),
        stop: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), OperatorError> {
        let group = self.paths.cgroup.join("operators").join(&cluster.name);
        cgroup::create(&group)?;
        let arguments = self.arguments(cluster, access);
        let placement = Placement::beside(self.fabric, group, &self.program, arguments);
        let log = self.paths.log(&format!("{}-operator", cluster.name));
        let mut restarter = Restarter::start(&cluster.name, PROGRAM, placement, log.clone()).await?;
        let deadline = Instant::now() + LEADS;
        while !leads(&**client).await {
            restarter.has_ended()?;
            if Instant::now() > deadline {
                return Err(OperatorError::Late {
                    cluster: cluster.name.clone(),
                    log,
                });
            }
            tokio::time::sleep(LOOK).await;
        }
        tasks.spawn(restarter.keep(stop.clone()));
        Ok(())
    }

    fn arguments(&self, cluster: &Cluster, access: &Access) -> Vec<String> {
        let name = &cluster.name;
        let file = |suffix: &str| {
            let path = self.paths.folder.join(format!("{name}-operator.{suffix}"));
            path.display().to_string()
        };
        let mut settings = self.settings.clone();
        let own = [
            ("k8s-api-server-urls", access.url.clone()),
            ("k8s-namespace", LEASE.0.to_owned()),
            ("k8s-api-server-state-file", file("server")),
            // All operators of a lab share the loopback of its network.
            ("operator-api-serve-addr", format!("127.0.0.1:{}", port(cluster))),
            ("shell-sock-path", file("sock")),
            ("health-history-file", file("health")),
            ("cluster-name", name.clone()),
            ("cluster-id", cluster.index.to_string()),
            // Nodes of the lab have networks of their pods.
            ("ipam", "kubernetes".to_owned()),
            ("identity-allocation-mode", "crd".to_owned()),
        ];
        for (key, value) in own {
            settings.entry(key.to_owned()).or_insert(value);
        }
        if let Some(kubeconfig) = &access.kubeconfig {
            settings
                .entry("k8s-kubeconfig-path".to_owned())
                .or_insert_with(|| kubeconfig.display().to_string());
        }
        settings
            .into_iter()
            .map(|(key, value)| format!("--{key}={value}"))
            .collect()
    }
}

async fn leads(client: &dyn Client) -> bool {
    let lease = client.get(&LEASES, LEASE.0, LEASE.1).await;
    let lease = lease.ok().and_then(|lease| lease.to_value().ok());
    lease.is_some_and(|lease| {
        let holder = lease["spec"]["holderIdentity"].as_str();
        holder.is_some_and(|holder| !holder.is_empty())
    })
}

/// Port of the API, after those of the cluster mesh.
fn port(cluster: &Cluster) -> u16 {
    20_009 + 10 * u16::from(cluster.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Lab;

    #[test]
    fn what_the_user_says_counts() {
        let folder = tempfile::tempdir().unwrap();
        let paths = LabPaths {
            name: "t".to_owned(),
            folder: folder.path().to_owned(),
            cgroup: folder.path().join("cgroup"),
        };
        let settings = BTreeMap::from([
            ("identity-management-mode".to_owned(), "operator".to_owned()),
            ("cluster-id".to_owned(), "200".to_owned()),
        ]);
        let operators = Operators {
            paths: &paths,
            program: PROGRAM.into(),
            settings: &settings,
            fabric: 1,
        };
        let access = Access {
            url: "http://172.30.2.250:6443".to_owned(),
            kubeconfig: None,
        };
        let lab = Lab::plan("t", 2, 1).unwrap();

        let arguments = operators.arguments(&lab.clusters[1], &access);

        for expected in [
            "--identity-management-mode=operator",
            "--cluster-id=200",
            "--cluster-name=c2",
            "--k8s-api-server-urls=http://172.30.2.250:6443",
            "--operator-api-serve-addr=127.0.0.1:20029",
        ] {
            assert!(
                arguments.iter().any(|argument| argument == expected),
                "{expected}: {arguments:?}"
            );
        }
        assert!(
            arguments.iter().all(|argument| !argument.contains("kubeconfig")),
            "{arguments:?}"
        );
    }
}
