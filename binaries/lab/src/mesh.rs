// SPDX-License-Identifier: Apache-2.0

//! The cluster mesh of a lab: in every cluster an etcd with TLS and a `skep-clustermesh-apiserver`, in the lab's network
//! at the address of the API server.
//!
//! Below folder `mesh` of the lab are `authority.crt` and, for each cluster, a folder with
//!
//! | name | what |
//! |---|---|
//! | `server`, `admin`, `remote`, `local` | certificates of etcd and of the users that `etcdinit` creates |
//! | `etcd`, `etcd.config` | data of etcd; the configuration by which the clustermesh-apiserver connects to it |
//! | `clustermesh` | what agents get as `clustermesh-config`: a file for each cluster of the mesh |
//! | `kvstoremesh` | the same for kvstoremesh, if that runs |
//! | `stopped` | there while etcd is not to run |

use std::{
    fs,
    io::ErrorKind,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::try_join_all;
use rcgen::ExtendedKeyUsagePurpose;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::{Authority, CredentialsError, make_folder, write_secret},
    cgroup::{self, CgroupError},
    control_plane::Access,
    enter::Placement,
    lab_options::LabOptions,
    paths::LabPaths,
    plan::{Cluster, Lab},
    process::{self, Process, ProcessError},
    restarter::{Ended, Restarter},
};

