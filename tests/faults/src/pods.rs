// SPDX-License-Identifier: Apache-2.0

//! Pods of a node: network namespaces, and the CNI plugin that adds and deletes them, as a container runtime does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use serde_json::{Value, json};
use skep_base_api_client::{Client, ClientError};
use skep_base_net::{
    Netlink, RouteFilter,
    netns::Namespace,
    packet::{RouteNetlinkMessage, rule::RuleMessage},
};
use skep_bpf_sys::{MapStore, RawMap as _};
use skep_e2e::program;
use skep_k8s_memory::{DeleteOptions, Gvr, ListOptions, Patch, Subresource, WriteOptions};

use crate::{Agent, Api, Outcome, World, world::patience};

/// State of the agent, and of the plugin.
const RUN: &str = "/run/cilium";
/// Maps with entries of endpoints, besides those that each has of its own, which are pins.
const MAPS: [&str; 3] = ["cilium_ipcache_v2", "cilium_lxc", "skep_endpoints"];
const NAMESPACE: &str = "shop";
/// Configuration of the plugin, in the world's directory.
const CONFIGURATION: &str = "cni.json";

/// A node that has pods.
pub struct Pods {
    pub world: World,
    pub api: Api,
    /// Settings of its agents.
    flags: Vec<String>,
}

/// A pod of Kubernetes, and its sandbox.
#[derive(Debug, Clone)]
pub struct Pod {
    pub name: String,
    pub container: String,
    pub netns: PathBuf,
}

impl Pods {
    /// Makes the node. Its agents have these settings, too.
    pub async fn new(world: World, flags: &[&str]) -> Outcome<Self> {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
        fs::create_dir_all("/run/netns")?;
        fs::create_dir_all(RUN)?;
        let configuration = json!({"cniVersion": "1.0.0", "name": "cilium", "type": "cilium-cni"});
        fs::write(world.directory.join(CONFIGURATION), configuration.to_string())?;
        let api = Api::start().await?;
        let mut all = vec![
            "--ipam=cluster-pool".to_owned(),
            "--identity-allocation-mode=crd".to_owned(),
            "--local-router-ipv4=10.201.0.1".to_owned(),
            "--local-router-ipv6=fd00:201::1".to_owned(),
            format!("--state-dir={RUN}"),
        ];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let pods = Self {
            world,
            api,
            flags: all,
        };
        pods.label_namespace("a")?;
        pods.set_networks(&["10.200.0.0/24", "fd00:200::/120"])?;
        Ok(pods)
    }

    /// Gives a label to the namespace of the pods.
    pub fn label_namespace(&self, team: &str) -> Outcome {
        let metadata = json!({"name": NAMESPACE, "labels": {"team": team}});
        self.api
            .put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
    }

