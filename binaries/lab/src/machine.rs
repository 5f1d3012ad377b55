// SPDX-License-Identifier: Apache-2.0

//! The machines of a lab: the network between the nodes, the nodes, and the pods on them.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;

use crate::{
    cgroup::{self, CgroupError},
    cni::{CniError, Plugin},
    enter::{Mount, Placement},
    lab_options::{LabOptions, PodNetwork, RoutingMode},
    link::{self, LinkError, Net},
    paths::LabPaths,
    plan::{self, BEYOND, Cluster, Lab, Node, PodPlace},
    process::{Process, ProcessError, own_program},
};

/// The link between the nodes, in a namespace of its own.
const BRIDGE: &str = "lab0";
/// Every node's and pod's link to the outside.
const UPLINK: &str = "eth0";

/// Why a machine could not be created.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The network could not be set up.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A control group could not be created.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The plugin has not connected a pod.
    #[error(transparent)]
    Cni(#[from] CniError),
}

/// The network between all nodes of a lab.
#[derive(Debug)]
pub struct Fabric {
    holder: Process,
    beyond: Process,
}

impl Fabric {
    /// Creates the namespace with the bridge and the API servers' addresses.
    pub async fn create(paths: &LabPaths, lab: &Lab) -> Result<Self, MachineError> {
        let placement = Placement {
            cgroup: Some(paths.group(paths.cgroup.join("fabric"))?),
            new_network: true,
            hostname: Some("fabric".to_owned()),
            ..holder()
        };
        let mut holder = Process::place("fabric", &placement, &paths.log("fabric")).await?;
        let addresses: Vec<_> = lab.clusters.iter().flat_map(Cluster::outside_addresses).collect();
        let routes = routes_to_pods(lab);
        in_namespace(holder.pid(), move |net| {
            link::router_settings()?;
            net.up("lo")?;
            net.bridge(BRIDGE)?;
            for (address, prefix) in addresses {
                net.address(BRIDGE, address, prefix)?;
            }
            for (network, gateway) in routes {
                net.route(network, gateway, BRIDGE)?;
            }
            Ok(())
        })
        .await?;
        let beyond = create_beyond(paths, holder.pid()).await?;
        holder.go().await?;
        Ok(Self { holder, beyond })
    }

    /// A process in the fabric's network namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// A process on the machine behind the router.
    #[must_use]
    pub fn beyond(&self) -> u32 {
        self.beyond.pid()
    }
}

/// Creates a machine in a network of its own, to which the network of the nodes, in process `fabric`, is the router.
async fn create_beyond(paths: &LabPaths, fabric: u32) -> Result<Process, MachineError> {
    let placement = Placement {
        cgroup: Some(paths.group(paths.cgroup.join(BEYOND))?),
        new_network: true,
        hostname: Some(BEYOND.to_owned()),
        ..holder()
    };
    let mut machine = Process::place(BEYOND, &placement, &paths.log(BEYOND)).await?;
    let pid = machine.pid();
    in_namespace(pid, move |net| {
        link::immediate_addresses()?;
        Ok(net.up("lo")?)
    })
    .await?;
    in_namespace(fabric, move |net| {
        net.veth(BEYOND, UPLINK, pid)?;
        net.up(BEYOND)?;
        for (router, _, prefix) in plan::BEYOND_NETWORK {
            net.address(BEYOND, router, prefix)?;
        }
        Ok(())
    })
    .await?;
    in_namespace(pid, move |net| {
        net.up(UPLINK)?;
        for (router, address, prefix) in plan::BEYOND_NETWORK {
            net.address(UPLINK, address, prefix)?;
            net.route(everything(address), router, UPLINK)?;
        }
        Ok(())
    })
    .await?;
    machine.go().await?;
    Ok(machine)
}

/// The network of all addresses of the family of `address`.
fn everything(address: IpAddr) -> (IpAddr, u8) {
    match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), 0),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

#[derive(Debug)]
pub struct Machine {
    pub node: Node,
    holder: Process,
    paths: LabPaths,
    has_containers: bool,
}

