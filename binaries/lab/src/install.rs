// SPDX-License-Identifier: Apache-2.0

//! Labs that run the chart: its images, made of the programs beside this one; nodes with a kubelet; `helm`.

use std::{
    fs, io,
    net::{SocketAddr, TcpStream},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;
use skep_k8s_client::{ApiError, Client};
use skep_k8s_types::Kind;
use skep_lab_kubelet::{Image, ImageError, Node, image::add_program};
use tokio::process::Command;

use crate::{
    containerd::folder,
    control_plane,
    lab_options::{LabOptions, RoutingMode},
    link,
    machine::{Machine, NODE_PROC},
    paths::LabPaths,
    plan::{API_PORT, Cluster},
    process::find,
    state::State,
};

/// Image with the programs of the lab, for pods of tests and demos.
pub const TOOLS_IMAGE: &str = "localhost/skep-lab/tools:1";
/// Release and namespace of the chart: those that commands on a cluster mean by default.
pub const RELEASE: (&str, &str) = ("cilium", "kube-system");
/// DaemonSet of the agents.
const AGENTS: &str = "cilium";
/// How long the agents may take to become ready.
const READY: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(50);

const DAEMON_SET: Kind = Kind::new("apps", "v1", "DaemonSet", "daemonsets", true);

/// Why the chart is not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Build it, or install it: `cargo build --bins`, `make deps`.
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
    Image(#[from] ImageError),
    #[error("cannot run helm")]
    Helm(#[source] io::Error),
    #[error("helm {command} of cluster {cluster}: {message}")]
    Refused {
        command: &'static str,
        cluster: String,
        message: String,
    },
    #[error(transparent)]
    Target(#[from] skep_k8s_client::remote::TargetError),
    /// See the logs of the pods: `kubectl logs`.
    #[error("agents of cluster {cluster} are not ready within {} s: {status}", READY.as_secs())]
    Late { cluster: String, status: Value },
}

/// An image of the chart: programs and where they are in it.
struct Recipe {
    name: &'static str,
    /// Whether only options of the chart, or commands, need it: not made without its programs.
    is_optional: bool,
    programs: &'static [(&'static str, &'static str)],
    user: &'static str,
}

const RECIPES: &[Recipe] = &[
    Recipe {
        name: "agent",
        is_optional: false,
        programs: &[
            ("skep-agent", "/usr/bin/skep-agent"),
            ("skep", "/usr/bin/skep"),
            ("skep-init", "/usr/bin/skep-init"),
            ("skep-cni", "/opt/cni/bin/cilium-cni"),
            ("/usr/lib/cni/loopback", "/cni/loopback"),
        ],
        user: "",
    },
    Recipe {
        name: "operator",
        is_optional: false,
        programs: &[("skep-operator", "/usr/bin/skep-operator")],
        user: "65532:65532",
    },
    Recipe {
        name: "clustermesh-apiserver",
        is_optional: false,
        programs: &[
            (
                "skep-clustermesh-apiserver",
                "/usr/bin/skep-clustermesh-apiserver",
            ),
            ("etcd", "/usr/bin/etcd"),
        ],
        user: "65532:65532",
    },
    Recipe {
        name: "certgen",
        is_optional: true,
        programs: &[("skep-certgen", "/usr/bin/cilium-certgen")],
        user: "65532:65532",
    },
    Recipe {
        name: "connectivity",
        is_optional: true,
        programs: &[("skep-probe", "/usr/bin/skep-probe")],
        user: "",
    },
    Recipe {
        name: "tools",
        is_optional: false,
        programs: &[("skep-lab", "/usr/bin/skep-lab"), ("busybox", "/bin/busybox")],
        user: "",
    },
];

/// Makes the images of the chart, as `deploy/images` does from what is shipped; their archives.
pub(crate) fn images(folder: &Path) -> Result<Vec<PathBuf>, InstallError> {
    let has_programs = |recipe: &&Recipe| recipe.programs.iter().all(|(program, _)| find(program).is_some());
    RECIPES
        .iter()
        .filter(|recipe| !recipe.is_optional || has_programs(recipe))
        .map(|recipe| image(recipe, folder))
        .collect()
}

fn image(recipe: &Recipe, folder: &Path) -> Result<PathBuf, InstallError> {
    let root = folder.join(recipe.name);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause| InstallError::File { path, cause }
    };
    for (path, mode) in [
        ("etc", 0o755),
        ("usr/bin", 0o755),
        ("tmp", 0o1777),
        ("var/run/cilium", 0o777),
        ("var/lib/cilium", 0o755),
    ] {
        let path = root.join(path);
        let made = fs::create_dir_all(&path);
        made.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .map_err(failed(&path))?;
    }
    for (path, text) in [
        (
            "etc/passwd",
            "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
        ),
        ("etc/group", "root:x:0:\nnonroot:x:65532:\n"),
        ("etc/nsswitch.conf", "hosts: files dns\n"),
    ] {
        let path = root.join(path);
        fs::write(&path, text).map_err(failed(&path))?;
    }
    for (program, path) in recipe.programs {
        let found = find(program).ok_or(InstallError::Missing { program })?;
        add_program(&root, &found, path)?;
    }
    if recipe.name == "agent" {
        // For scripts of Cilium's users.
        for name in ["cilium", "cilium-dbg"] {
            let link = root.join("usr/bin").join(name);
            symlink("skep", &link).map_err(failed(&link))?;
        }
    }
    let entrypoint = recipe.programs[0].1;
    let version = env!("CARGO_PKG_VERSION");
    let (name, entrypoint) = match recipe.name {
        "tools" => {
            let shell = root.join("bin/sh");
            symlink("busybox", &shell).map_err(failed(&shell))?;
            (
                TOOLS_IMAGE.to_owned(),
                vec![entrypoint, "echo", "--name", "tools"],
            )
        }
        name => (format!("localhost/skep/{name}:{version}"), vec![entrypoint]),
    };
    if recipe.name == "clustermesh-apiserver" {
        let secrets = "/var/lib/cilium/etcd-secrets";
        let text = format!(
            "endpoints:\n- https://127.0.0.1:2379\ntrusted-ca-file: {secrets}/ca.crt\n\
             key-file: {secrets}/tls.key\ncert-file: {secrets}/tls.crt\n"
        );
        let path = root.join("var/lib/cilium/etcd-config.yaml");
        fs::write(&path, text).map_err(failed(&path))?;
    }
    let archive = folder.join(format!("{}.tar", recipe.name));
    let image = Image {
        name: &name,
        entrypoint: &entrypoint,
        user: recipe.user,
    };
    image.write(&root, &archive)?;
    fs::remove_dir_all(&root).map_err(failed(&root))?;
    Ok(archive)
}

/// A node for its kubelet.
pub(crate) fn node(paths: &LabPaths, cluster: &Cluster, machine: &Machine) -> Node {
    let process = machine.pid();
    Node {
        name: machine.node.name.clone(),
        addresses: machine.node.addresses().map(|(address, _)| address).to_vec(),
        folder: folder(paths, &machine.node),
        process,
        proc: NODE_PROC.into(),
        api: SocketAddr::from((cluster.api_address(), API_PORT)),
        connect: Arc::new(move |to, limit| {
            let connected = link::inside(process, move |_| Ok(TcpStream::connect_timeout(&to, limit)));
            connected.map_err(io::Error::other)?
        }),
    }
}

/// Values of the chart for a cluster of the lab; those of the user go before.
fn values(cluster: &Cluster, lab_options: &LabOptions) -> Vec<String> {
    let mut values = vec![
        format!("k8sServiceHost={}", cluster.api_address()),
        format!("k8sServicePort={API_PORT}"),
        format!("cluster.name={}", cluster.name),
        format!("cluster.id={}", cluster.index),
        format!("operator.replicas={}", cluster.nodes.len().min(2)),
        // The lab has routes to the networks of its Nodes.
        "ipam.mode=kubernetes".to_owned(),
        "kubeProxyReplacement=true".to_owned(),
        "ipv6.enabled=true".to_owned(),
        // Of many nodes on one machine: its memory is not for each of them.
        "bpf.ctTcpMax=65536".to_owned(),
        "bpf.ctAnyMax=32768".to_owned(),
        "bpf.natMax=65536".to_owned(),
        "bpf.masquerade=true".to_owned(),
    ];
    if lab_options.routing_mode != RoutingMode::Tunnel {
        values.extend(
            [
                "routingMode=native",
                "ipv4NativeRoutingCIDR=10.0.0.0/8",
                "ipv6NativeRoutingCIDR=fd00::/8",
            ]
            .map(str::to_owned),
        );
    }
    if lab_options.routing_mode == RoutingMode::Direct {
        values.push("autoDirectNodeRoutes=true".to_owned());
    }
    values.extend(lab_options.values.iter().cloned());
    values
}

/// Installs the chart in all clusters of a lab; how long it took from then until all agents were ready.
pub(crate) async fn install(state: &State, lab_options: &LabOptions) -> Result<Duration, InstallError> {
    let begin = Instant::now();
    let clusters = state
        .lab
        .clusters
        .iter()
        .map(|cluster| install_one(state, cluster, lab_options));
    for installed in futures::future::join_all(clusters).await {
        installed?;
    }
    Ok(begin.elapsed())
}

async fn install_one(state: &State, cluster: &Cluster, lab_options: &LabOptions) -> Result<(), InstallError> {
    let helm = find("helm").ok_or(InstallError::Missing { program: "helm" })?;
    let kubeconfig = state.kubeconfig(&cluster.name).unwrap_or_default();
    let (release, namespace) = RELEASE;
    let mut command = Command::new(helm);
    command
        .args(["upgrade", "--install", release])
        .arg(&lab_options.chart)
        .args(["--namespace", namespace, "--kubeconfig"])
        .arg(&kubeconfig)
        .args(
            values(cluster, lab_options)
                .iter()
                .flat_map(|value| ["--set", value]),
        )
        .stdin(Stdio::null());
    let output = command.output().await.map_err(InstallError::Helm)?;
    if !output.status.success() {
        return Err(InstallError::Refused {
            command: "upgrade --install",
            cluster: cluster.name.clone(),
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    let client = control_plane::client(&kubeconfig)?;
    let deadline = Instant::now() + READY;
    loop {
        let status = agents(&*client).await.unwrap_or_default();
        if is_ready(&status, cluster.nodes.len()) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(InstallError::Late {
                cluster: cluster.name.clone(),
                status,
            });
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Status of the DaemonSet of the agents.
async fn agents(client: &dyn Client) -> Result<Value, ApiError> {
    let found = client.get(&DAEMON_SET, RELEASE.1, AGENTS).await?.to_value()?;
    let mut status = found["status"].clone();
    status["isObserved"] = (found["metadata"]["generation"] == status["observedGeneration"]).into();
    Ok(status)
}

fn is_ready(status: &Value, nodes: usize) -> bool {
    ["numberReady", "updatedNumberScheduled"]
        .iter()
        .all(|field| status[field] == nodes)
        && status["isObserved"] == true
}