    /// Allocates networks to the node, as the operator does.
    pub fn set_networks(&self, networks: &[&str]) -> Outcome {
        self.api.put(&json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "here"},
            "spec": {"ipam": {"podCIDRs": networks}},
        }))
    }

    /// Settings of its agents.
    #[must_use]
    pub fn flags(&self) -> Vec<&str> {
        self.flags.iter().map(String::as_str).collect()
    }

    /// Starts an agent, and waits until pods may be added.
    pub async fn agent(&self) -> Outcome<Agent> {
        let mut agent = Agent::following(&self.world, &self.api, &self.flags())?;
        agent.wait_well(&self.world).await?;
        Ok(agent)
    }

    /// Puts a pod into the API, with these labels, without a sandbox.
    pub fn put(&self, name: &str, labels: &Value) -> Outcome {
        self.api.put(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": NAMESPACE, "name": name, "uid": format!("uid-{name}"), "labels": labels},
            "spec": {"nodeName": "here", "containers": [{"name": "c"}]},
            "status": {"phase": "Pending", "hostIP": "10.244.0.1"},
        }))
    }

    /// Puts a pod into the API, and makes its sandbox.
    pub fn pod(&self, name: &str) -> Outcome<Pod> {
        self.put(name, &json!({"app": "shop"}))?;
        self.sandbox(name, &format!("{name}-1"))
    }

    /// Makes a sandbox of a pod.
    #[allow(
        clippy::unused_self,
        reason = "whoever holds pods is in their mount namespace"
    )]
    pub fn sandbox(&self, name: &str, container: &str) -> Outcome<Pod> {
        let netns = Path::new("/run/netns").join(container);
        Namespace::new()?.pin(&netns)?;
        Ok(Pod {
            name: name.to_owned(),
            container: container.to_owned(),
            netns,
        })
    }

    /// Removes a sandbox and the pod from the API.
    pub fn remove(&self, pod: &Pod) -> Outcome {
        Namespace::unpin(&pod.netns)?;
        self.api.delete(
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": NAMESPACE, "name": pod.name}}),
        )
    }

    /// Starts the plugin.
    pub fn plugin(&self, verb: &str, pod: &Pod) -> Outcome<Child> {
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={0};K8S_POD_UID=uid-{0}",
            pod.name
        );
        let plugin = Command::new(program("skep-cni"))
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CNI_CONTAINERID", &pod.container)
            .env("CNI_NETNS", &pod.netns)
            .env("CNI_ARGS", arguments)
            .env("CILIUM_SOCK", self.world.socket())
            // A file: who starts it may be held back at writes.
            .stdin(File::open(self.world.directory.join(CONFIGURATION))?)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(plugin)
    }

    /// Adds a pod; the result.
    ///
    /// # Errors
    /// The plugin's, as it prints it.
    pub fn add(&self, pod: &Pod) -> Outcome<Value> {
        let text = printed(&self.plugin("ADD", pod)?.wait_with_output()?)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Deletes a pod's endpoint.
    ///
    /// # Errors
    /// The plugin's, as it prints it.
    pub fn delete(&self, pod: &Pod) -> Outcome {
        printed(&self.plugin("DEL", pod)?.wait_with_output()?).map(drop)
    }

    /// The agent's API.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::at(&self.world.socket())
    }

    /// The endpoint of a pod, as the agent shows it; `null` if there is none.
    pub fn endpoint(&self, pod: &Pod) -> Outcome<Value> {
        match self
            .client()
            .get(&format!("endpoint/container-id:{}", pod.container), &[])
        {
            Err(ClientError::Refused { status: 404, .. }) => Ok(Value::Null),
            found => Ok(found?),
        }
    }

    /// Names of the objects of a resource of `cilium.io/v2`.
    pub fn objects(&self, plural: &str) -> Outcome<BTreeSet<String>> {
        let resource = Gvr::new("cilium.io", "v2", plural);
        let list = self.api.server().list(&resource, None, &ListOptions::default())?;
        let names = list
            .items
            .iter()
            .map(|object| object["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        Ok(names.collect())
    }

    /// An object of a resource of `cilium.io/v2`.
    pub fn object(&self, plural: &str, name: &str) -> Outcome<Value> {
        let resource = Gvr::new("cilium.io", "v2", plural);
        let namespace = namespace_of(plural);
        Ok((*self.api.server().get(&resource, namespace, name)?).clone())
    }

    /// Writes an object as it is but for an annotation: it has another version then.
    pub fn touch(&self, plural: &str, name: &str) -> Outcome {
        let resource = Gvr::new("cilium.io", "v2", plural);
        let patch = json!({"metadata": {"annotations": {"touched": format!("{:?}", Instant::now())}}});
        let (patch, options) = (Patch::Merge(patch), WriteOptions::default());
        let server = self.api.server();
        // It may be gone just now.
        let _ = server.patch(
            &resource,
            namespace_of(plural),
            name,
            Subresource::None,
            &patch,
            &options,
        );
        Ok(())
    }

    pub fn delete_object(&self, plural: &str, name: &str) -> Outcome {
        let resource = Gvr::new("cilium.io", "v2", plural);
        let options = DeleteOptions::default();
        self.api
            .server()
            .delete(&resource, namespace_of(plural), name, &options)?;
        Ok(())
    }

    /// Waits until all that is counted is as it was.
    ///
    /// # Errors
    /// With the difference, if that takes too long.
    pub async fn nothing_leaks(&self, before: &LeakCount) -> Outcome<LeakCount> {
        let look = || Ok(before.difference(&LeakCount::take(self)?));
        self.world.wait("nothing leaks", look, str::is_empty).await?;
        LeakCount::take(self)
    }
}

fn namespace_of(plural: &str) -> &'static str {
    match plural {
        "ciliumendpoints" => NAMESPACE,
        _ => "",
    }
}