impl Machine {
    /// Creates the node's namespaces and connects it to the others.
    pub async fn create(
        paths: &LabPaths,
        lab: &Lab,
        node: &Node,
        fabric: &Fabric,
        lab_options: &LabOptions,
    ) -> Result<Self, MachineError> {
        let placement = Placement {
            cgroup: Some(paths.group(paths.node_cgroup(node).join("holder"))?),
            new_network: true,
            new_node: true,
            containers: lab_options.has_containerd(),
            keep: Some(paths.folder.clone()),
            hostname: Some(node.name.clone()),
            ..match lab_options.has_containerd() {
                true => process_holder(),
                false => holder(),
            }
        };
        std::fs::create_dir_all(&paths.folder).map_err(|cause| CgroupError::Io {
            path: paths.folder.clone(),
            cause,
        })?;
        let name = format!("{}-holder", node.name);
        let mut holder = Process::place(&name, &placement, &paths.log(&name)).await?;

        // Links take the settings of the namespace over when they arrive.
        in_namespace(holder.pid(), move |net| {
            link::router_settings()?;
            Ok(net.up("lo")?)
        })
        .await?;
        let (pid, port) = (holder.pid(), format!("p{}-{}", node.cluster, node.index));
        in_namespace(fabric.pid(), move |net| {
            net.veth(&port, UPLINK, pid)?;
            Ok(net.enslave(&port, BRIDGE)?)
        })
        .await?;
        let mut routes = routes_from(lab, node, lab_options.routing_mode);
        routes.extend(routes_beyond(lab, node));
        let addresses = node.addresses();
        in_namespace(pid, move |net| {
            net.up(UPLINK)?;
            for (address, prefix) in addresses {
                net.address(UPLINK, address, prefix)?;
            }
            for (network, gateway) in routes {
                net.route(network, gateway, UPLINK)?;
            }
            Ok(())
        })
        .await?;
        holder.go().await?;
        Ok(Self {
            node: node.clone(),
            holder,
            paths: paths.clone(),
            has_containers: lab_options.has_containerd(),
        })
    }

    /// A process in the node's namespaces.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// Root of the node's control groups, as its processes see it.
    #[must_use]
    pub fn cgroup_root(&self) -> PathBuf {
        match self.has_containers {
            true => "/sys/fs/cgroup".into(),
            false => self.paths.node_cgroup(&self.node),
        }
    }