/// Port of etcd; that of a real API server has the usual one.
const ETCD_PORT: u16 = 32_379;
/// How long etcd may take to be initialized, and the clustermesh-apiserver to be ready.
const READY: Duration = Duration::from_secs(60);
/// Time between two looks at a clustermesh-apiserver that starts.
const LOOK: Duration = Duration::from_millis(100);
/// How long etcd may take to end when it is killed.
const KILLED: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// Install it: `make deps`, or package `etcd-server` of Debian.
    #[error("there is no program `{program}` beside this one or in PATH: {hint}")]
    Missing {
        program: &'static str,
        hint: &'static str,
    },
    /// Only a lab of two clusters or more has a mesh.
    #[error("lab `{lab}` has no cluster mesh; bring it up with --clusters 2 or more")]
    None { lab: String },
    #[error("the lab has no cluster called `{name}`; it has {known}")]
    NoCluster { name: String, known: String },
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A control group cannot be created.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A process ended before it was ready.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The data directory of etcd cannot be initialized; see the log.
    #[error("initializing etcd of cluster {cluster}; the end of {}:\n{tail}", log.display())]
    EtcdInit {
        cluster: String,
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// The clustermesh-apiserver does not publish the state of its cluster; see its log.
    #[error("{program} of cluster {cluster} is not ready within {} s, see {}", READY.as_secs(), log.display())]
    Late {
        program: &'static str,
        cluster: String,
        log: PathBuf,
    },
    /// A file of the mesh cannot be read or written.
    #[error("{}", path.display())]
    File {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
}

#[derive(Debug, Clone)]
pub struct Programs {
    etcd: PathBuf,
    apiserver: PathBuf,
}

impl Programs {
    /// The programs of this machine; etcd that of `assets`, if there is one.
    pub fn find(assets: Option<&Path>) -> Result<Self, MeshError> {
        let find = |program, hint| process::find(program).ok_or(MeshError::Missing { program, hint });
        let named = assets.and_then(|folder| fs::canonicalize(folder.join("etcd")).ok());
        Ok(Self {
            etcd: match named {
                Some(path) => path,
                None => find("etcd", "install package etcd-server")?,
            },
            apiserver: find("skep-clustermesh-apiserver", "build it with cargo build")?,
        })
    }
}

/// The cluster mesh of a lab.
#[derive(Debug, Clone)]
pub struct Mesh {
    paths: LabPaths,
    lab: Lab,
}

impl Mesh {
    /// The mesh of a lab that runs.
    pub fn open(paths: LabPaths, lab: Lab) -> Result<Self, MeshError> {
        let mesh = Self { paths, lab };
        if mesh.folder().is_dir() {
            return Ok(mesh);
        }
        Err(MeshError::None { lab: mesh.lab.name })
    }

    /// Creates the files of a new mesh. Clusters join it by [`Mesh::join`].
    pub fn create(paths: LabPaths, lab: Lab, has_kvstoremesh: bool) -> Result<Self, MeshError> {
        let mesh = Self { paths, lab };
        let authority = Authority::new("skep-lab mesh")?;
        make_folder(&mesh.folder())?;
        write_secret(&mesh.folder().join("authority.crt"), &authority.certificate)?;
        for cluster in &mesh.lab.clusters {
            let folder = mesh.folder_of(&cluster.name);
            make_folder(&folder)?;
            make_folder(&folder.join("clustermesh"))?;
            if has_kvstoremesh {
                make_folder(&folder.join("kvstoremesh"))?;
            }
            let name = &cluster.name;
            // etcd is a client of its own.
            let usages = [
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let address = [cluster.api_address().into()];
            let server = authority.server("etcd", &["localhost"], &address, &usages)?;
            server.write(&folder, "server")?;
            for (file, user) in [
                ("admin", format!("admin-{name}")),
                ("remote", "remote".to_owned()),
                ("local", format!("local-{name}")),
            ] {
                authority.client(&user)?.write(&folder, file)?;
            }
            let config = mesh.client_config(cluster, cluster, "admin");
            write_secret(&folder.join("etcd.config"), &config)?;
        }
        Ok(mesh)
    }

    /// Starts the processes of all clusters, which run until `stop`; returns when each cluster publishes its state.
    pub async fn start(
        &self,
        programs: &Programs,
        access: &[Access],
        fabric: u32,
        stop: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), MeshError> {
        let clusters = self.lab.clusters.iter().zip(access);
        let start = |(cluster, access)| self.start_cluster(programs, cluster, access, fabric);
        for servers in try_join_all(clusters.map(start)).await? {
            let stop = stop.clone();
            tasks.spawn(servers.run(stop));
        }
        Ok(())
    }

    async fn start_cluster(
        &self,
        programs: &Programs,
        cluster: &Cluster,
        access: &Access,
        fabric: u32,
    ) -> Result<Servers, MeshError> {
        let name = &cluster.name;
        let keep = async |program, executable: &Path, arguments: Vec<String>| {
            let placement = self.placement(cluster, program, executable, fabric, arguments)?;
            let kept = Restarter::start(name, program, placement, self.log(cluster, program)).await;
            kept.map_err(MeshError::from)
        };
        self.initialize(programs, cluster, fabric).await?;
        let etcd = keep(ETCD, &programs.etcd, self.etcd_arguments(cluster)).await?;
        let mut etcd = etcd.held_by(self.folder_of(name).join("stopped"));
        let mut servers = vec![
            keep(
                APISERVER,
                &programs.apiserver,
                self.apiserver_arguments(cluster, access),
            )
            .await?,
        ];
        if self.has_kvstoremesh() {
            let arguments = self.kvstoremesh_arguments(cluster);
            servers.push(keep(KVSTOREMESH, &programs.apiserver, arguments).await?);
        }
        // kvstoremesh is ready when all clusters are.
        let mut needed = [&mut etcd, &mut servers[0]];
        self.wait_until_ready(cluster, fabric, &mut needed).await?;
        Ok(Servers { etcd, servers })
    }

    /// Runs `etcdinit`.
    async fn initialize(&self, programs: &Programs, cluster: &Cluster, fabric: u32) -> Result<(), MeshError> {
        let program = "etcdinit";
        let data = self.folder_of(&cluster.name).join("etcd");
        let arguments = vec![
            program.to_owned(),
            format!("--etcd-data-dir={}", data.display()),
            format!("--etcd-binary={}", programs.etcd.display()),
            // Clusters are initialized at the same time.
            format!("--etcd-port={}", port(cluster, 0)),
            format!("--cluster-name={}", cluster.name),
            // Clients tell by the cluster id of etcd, which follows from it, that another one answers.
            format!(
                "--etcd-initial-cluster-token={}-{}-{}",
                self.paths.name, cluster.name, fabric
            ),
        ];
        let placement = self.placement(cluster, program, &programs.apiserver, fabric, arguments)?;
        let log = self.log(cluster, program);
        let mut process = Process::place(program, &placement, &log).await?;
        let ended = tokio::time::timeout(READY, process.ended()).await;
        if matches!(ended, Ok(Ok(status)) if status.success()) {
            return Ok(());
        }
        Err(MeshError::EtcdInit {
            cluster: cluster.name.clone(),
            tail: process::last_lines(&log, 3),
            log,
        })
    }

    /// Asks the clustermesh-apiserver for `/readyz` in the lab's network, as long as the processes that it needs run.
    async fn wait_until_ready(
        &self,
        cluster: &Cluster,
        fabric: u32,
        needed: &mut [&mut Restarter],
    ) -> Result<(), MeshError> {
        let address = SocketAddr::from((cluster.api_address(), port(cluster, 1)));
        let deadline = Instant::now() + READY;
        while !crate::control_plane::is_ready(fabric, address).await {
            for process in needed.iter_mut() {
                process.has_ended()?;
            }
            if Instant::now() > deadline {
                return Err(MeshError::Late {
                    program: APISERVER,
                    cluster: cluster.name.clone(),
                    log: self.log(cluster, APISERVER),
                });
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    fn placement(
        &self,
        cluster: &Cluster,
        program: &str,
        executable: &Path,
        fabric: u32,
        arguments: Vec<String>,
    ) -> Result<Placement, MeshError> {
        let group = self.group(cluster, program);
        cgroup::create(&group)?;
        Ok(Placement::beside(fabric, group, executable, arguments))
    }

    fn etcd_arguments(&self, cluster: &Cluster) -> Vec<String> {
        let file = |name: &str| self.folder_of(&cluster.name).join(name).display().to_string();
        let url = etcd_url(cluster);
        vec![
            format!("--data-dir={}", file("etcd")),
            "--name=clustermesh-apiserver".to_owned(),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            "--listen-peer-urls=http://127.0.0.1:0".to_owned(),
            "--client-cert-auth".to_owned(),
            format!(
                "--trusted-ca-file={}",
                self.folder().join("authority.crt").display()
            ),
            format!("--cert-file={}", file("server.crt")),
            format!("--key-file={}", file("server.key")),
            "--auto-compaction-retention=1".to_owned(),
        ]
    }

    fn apiserver_arguments(&self, cluster: &Cluster, access: &Access) -> Vec<String> {
        let mut arguments = self.server_arguments(cluster, "clustermesh", APISERVER, 1);
        arguments.push(format!("--k8s-api-server-urls={}", access.url));
        let kubeconfig = access.kubeconfig.iter();
        arguments.extend(kubeconfig.map(|path| format!("--k8s-kubeconfig-path={}", path.display())));
        arguments
    }

    fn kvstoremesh_arguments(&self, cluster: &Cluster) -> Vec<String> {
        let mut arguments = self.server_arguments(cluster, "kvstoremesh", KVSTOREMESH, 2);
        let config = self.folder_of(&cluster.name).join("kvstoremesh");
        arguments.extend([
            format!("--clustermesh-config={}", config.display()),
            format!("--api-serve-addr=127.0.0.1:{}", port(cluster, 3)),
        ]);
        arguments
    }

    fn server_arguments(
        &self,
        cluster: &Cluster,
        command: &str,
        program: &str,
        health_port: u16,
    ) -> Vec<String> {
        let folder = self.folder_of(&cluster.name);
        let file = |name: &str| folder.join(format!("{program}.{name}")).display().to_string();
        vec![
            command.to_owned(),
            format!("--cluster-name={}", cluster.name),
            format!("--cluster-id={}", cluster.index),
            format!(
                "--kvstore-opt=etcd.config={}",
                folder.join("etcd.config").display()
            ),
            "--kvstore-opt=etcd.bootstrapQps=10000".to_owned(),
            format!("--health-port={}", port(cluster, health_port)),
            format!("--shell-sock-path={}", file("sock")),
            format!("--health-history-file={}", file("health")),
        ]
    }

    /// The settings of agents of a cluster.
    #[must_use]
    pub fn agent_settings(&self, cluster: &Cluster) -> [(String, String); 3] {
        let config = self.folder_of(&cluster.name).join("clustermesh");
        [
            ("cluster-name", cluster.name.clone()),
            ("cluster-id", cluster.index.to_string()),
            ("clustermesh-config", config.display().to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
    }

    /// Names of the clusters that are in the mesh.
    #[must_use]
    pub fn members(&self) -> Vec<&str> {
        let clusters = self.lab.clusters.iter().map(|cluster| cluster.name.as_str());
        clusters
            .filter(|name| self.folder_of(name).join("clustermesh").join(name).exists())
            .collect()
    }

    /// Names of the clusters whose etcd is stopped.
    #[must_use]
    pub fn stopped(&self) -> Vec<&str> {
        let clusters = self.lab.clusters.iter().map(|cluster| cluster.name.as_str());
        clusters
            .filter(|name| self.folder_of(name).join("stopped").exists())
            .collect()
    }

    /// Connects a cluster with those in the mesh, in both directions. For one that is in it already nothing changes.
    ///
    /// # Errors
    /// When there is no such cluster, or a file cannot be written.
    pub fn join(&self, name: &str) -> Result<(), MeshError> {
        let cluster = self.cluster(name)?;
        for other in self.members() {
            let other = self.cluster(other)?;
            self.connect(cluster, other)?;
            self.connect(other, cluster)?;
        }
        // Its own file, which it ignores, says that it is in the mesh.
        self.connect(cluster, cluster)
    }

    /// Disconnects a cluster from all others.
    ///
    /// # Errors
    /// When there is no such cluster, or a file cannot be deleted.
    pub fn leave(&self, name: &str) -> Result<(), MeshError> {
        let cluster = self.cluster(name)?;
        for other in &self.lab.clusters {
            self.disconnect(other, cluster)?;
            self.disconnect(cluster, other)?;
        }
        Ok(())
    }

    /// Kills etcd of a cluster, and does not restart it before [`Mesh::restart_etcd`].
    ///
    /// # Errors
    /// When there is no such cluster, or the process does not end.
    pub fn stop_etcd(&self, name: &str) -> Result<(), MeshError> {
        let cluster = self.cluster(name)?;
        let stopped = self.folder_of(name).join("stopped");
        write_secret(&stopped, "")?;
        Ok(cgroup::end_processes(&self.group(cluster, ETCD), KILLED)?)
    }

    /// Starts etcd of a cluster again.
    pub fn restart_etcd(&self, name: &str) -> Result<(), MeshError> {
        self.cluster(name)?;
        remove(&self.folder_of(name).join("stopped"))
    }

    /// Kills the clustermesh-apiserver of a cluster, and kvstoremesh, if that runs. Both are restarted at once.
    pub fn kill_servers(&self, name: &str) -> Result<(), MeshError> {
        let cluster = self.cluster(name)?;
        for program in [APISERVER, KVSTOREMESH] {
            cgroup::kill(&self.group(cluster, program));
        }
        Ok(())
    }

    fn connect(&self, from: &Cluster, to: &Cluster) -> Result<(), MeshError> {
        let direct = self.client_config(from, to, "remote");
        let folder = self.folder_of(&from.name);
        if self.has_kvstoremesh() {
            replace(&folder.join("kvstoremesh").join(&to.name), &direct)?;
            let cached = self.client_config(from, from, "local");
            return replace(&folder.join("clustermesh").join(&to.name), &cached);
        }
        replace(&folder.join("clustermesh").join(&to.name), &direct)
    }

    fn disconnect(&self, from: &Cluster, to: &Cluster) -> Result<(), MeshError> {
        let folder = self.folder_of(&from.name);
        remove(&folder.join("clustermesh").join(&to.name))?;
        remove(&folder.join("kvstoremesh").join(&to.name))
    }

    /// How a program of cluster `from` connects to etcd of cluster `to`, as a user of that.
    fn client_config(&self, from: &Cluster, to: &Cluster, user: &str) -> String {
        let folder = self.folder_of(&from.name);
        format!(
            "endpoints:\n- {}\ntrusted-ca-file: {}\ncert-file: {}\nkey-file: {}\n",
            etcd_url(to),
            self.folder().join("authority.crt").display(),
            folder.join(format!("{user}.crt")).display(),
            folder.join(format!("{user}.key")).display(),
        )
    }

    fn cluster(&self, name: &str) -> Result<&Cluster, MeshError> {
        self.lab.cluster(name).ok_or_else(|| MeshError::NoCluster {
            name: name.to_owned(),
            known: self
                .lab
                .clusters
                .iter()
                .map(|cluster| cluster.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    fn has_kvstoremesh(&self) -> bool {
        let first = self.lab.clusters.first();
        first.is_some_and(|cluster| self.folder_of(&cluster.name).join("kvstoremesh").is_dir())
    }

    fn group(&self, cluster: &Cluster, program: &str) -> PathBuf {
        let group = self.paths.cgroup.join("mesh").join(&cluster.name);
        group.join(program)
    }

    fn log(&self, cluster: &Cluster, program: &str) -> PathBuf {
        self.paths.log(&format!("{}-{program}", cluster.name))
    }

    fn folder(&self) -> PathBuf {
        self.paths.folder.join("mesh")
    }

    #[must_use]
    pub fn folder_of(&self, cluster: &str) -> PathBuf {
        self.folder().join(cluster)
    }
}

const ETCD: &str = "mesh-etcd";
const APISERVER: &str = "clustermesh-apiserver";
const KVSTOREMESH: &str = "kvstoremesh";

/// The running processes of a cluster.
struct Servers {
    etcd: Restarter,
    servers: Vec<Restarter>,
}

impl Servers {
    /// etcd stops last, so that the last writes of the others reach it.
    async fn run(self, stop: CancellationToken) {
        let etcd_stop = CancellationToken::new();
        let servers = async {
            let all = self.servers.into_iter().map(|server| server.keep(stop.clone()));
            futures::future::join_all(all).await;
            etcd_stop.cancel();
        };
        tokio::join!(servers, self.etcd.keep(etcd_stop.clone()));
    }
}

/// A port of a cluster's own in the lab's network, which all clusters share.
fn port(cluster: &Cluster, number: u16) -> u16 {
    20_000 + 10 * u16::from(cluster.index) + number
}

fn etcd_url(cluster: &Cluster) -> String {
    format!("https://{}", SocketAddr::from((cluster.api_address(), ETCD_PORT)))
}

/// Replaces a file atomically: a reader gets the old text or the new one.
fn replace(path: &Path, text: &str) -> Result<(), MeshError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!(".{name}"));
    write_secret(&fresh, text)?;
    fs::rename(&fresh, path).map_err(|cause| MeshError::File {
        path: path.to_owned(),
        cause,
    })
}

fn remove(path: &Path) -> Result<(), MeshError> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(MeshError::File {
            path: path.to_owned(),
            cause,
        }),
        _ => Ok(()),
    }
}

/// The clusters of a new lab that are to be in its mesh: those that are named, else all, if there are several.
///
/// # Errors
/// When a named one is not in the lab, or is the only cluster.
pub fn first_members(lab: &Lab, lab_options: &LabOptions) -> Result<Vec<String>, MeshError> {
    if lab_options.install {
        // The chart brings its own.
        return Ok(Vec::new());
    }
    let all = || lab.clusters.iter().map(|cluster| cluster.name.clone());
    let Some(named) = &lab_options.mesh else {
        return Ok(if lab.clusters.len() > 1 {
            all().collect()
        } else {
            Vec::new()
        });
    };
    let named: Vec<String> = named.iter().filter(|name| !name.is_empty()).cloned().collect();
    if let Some(name) = named.iter().find(|name| lab.cluster(name).is_none()) {
        return Err(MeshError::NoCluster {
            name: name.clone(),
            known: all().collect::<Vec<_>>().join(", "),
        });
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(folder: &Path, has_kvstoremesh: bool) -> Mesh {
        let lab = Lab::plan("t", 3, 1).unwrap();
        let paths = LabPaths {
            name: "t".to_owned(),
            folder: folder.to_owned(),
            cgroup: folder.join("cgroup"),
        };
        Mesh::create(paths, lab, has_kvstoremesh).unwrap()
    }

    fn files(folder: &Path, cluster: &str, kind: &str) -> Vec<String> {
        let folder = folder.join("mesh").join(cluster).join(kind);
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn clusters_that_join_and_leave_are_connected_in_both_directions() {
        let folder = tempfile::tempdir().unwrap();
        let mesh = mesh(folder.path(), false);
        mesh.join("c1").unwrap();
        mesh.join("c2").unwrap();
        assert_eq!(mesh.members(), ["c1", "c2"]);
        assert_eq!(files(folder.path(), "c1", "clustermesh"), ["c1", "c2"]);
        assert_eq!(files(folder.path(), "c3", "clustermesh"), [""; 0]);

        mesh.join("c3").unwrap();
        assert_eq!(files(folder.path(), "c3", "clustermesh"), ["c1", "c2", "c3"]);
        assert_eq!(files(folder.path(), "c1", "clustermesh"), ["c1", "c2", "c3"]);

        mesh.leave("c1").unwrap();
        assert_eq!(mesh.members(), ["c2", "c3"]);
        assert_eq!(files(folder.path(), "c1", "clustermesh"), [""; 0]);
        assert_eq!(files(folder.path(), "c2", "clustermesh"), ["c2", "c3"]);

        let text = mesh.join("c9").unwrap_err().to_string();
        assert_eq!(text, "the lab has no cluster called `c9`; it has c1, c2, c3");
    }

    #[test]
    fn agents_read_the_own_etcd_where_kvstoremesh_reads_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let mesh = mesh(folder.path(), true);
        mesh.join("c1").unwrap();
        mesh.join("c2").unwrap();

        let read = |kind: &str| {
            let path = folder.path().join("mesh/c1").join(kind).join("c2");
            fs::read_to_string(path).unwrap()
        };
        assert!(read("clustermesh").contains("- https://172.30.1.250:32379\n"));
        assert!(read("clustermesh").contains("mesh/c1/local.key\n"));
        assert!(read("kvstoremesh").contains("- https://172.30.2.250:32379\n"));
        assert!(read("kvstoremesh").contains("mesh/c1/remote.key\n"));
    }

    #[test]
    fn several_clusters_are_meshed_unless_others_are_named() {
        let members = |clusters: u8, named: Option<&[&str]>| {
            let lab_options = LabOptions {
                clusters,
                mesh: named.map(|names| names.iter().copied().map(str::to_owned).collect()),
                ..LabOptions::default()
            };
            first_members(&Lab::plan("t", clusters, 1).unwrap(), &lab_options)
        };
        assert_eq!(members(1, None).unwrap(), [""; 0]);
        assert_eq!(members(2, None).unwrap(), ["c1", "c2"]);
        assert_eq!(members(3, Some(&["c1", "c3"])).unwrap(), ["c1", "c3"]);
        assert_eq!(members(2, Some(&[""])).unwrap(), [""; 0]);
        assert!(
            members(2, Some(&["c4"]))
                .unwrap_err()
                .to_string()
                .contains("`c4`")
        );
    }

    #[test]
    fn a_lab_without_a_mesh_says_how_to_get_one() {
        let folder = tempfile::tempdir().unwrap();
        let paths = LabPaths {
            name: "t".to_owned(),
            folder: folder.path().to_owned(),
            cgroup: folder.path().to_owned(),
        };
        let error = Mesh::open(paths, Lab::plan("t", 1, 1).unwrap()).unwrap_err();
        assert!(error.to_string().contains("--clusters 2"), "{error}");
    }
}
