// SPDX-License-Identifier: Apache-2.0

//! What a cluster is, and the values that follow.

use serde_json::{Value, json};

use crate::access::{Access, AccessError, text};

/// How a cluster is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    Minikube,
    Microk8s,
    RancherDesktop,
    Kind,
    Gke,
    Eks,
    Aks,
    K3s,
    Unknown,
}

impl Flavour {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Minikube => "minikube",
            Self::Microk8s => "microk8s",
            Self::RancherDesktop => "rancher-desktop",
            Self::Kind => "kind",
            Self::Gke => "GKE",
            Self::Eks => "EKS",
            Self::Aks => "AKS",
            Self::K3s => "K3s",
            Self::Unknown => "unknown",
        }
    }

    /// By names of context and cluster.
    fn of_names(context: &str, cluster: &str) -> Self {
        let any = |check: &dyn Fn(&str) -> bool| check(context) || check(cluster);
        match () {
            () if any(&|name| name == "minikube") => Self::Minikube,
            () if any(&|name| name.starts_with("microk8s-")) => Self::Microk8s,
            () if any(&|name| name == "rancher-desktop") => Self::RancherDesktop,
            () if any(&|name| name.starts_with("kind-")) => Self::Kind,
            () if any(&|name| name.starts_with("gke_")) => Self::Gke,
            () if any(&|name| name.contains(".eksctl.io") || name.contains("eks.amazonaws.com")) => Self::Eks,
            () if any(&|name| name.starts_with("arn:aws") && name.contains(":cluster/")) => Self::Eks,
            () if any(&|name| name.contains("azmk8s.io")) => Self::Aks,
            () => Self::Unknown,
        }
    }

    pub(crate) async fn of(access: &Access) -> Result<Self, AccessError> {
        let named = Self::of_names(&access.context, &access.cluster);
        if named != Self::Unknown {
            return Ok(named);
        }
        let nodes = access.list("/api/v1/nodes?limit=1").await?;
        let node = nodes.first().cloned().unwrap_or_default();
        let has = |prefix: &str| {
            let labels = node["metadata"]["labels"].as_object();
            labels.is_some_and(|labels| labels.keys().any(|key| key.starts_with(prefix)))
        };
        let version = access.get("/version").await?.unwrap_or_default();
        Ok(match () {
            () if has("cloud.google.com/gke-") => Self::Gke,
            () if has("eks.amazonaws.com/") => Self::Eks,
            () if has("kubernetes.azure.com/") => Self::Aks,
            () if text(&version, "/gitVersion").contains("+k3s") => Self::K3s,
            () => Self::Unknown,
        })
    }

    /// Values of a cluster of this kind.
    pub(crate) fn values(self) -> Vec<(&'static str, Value)> {
        let one = ("operator.replicas", json!(1));
        match self {
            Self::Kind => vec![one, ("ipam.mode", json!("kubernetes"))],
            Self::Minikube | Self::K3s => vec![one],
            Self::RancherDesktop => vec![one, ("cni.binPath", json!("/usr/libexec/cni"))],
            Self::Microk8s => vec![
                one,
                ("cni.binPath", json!("/var/snap/microk8s/current/opt/cni/bin")),
                (
                    "cni.confPath",
                    json!("/var/snap/microk8s/current/args/cni-network"),
                ),
            ],
            Self::Gke => vec![
                ("gke.enabled", json!(true)),
                ("ipam.mode", json!("kubernetes")),
                ("cni.binPath", json!("/home/kubernetes/bin")),
            ],
            Self::Eks | Self::Aks | Self::Unknown => Vec::new(),
        }
    }

    /// Type of the mesh's Service and its annotations, where they are known.
    pub(crate) fn mesh_service(self) -> Option<(&'static str, Value)> {
        let annotations = match self {
            Self::Gke => json!({
                "networking.gke.io/load-balancer-type": "Internal",
                "networking.gke.io/internal-load-balancer-allow-global-access": "true",
            }),
            Self::Aks => json!({ "service.beta.kubernetes.io/azure-load-balancer-internal": "true" }),
            Self::Eks => json!({ "service.beta.kubernetes.io/aws-load-balancer-scheme": "internal" }),
            _ => return None,
        };
        Some(("LoadBalancer", annotations))
    }
}

/// A cluster's name from that in the kubeconfig.
pub(crate) fn cluster_name(named: &str) -> String {
    // `arn:aws:eks:REGION:ACCOUNT:cluster/NAME`.
    let short = named.rsplit_once(":cluster/").map_or(named, |(_, name)| name);
    let name: String = short
        .chars()
        .map(|letter| if "_.:".contains(letter) { '-' } else { letter })
        .collect();
    name.to_lowercase()
        .chars()
        .take(32)
        .collect::<String>()
        .trim_matches('-')
        .to_owned()
}

/// Whether kube-proxy runs here: any DaemonSet with the name in its own.
pub(crate) async fn has_kube_proxy(access: &Access) -> Result<bool, AccessError> {
    let sets = access.list("/apis/apps/v1/daemonsets").await?;
    Ok(sets
        .iter()
        .any(|set| text(set, "/metadata/name").contains("kube-proxy")))
}

/// Address and port of the API server, as nodes without services reach it.
pub(crate) async fn api_server(access: &Access) -> Result<Option<(String, u16)>, AccessError> {
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices\
        ?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";
    let slices = access.list(path).await?;
    let found = slices.iter().find_map(|slice| {
        let address = text(slice, "/endpoints/0/addresses/0");
        let port = slice.pointer("/ports/0/port").and_then(Value::as_u64);
        let port = u16::try_from(port?).ok()?;
        (!address.is_empty()).then(|| (address.to_owned(), port))
    });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_contexts_tell_flavours() {
        let of = |name: &str| Flavour::of_names(name, "");

        assert_eq!(of("kind-one"), Flavour::Kind);
        assert_eq!(of("gke_project_zone_name"), Flavour::Gke);
        assert_eq!(of("me@shop.eu-west-1.eksctl.io"), Flavour::Eks);
        assert_eq!(of("lab-east"), Flavour::Unknown);
    }

    #[test]
    fn names_of_clusters_are_labels() {
        assert_eq!(cluster_name("kind-one"), "kind-one");
        assert_eq!(cluster_name("arn:aws:eks:eu-west-1:1234:cluster/shop"), "shop");
        assert_eq!(cluster_name("gke_project_zone.a"), "gke-project-zone-a");
    }
}