    /// Log of the process called `name` on this node.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.paths.log(&format!("{}-{name}", self.node.name))
    }

    /// Placement of a program of the node itself: its agent, or one that a user starts.
    pub fn placement(&self, group: &str, program: Vec<OsString>) -> Result<Placement, MachineError> {
        let cgroup = self.paths.group(self.paths.node_cgroup(&self.node).join(group))?;
        Ok(Placement {
            cgroup: Some(cgroup),
            beside: Some(self.pid()),
            program,
            ..Placement::default()
        })
    }

    /// Starts a pod: a process with a network of its own and with `mounts`; also returns its addresses. The CNI plugin connects
    /// it to the agent of the node, which must run; [unmanaged](PodNetwork::Unmanaged), it has the kernel's routes.
    ///
    /// # Errors
    /// If a system call fails, or the plugin does.
    pub async fn start_pod(
        &self,
        pod: &PodPlace,
        network: PodNetwork,
        mounts: Vec<Mount>,
        program: Vec<OsString>,
    ) -> Result<(Process, Vec<IpAddr>), MachineError> {
        let placement = Placement {
            mounts,
            cgroup: Some(self.paths.group(self.pod_cgroup(pod))?),
            beside: Some(self.pid()),
            new_network: true,
            pin_network: Some(pod.id.clone()),
            hostname: Some(pod.hostname.clone()),
            handshake: true,
            program,
            ..Placement::default()
        };
        let name = format!("{}-{}", self.node.name, pod.id);
        let mut process = Process::place(&name, &placement, &self.paths.log(&name)).await?;
        let pid = process.pid();
        in_namespace(pid, move |net| {
            link::immediate_addresses()?;
            Ok(net.up("lo")?)
        })
        .await?;
        let addresses = match network {
            PodNetwork::Managed => self.plugin()?.add(pod).await?,
            PodNetwork::Unmanaged => self.connect(pod, pid).await?,
        };
        process.go().await?;
        Ok((process, addresses))
    }

    fn plugin(&self) -> Result<Plugin<'_>, MachineError> {
        Ok(Plugin {
            name: &self.node.name,
            node: self.pid(),
            cgroup: self
                .paths
                .group(self.paths.node_cgroup(&self.node).join("tools"))?,
        })
    }

    /// Links a pod, in the network of process `pid`, to the node by routes.
    async fn connect(&self, pod: &PodPlace, pid: u32) -> Result<Vec<IpAddr>, MachineError> {
        let link_name = pod.link();
        let (addresses, gateways) = (self.node.pod_addresses(pod.slot), self.node.gateways());
        in_namespace(self.pid(), move |net| {
            net.delete(&link_name)?;
            net.veth(&link_name, UPLINK, pid)?;
            net.up(&link_name)?;
            for gateway in gateways {
                // The same gateway address on every pod's link, as a host route each: no bridge needed.
                net.address(&link_name, gateway, if gateway.is_ipv4() { 32 } else { 128 })?;
            }
            for address in addresses {
                net.host_route(address, &link_name)?;
            }
            Ok(())
        })
        .await?;
        in_namespace(pid, move |net| {
            net.up(UPLINK)?;
            for (address, gateway) in addresses.into_iter().zip(gateways) {
                let whole = if address.is_ipv4() { 32 } else { 128 };
                net.address(UPLINK, address, whole)?;
                net.host_route(gateway, UPLINK)?;
                net.route(everything(address), gateway, UPLINK)?;
            }
            Ok(addresses.to_vec())
        })
        .await
    }

    /// Folder with the files of a pod's volumes.
    #[must_use]
    pub fn volumes(&self, pod: &str) -> PathBuf {
        self.paths.volumes(&self.node, pod)
    }

    /// Removes the files of a pod's volumes.
    pub fn remove_volumes(&self, pod: &str) -> Result<(), MachineError> {
        let path = self.volumes(pod);
        match std::fs::remove_dir_all(&path) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                Err(CgroupError::Io { path, cause }.into())
            }
            _ => Ok(()),
        }
    }

    /// Removes endpoint, link, pin, control group and volumes of a pod whose process has ended. The plugin queues the deletion
    /// for an agent that does not run.
    pub async fn clean_pod(&self, pod: &PodPlace, network: PodNetwork) -> Result<(), MachineError> {
        if network == PodNetwork::Managed
            && let Err(err) = self.plugin()?.delete(pod).await
        {
            tracing::warn!(error = %hive::error_chain(&err), pod = pod.id, "Cannot disconnect pod");
        }
        let link_name = pod.link();
        in_namespace(self.pid(), move |net| Ok(net.delete(&link_name)?)).await?;
        let unpin = self.placement(
            "tools",
            vec![
                own_program(),
                "unpin".into(),
                Path::new("/run/netns").join(&pod.id).into_os_string(),
            ],
        )?;
        let name = format!("{}-unpin", self.node.name);
        let mut process = Process::place(&name, &unpin, &self.paths.log(&name)).await?;
        let _ = process.ended().await;
        cgroup::remove(&self.pod_cgroup(pod), Duration::from_secs(5))?;
        self.remove_volumes(&pod.id)
    }

    #[must_use]
    pub fn pod_cgroup(&self, pod: &PodPlace) -> PathBuf {
        self.paths.node_cgroup(&self.node).join("pods").join(&pod.id)
    }
}

/// A process that holds namespaces open until it is killed.
fn holder() -> Placement {
    Placement {
        handshake: true,
        program: vec![own_program(), "hold".into()],
        ..Placement::default()
    }
}

/// Where a node that runs containers has a `/proc` whose process 1 is in its namespaces.
pub const NODE_PROC: &str = "/run/lab/proc";

/// As [`holder`], with process 1 of a PID namespace.
fn process_holder() -> Placement {
    let script = format!("mkdir -p {NODE_PROC} && mount -t proc proc {NODE_PROC} && exec sleep infinity");
    let program = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", &script];
    Placement {
        handshake: true,
        program: program.map(OsString::from).to_vec(),
        ..Placement::default()
    }
}

