// SPDX-License-Identifier: Apache-2.0

//! The node of a kubelet: where its files are, and how its network is reached.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Opens a connection from a node.
pub type Connect = dyn Fn(SocketAddr, Duration) -> io::Result<TcpStream> + Send + Sync;

/// Folders of the machine that nodes have in common, or mounts of their own at.
const SHARED: &[&str] = &["/run", "/sys", "/proc", "/dev", "/lib", "/usr"];

/// A node, by the view of its kubelet, which runs outside of the node's namespaces.
#[derive(Clone)]
pub struct Node {
    pub name: String,
    /// IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// What the node has of its own: volumes, logs, and the folders of host paths that it does not share.
    pub folder: PathBuf,
    /// Process in the node's namespaces.
    pub process: u32,
    /// `/proc` of the node, whose process 1 is in the node's namespaces.
    pub proc: PathBuf,
    /// The API server, as pods reach it.
    pub api: SocketAddr,
    pub connect: Arc<Connect>,
}

impl Node {
    /// A host path as the container runtime sees it.
    #[must_use]
    pub fn host_path(&self, path: &str) -> PathBuf {
        let path = match path.strip_prefix("/var/run") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("/run{rest}"),
            _ => path.to_owned(),
        };
        if path.trim_end_matches('/') == "/proc" {
            return self.proc.clone();
        }
        match SHARED.iter().any(|shared| Path::new(&path).starts_with(shared)) {
            true => path.into(),
            false => self.folder.join("rootfs").join(path.trim_start_matches('/')),
        }
    }

    /// A path of the node as this process sees it.
    #[must_use]
    pub fn outside(&self, path: &Path) -> PathBuf {
        let root = Path::new("/proc").join(self.process.to_string()).join("root");
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Folder with the logs of a pod's containers.
    #[must_use]
    pub fn logs(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        logs(&self.folder, namespace, name, uid)
    }

    pub(crate) fn pod_folder(&self, uid: &str) -> PathBuf {
        self.folder.join("pods").join(uid)
    }
}

/// Folder with the logs of a pod's containers, in the folder of its node.
#[must_use]
pub fn logs(folder: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    folder.join("logs").join(format!("{namespace}_{name}_{uid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths_are_shared_or_the_nodes_own() {
        let node = Node {
            name: "n".into(),
            addresses: Vec::new(),
            folder: "/lab/n".into(),
            process: 1,
            proc: "/run/lab/proc".into(),
            api: ([127, 0, 0, 1], 1).into(),
            connect: Arc::new(|address, limit| TcpStream::connect_timeout(&address, limit)),
        };
        for (path, expected) in [
            ("/var/run/cilium", "/run/cilium"),
            ("/proc", "/run/lab/proc"),
            ("/proc/sys/net", "/proc/sys/net"),
            ("/etc/cni/net.d", "/lab/n/rootfs/etc/cni/net.d"),
            ("/var/runner", "/lab/n/rootfs/var/runner"),
        ] {
            assert_eq!(node.host_path(path), Path::new(expected));
        }
    }
}