/// What the plugin printed.
///
/// # Errors
/// That, if it failed.
pub fn printed(output: &Output) -> Outcome<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!(
            "{}: {text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}

/// All that an endpoint leaves on a node and in the API, by kind and name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeakCount(BTreeMap<&'static str, BTreeSet<String>>);

impl LeakCount {
    /// Counts what is there now. The agent must run.
    pub fn take(pods: &Pods) -> Outcome<Self> {
        let mut count = Self::default();
        count.add_network()?;
        count.add_maps(&pods.world.bpf_root)?;
        let pins = count.0.entry("pins").or_default();
        add_files(&pods.world.bpf_root, pins)?;
        count.add("state files", state_files());
        for (kind, plural) in [
            ("CiliumEndpoints", "ciliumendpoints"),
            ("CiliumIdentities", "ciliumidentities"),
        ] {
            count.add(kind, pods.objects(plural)?);
        }
        let status: Value = pods.client().get("healthz", &[])?;
        let allocations = status["ipam"]["allocations"].as_object();
        count.add(
            "allocated IPs",
            allocations.into_iter().flatten().map(|(ip, _)| ip.clone()),
        );
        let endpoints: Vec<Value> = pods.client().get("endpoint", &[])?;
        count.add(
            "endpoints",
            endpoints.iter().map(|endpoint| endpoint["id"].to_string()),
        );
        let identities: Vec<Value> = pods.client().get("identity/endpoints", &[])?;
        count.add(
            "identities in use",
            identities
                .iter()
                .map(|row| format!("{} {}", row["identity"]["id"], row["refCount"])),
        );
        Ok(count)
    }

    /// What is there once the agent has added what is its own: the endpoint of the node, routes.
    pub async fn settled(pods: &Pods) -> Outcome<Self> {
        let deadline = Instant::now() + patience();
        loop {
            let count = Self::take(pods)?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let has_host = count.0["identities in use"]
                .iter()
                .any(|used| used.starts_with("1 "));
            if has_host && Self::take(pods)? == count {
                return Ok(count);
            }
            if Instant::now() > deadline {
                return Err(format!("the node does not settle: {count:?}").into());
            }
        }
    }

    fn add(&mut self, kind: &'static str, names: impl IntoIterator<Item = String>) {
        self.0.entry(kind).or_default().extend(names);
    }

    fn add_network(&mut self) -> Outcome {
        let net = Netlink::open()?;
        let links = net.links()?;
        for link in &links {
            let addresses = net.addresses(link)?;
            let name = |address: &skep_base_net::Address| format!("{} {}", link.name, address.address);
            self.add("addresses", addresses.iter().map(name));
        }
        self.add("interfaces", links.into_iter().map(|link| link.name));
        let routes = net.routes(&RouteFilter::default())?;
        self.add(
            "routes",
            routes.iter().map(|route| {
                format!(
                    "{} dev {:?} table {}",
                    route.destination, route.device, route.table
                )
            }),
        );
        let rules = net.list(RouteNetlinkMessage::GetRule(RuleMessage::default()), "list rules")?;
        self.add("rules", rules.iter().map(|rule| format!("{rule:?}")));
        Ok(())
    }

    fn add_maps(&mut self, root: &Path) -> Outcome {
        let store = MapStore::new(root);
        for name in MAPS {
            let keys = self.0.entry(name).or_default();
            store.open_raw(name)?.walk(&mut |key, _| {
                keys.insert(format!("{key:02x?}"));
            })?;
        }
        Ok(())
    }

    /// Removes a kind: it is counted elsewhere.
    #[must_use]
    pub fn without(mut self, kind: &str) -> Self {
        self.0.remove(kind);
        self
    }

    /// What is there now and was not before, and the other way round; empty if all is the same. Kinds that were not counted
    /// before do not count.
    #[must_use]
    pub fn difference(&self, now: &Self) -> String {
        let mut text = String::new();
        for (kind, before) in &self.0 {
            let none = BTreeSet::new();
            let now = now.0.get(kind).unwrap_or(&none);
            for name in now.difference(before) {
                text.push_str(&format!("{kind}: {name} is left\n"));
            }
            for name in before.difference(now) {
                text.push_str(&format!("{kind}: {name} is gone\n"));
            }
        }
        text
    }

    /// A table of counts.
    #[must_use]
    pub fn table(title: &str, columns: &[(&str, &Self)]) -> String {
        let mut text = format!("{title:<20}");
        for (name, _) in columns {
            text.push_str(&format!("{name:>12}"));
        }
        let kinds: BTreeSet<&str> = columns
            .iter()
            .flat_map(|(_, count)| count.0.keys().copied())
            .collect();
        for kind in kinds {
            text.push_str(&format!("\n{kind:<20}"));
            for (_, count) in columns {
                let number = count.0.get(kind).map(|names| names.len().to_string());
                text.push_str(&format!("{:>12}", number.unwrap_or_else(|| "-".to_owned())));
            }
        }
        text
    }
}

impl fmt::Display for LeakCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::table("", &[("count", self)]))
    }
}

fn add_files(directory: &Path, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => add_files(&entry.path(), found)?,
            false => {
                found.insert(entry.path().display().to_string());
            }
        }
    }
    Ok(())
}

/// Directories of endpoints, whatever their state, and queued deletions.
fn state_files() -> BTreeSet<String> {
    let of = |folder: &str| {
        let entries = fs::read_dir(Path::new(RUN).join(folder));
        let entries = entries.into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let endpoints = of("state").filter(|name| name.starts_with(|first: char| first.is_ascii_digit()));
    let queued = of("deleteQueue").filter(|name| name.ends_with(".delete"));
    endpoints.chain(queued).collect()
}