/// Routes from the network between the nodes to the pods of all nodes.
fn routes_to_pods(lab: &Lab) -> Vec<((IpAddr, u8), IpAddr)> {
    let nodes = lab.clusters.iter().flat_map(|cluster| &cluster.nodes);
    nodes
        .flat_map(|node| node.pod_networks().into_iter().zip(node.addresses()))
        .map(|(network, (address, _))| (network, address))
        .collect()
}

/// Routes from `node` to the pods of all other nodes; none to those of its own cluster if its agent brings packets there, by a
/// tunnel or by routes.
fn routes_from(lab: &Lab, node: &Node, routing: RoutingMode) -> Vec<((IpAddr, u8), IpAddr)> {
    let is_left_out = |other: &&Node| routing != RoutingMode::Native && other.cluster == node.cluster;
    lab.clusters
        .iter()
        .flat_map(|cluster| &cluster.nodes)
        .filter(|other| *other != node && !is_left_out(other))
        .flat_map(|other| {
            other
                .pod_networks()
                .into_iter()
                .zip(other.addresses().map(|(address, _)| address))
        })
        .collect()
}

/// Routes from `node` to the machine behind the router.
fn routes_beyond(lab: &Lab, node: &Node) -> Vec<((IpAddr, u8), IpAddr)> {
    let own = lab.clusters.iter().find(|cluster| cluster.index == node.cluster);
    let routers = own.into_iter().flat_map(Cluster::outside_addresses);
    routers
        .zip(plan::BEYOND_NETWORK)
        .map(|((router, _), (_, address, prefix))| {
            let network = IpNet::new_assert(address, prefix).network();
            ((network, prefix), router)
        })
        .collect()
}

/// As [`link::inside`], off the executor's threads.
async fn in_namespace<T, F>(pid: u32, work: F) -> Result<T, MachineError>
where
    T: Send + 'static,
    F: FnOnce(Net) -> Result<T, LinkError> + Send + 'static,
{
    match tokio::task::spawn_blocking(move || link::inside(pid, work)).await {
        Ok(result) => Ok(result?),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_servers_reach_the_pods_of_every_node() {
        let lab = Lab::plan("t", 2, 2).unwrap();

        let routes = routes_to_pods(&lab);

        assert_eq!(routes.len(), 4 * 2);
        assert!(routes.contains(&(("10.2.1.0".parse().unwrap(), 24), "172.30.2.1".parse().unwrap())));
    }

    #[test]
    fn routes_lead_to_the_pods_of_every_other_node() {
        let lab = Lab::plan("t", 2, 2).unwrap();
        let node = &lab.clusters[0].nodes[0];

        let routes = routes_from(&lab, node, RoutingMode::Native);

        assert_eq!(routes.len(), 3 * 2);
        assert!(routes.contains(&(("10.2.1.0".parse().unwrap(), 24), "172.30.2.1".parse().unwrap())));
        assert!(
            !routes
                .iter()
                .any(|(network, _)| *network == node.pod_networks()[0])
        );
        // Clusters do not know the nodes of others.
        let others: Vec<_> = lab.clusters[1]
            .nodes
            .iter()
            .flat_map(Node::pod_networks)
            .collect();
        for routing in [RoutingMode::Tunnel, RoutingMode::Direct] {
            let routes = routes_from(&lab, node, routing);
            assert!(routes.iter().map(|(network, _)| network).eq(&others));
        }
    }

    #[test]
    fn nodes_reach_the_machine_behind_the_router_by_the_address_of_their_cluster() {
        let lab = Lab::plan("t", 2, 1).unwrap();

        let routes = routes_beyond(&lab, &lab.clusters[1].nodes[0]);

        let expected = [
            ("10.250.0.0", 24, "172.30.2.250"),
            ("fd00:250::", 64, "fd00:30:0:2::fa"),
        ];
        let expected = expected
            .map(|(network, prefix, router)| ((network.parse().unwrap(), prefix), router.parse().unwrap()));
        assert_eq!(routes, expected);
    }
}
