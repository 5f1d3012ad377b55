// SPDX-License-Identifier: Apache-2.0

//! containerd of a node, with a folder and a socket of its own. Its images are made of folders.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use skep_lab_kubelet::{Cri, CriError, Image, ImageError, image::add_program};
use tokio::time::Instant;

use crate::{
    cni,
    machine::{Machine, MachineError},
    paths::LabPaths,
    plan::Node,
    process::{ProcessError, find},
    restarter::{Ended, Restarter},
};

/// Image of the process that holds the namespaces of a pod.
pub const PAUSE_IMAGE: &str = "localhost/skep-lab/pause:1";
const PROGRAM: &str = "containerd";
/// The plugin that containerd calls before that of the network.
const LOOPBACK: &str = "/usr/lib/cni/loopback";
/// How long it may take until it answers.
const READY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// Why a node has no container runtime.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    /// Install it: `make deps`.
    #[error("there is no program `{program}` beside this one or in PATH")]
    Missing { program: &'static str },
    #[error("{}", path.display())]
    File {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Ended(#[from] Ended),
    #[error(transparent)]
    Cri(#[from] CriError),
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It runs and does not answer; see its log.
    #[error("containerd of node {node} does not answer within {} s, see {}", READY.as_secs(), log.display())]
    Late {
        node: String,
        log: PathBuf,
        #[source]
        cause: CriError,
    },
}

/// Socket of the containerd of a node.
#[must_use]
pub fn socket(paths: &LabPaths, node: &Node) -> PathBuf {
    folder(paths, node).join("containerd.sock")
}

/// What a node that runs containers has of its own.
pub(crate) fn folder(paths: &LabPaths, node: &Node) -> PathBuf {
    paths.folder.join("containerd").join(&node.name)
}

/// containerd of a node.
#[derive(Debug)]
pub(crate) struct Containerd {
    folder: PathBuf,
    socket: PathBuf,
}

impl Containerd {
    /// Writes its configuration, and a folder with the CNI plugin, which the chart has if it is installed.
    pub(crate) fn configure(
        paths: &LabPaths,
        machine: &Machine,
        is_installed: bool,
    ) -> Result<Self, ContainerdError> {
        let folder = folder(paths, &machine.node);
        let plugins = folder.join("cni");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |cause| ContainerdError::File { path, cause }
        };
        fs::create_dir_all(&plugins).map_err(failed(&plugins))?;
        let plugin = find("skep-cni").ok_or(ContainerdError::Missing { program: "skep-cni" })?;
        for (name, program) in [("cilium-cni", plugin), ("loopback", LOOPBACK.into())] {
            let link = plugins.join(name);
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(program, &link).map_err(failed(&link))?;
        }
        let socket = socket(paths, &machine.node);
        let text = match is_installed {
            // The chart writes both.
            true => {
                let [configurations, plugins] =
                    ["etc/cni/net.d", "opt/cni/bin"].map(|path| folder.join("rootfs").join(path));
                configuration(&folder, &socket, &configurations, &plugins)
            }
            false => {
                let configurations = Path::new(cni::CONFIGURATION).parent().unwrap_or(Path::new("/"));
                configuration(&folder, &socket, configurations, &plugins)
            }
        };
        let path = folder.join("config.toml");
        fs::write(&path, text).map_err(failed(&path))?;
        Ok(Self { folder, socket })
    }

    /// Starts it; returns when it answers and has the image of sandboxes and those of these archives.
    pub(crate) async fn start(
        &self,
        machine: &Machine,
        images: &[PathBuf],
    ) -> Result<Restarter, ContainerdError> {
        let program = find(PROGRAM).ok_or(ContainerdError::Missing { program: PROGRAM })?;
        let arguments = vec![
            program.into(),
            "--config".into(),
            self.folder.join("config.toml").into(),
        ];
        // Control groups of containers are made beside that of containerd.
        let placement = machine.placement("pods/containerd", arguments)?;
        let log = machine.log(PROGRAM);
        let mut restarter = Restarter::start(&machine.node.name, PROGRAM, placement, log.clone()).await?;
        let cri = Cri::at(&self.socket)?;
        let deadline = Instant::now() + READY;
        while let Err(cause) = cri.version().await {
            restarter.has_ended()?;
            if Instant::now() > deadline {
                return Err(ContainerdError::Late {
                    node: machine.node.name.clone(),
                    log,
                    cause,
                });
            }
            tokio::time::sleep(LOOK).await;
        }
        let archive = self.folder.join("pause.tar");
        pause(&self.folder.join("pause"), &archive)?;
        for image in std::iter::once(&archive).chain(images) {
            cri.import(image).await?;
        }
        Ok(restarter)
    }
}

/// Makes the image of sandboxes.
fn pause(root: &Path, archive: &Path) -> Result<(), ContainerdError> {
    let program = find("busybox").ok_or(ContainerdError::Missing { program: "busybox" })?;
    add_program(root, &program, "/bin/busybox")?;
    let image = Image {
        name: PAUSE_IMAGE,
        entrypoint: &["/bin/busybox", "sleep", "2147483647"],
        user: "",
    };
    Ok(image.write(root, archive)?)
}

/// Control groups have no controllers where another hierarchy has them: nothing is limited.
fn configuration(folder: &Path, socket: &Path, configurations: &Path, plugins: &Path) -> String {
    let (folder, socket) = (folder.display(), socket.display());
    let (configurations, plugins) = (configurations.display(), plugins.display());
    let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
    format!(
        "version = 2\n\
         root = \"{folder}/content\"\n\
         disabled_plugins = [\"io.containerd.internal.v1.opt\", \"io.containerd.snapshotter.v1.btrfs\", \
         \"io.containerd.snapshotter.v1.zfs\", \"io.containerd.snapshotter.v1.devmapper\"]\n\
         [grpc]\n  address = \"{socket}\"\n\
         [{cri}]\n  sandbox_image = \"{PAUSE_IMAGE}\"\n  disable_cgroup = true\n  disable_apparmor = true\n  \
         restrict_oom_score_adj = true\n\
         [{cri}.cni]\n  conf_dir = \"{configurations}\"\n  bin_dir = \"{plugins}\"\n"
    )
}
