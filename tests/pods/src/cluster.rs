// SPDX-License-Identifier: Apache-2.0

//! A node with an agent, as in the recordings: interfaces, Kubernetes, pods that the plugin added.

mod http;
mod names;
mod objects;
mod policies;
mod site;

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    net::TcpListener as StdListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use serde_json::{Value, json};
use skep_base_net::{LinkSpec, Netlink, Route};
use skep_bpf_sys::testing::{Node, Pod};
use skep_k8s_apiserver::{HttpOptions, HttpServer, OpenApiSchemas};
use skep_k8s_memory::{
    ApiServer, Gvr, Mode, Patch, Registry, Rows, Settings, Subresource, Tracker, WriteOptions,
};
use skep_listen::BoundTcp;
use statedb::Db;
use tokio_util::sync::CancellationToken;

pub(crate) use self::http::{Response, request, request_url};
use self::site::Site;
use crate::{Boxed, bindings::Bindings, metrics, program, scene::Scene};

/// Where the API server listens: on the machine behind the node's interface.
const API: &str = "172.30.40.10:6443";
const API_URL: &str = "http://172.30.40.10:6443";
const SOCKET: &str = "/run/cilium/cilium.sock";
/// How long the agent may take to start, and to be as expected.
const PATIENCE: Duration = Duration::from_secs(30);

/// The recorded node.
pub(crate) struct Cluster<'a> {
    node: &'a Node,
    outside: Pod,
    site: Site,
    scene: Scene,
    api: ApiServer,
    stop: CancellationToken,
    server: Option<JoinHandle<()>>,
    agent: Option<Child>,
    /// Namespaces and container ids of pods, by `namespace/name`.
    pods: BTreeMap<String, (Pod, String)>,
}

impl<'a> Cluster<'a> {
    /// Makes the node of a recording and its API server, without an agent.
    pub(crate) fn new(node: &'a Node, recording: &Value) -> Result<Self, Boxed> {
        let site = Site::of(recording);
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
        for folder in ["/run/netns", "/run/cilium/state"] {
            fs::create_dir_all(folder)?;
        }
        // What the agent keeps elsewhere must not be that of this machine.
        for folder in ["/var/lib/cilium", "/etc/cni"] {
            if Path::new(folder).is_dir() {
                mount("tmpfs", folder, "tmpfs", MountFlags::empty(), None)?;
            }
        }
        // Where the agent has them by default.
        mount_bind(node.bpf_root(), "/sys/fs/bpf")?;
        fs::create_dir_all("/run/cilium/cgroupv2")?;
        mount_bind(node.cgroup_root(), "/run/cilium/cgroupv2")?;
        let outside = node.pod("outside")?;
        network(&outside, &site)?;
        let (api, stop) = (api(&site)?, CancellationToken::new());
        let server = serve(&outside, &site, api.clone(), stop.clone())?;
        let mut cluster = Self {
            node,
            outside,
            site,
            scene: Scene::default(),
            api,
            stop,
            server: Some(server),
            agent: None,
            pods: BTreeMap::new(),
        };
        cluster.adjust(recording)?;
        Ok(cluster)
    }

    /// Changes nodes and namespaces to those that the recording shows.
    fn adjust(&mut self, recording: &Value) -> Result<(), Boxed> {
        let scene = Scene::of(recording);
        let patch = |version: &str, kind: &str, name: &str, part: Subresource, patch: Value| {
            let kind = kind_of(&json!({"apiVersion": version, "kind": kind}));
            let (patch, options) = (Patch::Merge(patch), WriteOptions::default());
            self.api.patch(&kind, "", name, part, &patch, &options)
        };
        for (name, labels) in &scene.namespaces {
            let labels = json!({"metadata": {"labels": labels}});
            // Some namespaces were of other scenarios.
            let _ = patch("v1", "Namespace", name, Subresource::None, labels);
        }
        for node in &scene.nodes {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            let meta = json!({"metadata": node["metadata"]});
            // Nodes of which nothing depends are not made.
            if patch("v1", "Node", name, Subresource::None, meta).is_ok() {
                let status = json!({"status": node["status"]});
                patch("v1", "Node", name, Subresource::Status, status)?;
            }
        }
        for remote in &scene.remotes {
            let name = remote["metadata"]["name"].as_str().unwrap_or_default();
            let known = patch(
                "cilium.io/v2",
                "CiliumNode",
                name,
                Subresource::None,
                remote.clone(),
            );
            if known.is_err() {
                create(&self.api, remote)?;
            }
        }
        for identity in scene.identities_before() {
            create(&self.api, &identity)?;
        }
        self.scene = scene;
        Ok(())
    }

    /// Starts the agent; returns when it is ready.
    pub(crate) fn start(&mut self) -> Result<(), Boxed> {
        let log = fs::File::create(self.log())?;
        let mut command = Command::new(program("skep-agent")?);
        let settings = self.node.directory().join("settings");
        fs::create_dir_all(&settings)?;
        let cgroup = self.node.cgroup_root().display().to_string();
        let own = [
            ("k8s-api-server-urls", API_URL),
            ("cgroup-root", &cgroup),
            // Mounted there.
            ("bpf-root", "/sys/fs/bpf"),
        ];
        let metrics = self
            .site
            .has_metrics
            .then_some(("prometheus-serve-addr", metrics::ADDRESS));
        let own = own.into_iter().chain(metrics);
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        // A key that the agent does not know is ignored in a mounted ConfigMap.
        for (key, value) in objects::settings(&self.site.profile).into_iter().chain(own) {
            fs::write(settings.join(key), value)?;
        }
        command
            .arg(format!("--config-dir={}", settings.display()))
            .env("K8S_NODE_NAME", self.site.name())
            .env("CILIUM_K8S_NAMESPACE", "kube-system")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.agent = Some(command.spawn()?);
        let (started, lenient) = (Instant::now(), Duration::from_secs(10));
        self.until("agent is ready", |cluster| {
            cluster.operate();
            let health = cluster.ask("GET", "/v1/healthz").ok()?;
            // A part that is degraded for good, such as a device that the recorder had, must not keep the rest from running.
            let is_well = health.body["cilium"]["state"] == "Ok";
            let configuration = cluster.ask("GET", "/v1/config").ok()?.body;
            let addressing = configuration["status"]["addressing"].as_object()?;
            let mut enabled = addressing.values().filter(|family| family["enabled"] == true);
            let is_well =
                is_well && enabled.all(|family| !family["ip"].is_null()) || started.elapsed() > lenient;
            (health.status == 200 && is_well).then_some(())
        })
    }

    /// Allocates the networks of the node as the operator does.
    fn operate(&self) {
        let Some(patch) = objects::networks(&self.site.profile) else {
            return;
        };
        let kind = Gvr::new("cilium.io", "v2", "ciliumnodes");
        let Ok(node) = self.api.get(&kind, "", &self.site.name()) else {
            return;
        };
        let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
        let ipam = &node["spec"]["ipam"];
        if is_empty(&ipam["podCIDRs"]) && is_empty(&ipam["pools"]["allocated"]) {
            let (patch, options) = (Patch::Merge(patch), WriteOptions::default());
            for part in [Subresource::None, Subresource::Status] {
                let _ = self
                    .api
                    .patch(&kind, "", &self.site.name(), part, &patch, &options);
            }
        }
    }

    fn log(&self) -> PathBuf {
        self.node.directory().join("agent.log")
    }

    /// Waits until `look` finds something.
    pub(crate) fn until<T>(&mut self, what: &str, look: impl Fn(&Self) -> Option<T>) -> Result<T, Boxed> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            let ended = match &mut self.agent {
                Some(agent) => agent.try_wait()?,
                None => None,
            };
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(5)..].join(" | ");
                return Err(format!("not in time: {what}; the agent: {ended:?}, {last}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn api(&self) -> &ApiServer {
        &self.api
    }

    /// Deletes a pod's endpoint by the plugin.
    pub(crate) fn delete(&self, namespace: &str, name: &str) -> Result<(), Boxed> {
        self.plugin("DEL", namespace, name, "").map(drop)
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> Result<Response, Boxed> {
        request(Path::new(SOCKET), method, path, &[], None)
    }

    /// Waits until as many probes of nodes succeed as in the recording.
    pub(crate) fn wait_probed(&mut self) {
        let health = Path::new("/run/cilium/health.sock");
        let successes = self.site.successes;
        // What has not come is a difference of the answers.
        let _ = self.until("nodes are probed", |_| {
            let status = request(health, "GET", "/v1beta/status", &[], None).ok()?.body;
            (site::successes(&status) >= successes).then_some(())
        });
    }

    /// Waits until the router's addresses are those of an interface, and in the map of endpoints.
    pub(crate) fn wait_router(&mut self) -> Result<(), Boxed> {
        let configuration = self.ask("GET", "/v1/config")?.body;
        let addressing = configuration["status"]["addressing"].as_object();
        let families = addressing.into_iter().flat_map(|families| families.values());
        let routers: Vec<String> = families
            .filter_map(|family| family["ip"].as_str().map(str::to_owned))
            .collect();
        // Programs are loaded again once the networks of the node are known.
        let _ = self.until("programs have the networks of the node", |cluster| {
            let masquerading = &cluster.ask("GET", "/v1/healthz").ok()?.body["masquerading"];
            let has = |family: &str| {
                let network = format!("snat-exclusion-cidr-{}", family.replace("ip", ""));
                masquerading["enabledProtocols"][family] != true || masquerading[network].is_string()
            };
            (has("ipv4") && has("ipv6")).then_some(())
        });
        let skep = program("skep")?;
        self.until("router has its addresses", |_| {
            let places: [&[&str]; 2] = [
                &["shell", "db/show", "node-addresses"],
                &["bpf", "endpoint", "list"],
            ];
            let is_shown = |words: &[&str]| {
                let output = Command::new(&skep).args(words).output().ok()?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                routers
                    .iter()
                    .all(|router| text.contains(router.as_str()))
                    .then_some(())
            };
            places.into_iter().try_for_each(is_shown)
        })
    }

    /// Whether the recorded node had the pods and objects of the scene.
    pub(crate) fn has_scene(&self) -> bool {
        let profile = self.site.profile.split(' ').next().unwrap_or_default();
        profile == "S" || profile.starts_with("CP")
    }

    /// Creates the objects of the recorded scene, and its pods.
    pub(crate) fn scene(&mut self) -> Result<(), Boxed> {
        let asked = self.site.asked.clone();
        let mut reserved = Vec::new();
        for address in asked {
            let path = format!("/v1/ipam/{address}?pool=default");
            if self.ask("POST", &path)?.status == 200 {
                reserved.push(path);
            }
        }
        let pods = objects::pods().into_iter();
        let pods: Vec<Value> = pods.filter_map(|pod| self.scene.pod(pod)).collect();
        for pod in &pods {
            create(&self.api, pod)?;
        }
        for object in objects::services() {
            create(&self.api, &object)?;
            if let Some(written) = object.get("status") {
                write_status(&self.api, &object, json!({"status": written}))?;
            }
        }
        let (mut server, mut slices): (Option<std::net::IpAddr>, Vec<Value>) = (None, Vec::new());
        for pod in pods {
            if pod["spec"]["hostNetwork"] == true {
                status(&self.api, &pod, &[self.site.ipv4()])?;
                continue;
            }
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let container = objects::container(&name);
            let result = self.add(&pod, container)?;
            let ips = result["ips"].as_array().into_iter().flatten();
            let mut ips: Vec<String> = ips
                .filter_map(|ip| Some(ip["address"].as_str()?.split('/').next()?.to_owned()))
                .collect();
            ips.sort_by_key(|ip| ip.contains(':'));
            if name == "cart-0" {
                server = ips.first().and_then(|ip| ip.parse().ok());
            }
            status(&self.api, &pod, &ips)?;
            slices.extend(objects::slices(&name, &ips));
        }
        // Ids of backends are in the order of the services.
        let label = "/metadata/labels/kubernetes.io~1service-name";
        for service in objects::services() {
            let of_service = |slice: &&Value| slice.pointer(label) == Some(&service["metadata"]["name"]);
            for slice in slices.iter().filter(of_service) {
                create(&self.api, slice)?;
            }
        }
        for path in reserved {
            self.ask("DELETE", &path)?;
        }
        let policies = policies::policies(&self.site.profile);
        for policy in &policies {
            create(&self.api, policy)?;
        }
        let revision = 1 + policies.len() as u64;
        let is_done = |cluster: &Self| -> Option<()> {
            let endpoints = cluster.ask("GET", "/v1/endpoint").ok()?.body;
            let mut all = endpoints.as_array()?.iter().filter(|endpoint| {
                let labels = endpoint["status"]["identity"]["labels"].to_string();
                !labels.contains("reserved:host")
            });
            let is_done = |endpoint: &Value| {
                let realized = &endpoint["status"]["policy"]["realized"]["policy-revision"];
                endpoint["status"]["state"] == "ready" && realized.as_u64() >= Some(revision)
            };
            all.all(is_done).then_some(())
        };
        // What is not realized shows in what is compared.
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_done(self).is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let pods = ["gc-shop/cart-0", "gc-shop/web-7d9f"].map(|name| self.pods.get(name));
        if let (true, Some(address), [Some((at, _)), Some((from, _))]) =
            (self.site.profile.starts_with('S'), server, pods)
        {
            names::look_up(at, from, (address, 53).into())?;
        }
        Ok(())
    }

    /// Adds a pod by the plugin; its result.
    pub(crate) fn add(&mut self, pod: &Value, container: &str) -> Result<Value, Boxed> {
        let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let netns = format!("gc-s-{name}");
        let path = Path::new("/run/netns").join(&netns);
        fs::write(&path, "")?;
        let place = self.node.pod(&netns)?;
        mount_bind(place.path(), &path)?;
        self.pods
            .insert(format!("{namespace}/{name}"), (place, container.to_owned()));
        self.plugin("ADD", &namespace, &name, &text("uid"))
    }

    /// Runs the plugin for a pod that was added.
    fn plugin(&self, command: &str, namespace: &str, name: &str, uid: &str) -> Result<Value, Boxed> {
        let (_, container) = self
            .pods
            .get(&format!("{namespace}/{name}"))
            .ok_or_else(|| format!("no pod {namespace}/{name}"))?;
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};\
             K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID={uid}"
        );
        let mut process = Command::new(program("skep-cni")?)
            .env_clear()
            .envs([
                ("CNI_COMMAND", command),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/opt/cni/bin"),
                ("CNI_CONTAINERID", container),
                ("CNI_NETNS", &format!("/var/run/netns/gc-s-{name}")),
                ("CNI_ARGS", &arguments),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let configuration = json!({"cniVersion": "1.0.0", "name": "cilium", "type": "cilium-cni"});
        if let Some(mut stdin) = process.stdin.take() {
            stdin.write_all(configuration.to_string().as_bytes())?;
        }
        let output = process.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        match output.status.success() {
            true => Ok(serde_json::from_str(&text).unwrap_or_default()),
            false => Err(format!("{command} of {namespace}/{name}: {text}").into()),
        }
    }

    /// Makes what a restored endpoint is found by: its namespace with its interfaces, its pod and its identity.
    pub(crate) fn restorable(&mut self, config: &mut Value, bindings: &mut Bindings) -> Result<(), Boxed> {
        let filled = bindings.fill(config);
        let text = |key: &str| filled[key].as_str().unwrap_or_default().to_owned();
        let (interface, netns) = (text("IfName"), text("ContainerNetnsPath"));
        // Endpoints of chained plugins have no path of a namespace, nor have the host and the health endpoint.
        let name = match (netns.rsplit('/').next(), text("K8sPodName")) {
            (None | Some(""), pod) if pod.is_empty() => return Ok(()),
            (None | Some(""), pod) => format!("gc-{pod}"),
            (Some(name), _) => name.to_owned(),
        };
        let path = Path::new("/run/netns").join(&name);
        if !path.exists() {
            fs::write(&path, "")?;
            let place = self.node.pod(&name)?;
            mount_bind(place.path(), &path)?;
            fs::create_dir_all("/run/cilium/netns")?;
            fs::write(Path::new("/run/cilium/netns").join(&name), "")?;
            mount_bind(place.path(), Path::new("/run/cilium/netns").join(&name))?;
        }
        let mac = |key: &str| {
            let octets: Option<Vec<u8>> = text(key)
                .split(':')
                .map(|octet| u8::from_str_radix(octet, 16).ok())
                .collect();
            octets.and_then(|octets| <[u8; 6]>::try_from(octets).ok())
        };
        let file = fs::File::open(&path)?;
        let container = text("ContainerIfName");
        let mut peer = LinkSpec::new()
            .name(if container.is_empty() { "eth0" } else { &container })
            .netns(std::os::fd::AsFd::as_fd(&file));
        if let Some(mac) = mac("LXCMAC") {
            peer = peer.mac(mac);
        }
        let net = Netlink::open()?;
        let mut spec = LinkSpec::veth(&interface, peer);
        if let Some(mac) = mac("NodeMAC") {
            spec = spec.mac(mac);
        }
        net.add_link(spec)?;
        let link = net.link(&interface)?;
        net.set_link(&link, LinkSpec::new().up())?;
        if let Some(name) = config["IfIndex"]
            .as_str()
            .and_then(|text| text.strip_prefix("${"))
        {
            bindings.bind(name.trim_end_matches('}'), &link.index.into());
        }
        let labels = filled["SecLabel"]["labels"].as_object().into_iter().flatten();
        let labels: serde_json::Map<String, Value> = labels
            .filter_map(|(key, label)| {
                Some((
                    format!("{}:{key}", label["source"].as_str()?),
                    label["value"].as_str().unwrap_or_default().into(),
                ))
            })
            .collect();
        let identity = &filled["SecLabel"]["id"];
        if identity.as_u64().is_some_and(|id| id > 255) {
            create(
                &self.api,
                &json!({
                    "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity",
                    "metadata": {"name": identity.to_string()}, "security-labels": labels,
                }),
            )?;
        }
        let (namespace, pod) = (text("K8sNamespace"), text("K8sPodName"));
        if !pod.is_empty() {
            let labels = filled["OpLabels"]["OrchestrationIdentity"]
                .as_object()
                .into_iter()
                .flatten();
            let labels: serde_json::Map<String, Value> = labels
                .filter(|(key, _)| !key.starts_with("io."))
                .map(|(key, label)| (key.clone(), label["value"].as_str().unwrap_or_default().into()))
                .collect();
            create(
                &self.api,
                &json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": pod, "namespace": namespace, "labels": labels},
                    "spec": {"nodeName": self.site.name(), "containers": [{"name": "c", "image": "c"}]},
                }),
            )?;
        }
        Ok(())
    }

    /// Binds the names of the scene to what the agent has.
    pub(crate) fn bind(&self, bindings: &mut Bindings) -> Result<(), Boxed> {
        let endpoints = self.ask("GET", "/v1/endpoint")?.body;
        for endpoint in endpoints.as_array().into_iter().flatten() {
            let status = &endpoint["status"];
            let is = |label: &str| {
                let labels = status["identity"]["labels"].as_array();
                labels.is_some_and(|labels| labels.iter().any(|found| found == label))
            };
            let pod = status["external-identifiers"]["k8s-pod-name"]
                .as_str()
                .unwrap_or_default();
            let name = match pod {
                "" if is("reserved:host") => "HOST".to_owned(),
                "" if is("reserved:health") => "HEALTH".to_owned(),
                "" if is("reserved:ingress") => "INGRESS".to_owned(),
                pod => pod.to_uppercase().replace(['-', '.'], "_"),
            };
            let addressing = &status["networking"]["addressing"][0];
            for (key, value) in [
                (format!("EP_{name}"), &endpoint["id"]),
                (format!("ID_{name}"), &status["identity"]["id"]),
                (format!("{name}_IPV4"), &addressing["ipv4"]),
                (format!("{name}_IPV6"), &addressing["ipv6"]),
                (format!("{name}_MAC"), &status["networking"]["mac"]),
                (format!("{name}_HOST_MAC"), &status["networking"]["host-mac"]),
            ] {
                bindings.bind(&key, value);
            }
        }
        let addressing = &self.ask("GET", "/v1/config")?.body["status"]["addressing"];
        bindings.bind("ROUTER_IPV4", &addressing["ipv4"]["ip"]);
        bindings.bind("ROUTER_IPV6", &addressing["ipv6"]["ip"]);
        Ok(())
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        // Keeps its namespace until here.
        let _ = self.outside.path();
    }
}

/// The interface of the node, and the machine behind it, which is all other nodes, too.
fn network(outside: &Pod, site: &Site) -> Result<(), Boxed> {
    let file = fs::File::open(outside.path())?;
    let peer = LinkSpec::new()
        .name("eth0")
        .mac([0x02, 0x40, 0, 0, 0, 0x0a])
        .netns(std::os::fd::AsFd::as_fd(&file));
    let net = Netlink::open()?;
    for scope in ["all", "default"] {
        skep_base_net::sysctl::set(&format!("net/ipv6/conf/{scope}/accept_dad"), "0")?;
        // As on nodes of Kubernetes.
        for family in ["ipv4", "ipv6"] {
            skep_base_net::sysctl::set(&format!("net/{family}/conf/{scope}/forwarding"), "1")?;
        }
    }
    for forwarding in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        skep_base_net::sysctl::set(forwarding, "1")?;
    }
    net.add_link(LinkSpec::veth("eth0", peer).mac([0x02, 0x40, 0, 0, 0, site.own]))?;
    let up = |net: &Netlink, addresses: Vec<String>| -> Result<(), Boxed> {
        let link = net.link("eth0")?;
        net.set_link(&link, LinkSpec::new().up())?;
        for address in addresses {
            net.add_address(&link, address.parse()?)?;
        }
        Ok(())
    };
    let own = |ipv4: String, ipv6: String| [format!("{ipv4}/24"), format!("{ipv6}/64")];
    up(&net, own(site.ipv4(), site.ipv6()).into())?;
    let mut outer: Vec<String> = [
        "172.30.40.10/24",
        "172.30.40.3/24",
        "fd00:30:40::10/64",
        "fd00:30:40::3/64",
    ]
    .map(ToOwned::to_owned)
    .into();
    if let Some(other) = site.peer() {
        outer.extend(own(other.ipv4(), other.ipv6()));
        if other.has_health {
            let [ipv4, ipv6] = &other.health;
            outer.extend([format!("{ipv4}/32"), format!("{ipv6}/128")]);
        }
    }
    outside.run(|| up(&Netlink::open()?, outer))?;
    let device = net.link("eth0")?.index;
    for (network, gateway) in [("0.0.0.0/0", "172.30.40.3"), ("::/0", "fd00:30:40::3")] {
        net.add_route(&Route {
            device: Some(device),
            gateway: Some(gateway.parse()?),
            ..Route::to(network.parse()?)
        })?;
    }
    Ok(())
}

/// An API server with the nodes of a recording.
fn api(site: &Site) -> Result<ApiServer, Boxed> {
    let settings = Settings {
        service_networks: vec!["10.96.0.0/16".parse()?, "fd00:96::/112".parse()?],
        schemas: Some(Arc::new(OpenApiSchemas)),
        ..Settings::default()
    };
    let tracker = Tracker::new(Rows::new(&Db::new())?, 1_000, false);
    let api = ApiServer::new(tracker, Registry::with_extensions(), Mode::Real(settings));
    for definition in skep_k8s_crds::definitions::cilium() {
        create(&api, &definition.to_object())?;
    }
    for object in objects::base(site) {
        create(&api, &object)?;
        if object["kind"] == "Node" {
            let patch = json!({"status": object["status"]});
            write_status(&api, &object, patch)?;
        }
    }
    Ok(api)
}

/// The API server, and what other nodes answer to probes of their health.
fn serve(
    outside: &Pod,
    site: &Site,
    api: ApiServer,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, Boxed> {
    // A socket belongs to the namespace in which it was made.
    let listener = outside.run(|| StdListener::bind(API))?;
    listener.set_nonblocking(true)?;
    let health = match site.peer() {
        Some(peer) if peer.is_up => Some(outside.run(|| StdListener::bind("[::]:4240"))?),
        _ => None,
    };
    if let Some(health) = &health {
        health.set_nonblocking(true)?;
    }
    Ok(std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            if let Some(Ok(health)) = health.map(tokio::net::TcpListener::from_std) {
                tokio::spawn(answer_probes(health));
            }
            let listener = tokio::net::TcpListener::from_std(listener).and_then(BoundTcp::new);
            if let Ok(listener) = listener {
                HttpServer::with_listener(listener, api, HttpOptions::default())
                    .serve(stop)
                    .await;
            }
        });
    }))
}

async fn answer_probes(listener: tokio::net::TcpListener) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let _ = stream.write_all(answer).await;
    }
}

/// Kind of an object, for requests.
pub(crate) fn kind_of(object: &Value) -> Gvr {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => kind,
        None => format!("{kind}s"),
    };
    Gvr::new(group, version, &plural)
}

pub(crate) fn create(api: &ApiServer, object: &Value) -> Result<(), Boxed> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let created = api.create(
        &kind_of(object),
        namespace,
        object.clone(),
        &WriteOptions::default(),
    );
    match created {
        // The server makes some namespaces by itself.
        Err(error) if !error.to_string().contains("already exists") => {
            Err(format!("{}: {error}", object["metadata"]["name"]).into())
        }
        _ => Ok(()),
    }
}

fn status(api: &ApiServer, pod: &Value, ips: &[String]) -> Result<(), Boxed> {
    let all: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    let status = json!({"status": {
        "phase": "Running", "hostIP": "172.30.40.1", "podIP": ips.first(), "podIPs": all,
    }});
    write_status(api, pod, status)
}

/// A value without labels of the account that the recorder's API server did not give to pods.
pub(crate) fn without_default_account(value: &Value) -> Value {
    const LABEL: &str = "k8s:io.cilium.k8s.policy.serviceaccount";
    let is_label = |value: &Value| {
        value
            .as_str()
            .is_some_and(|text| text == format!("{LABEL}=default"))
    };
    match value {
        Value::Array(list) => list
            .iter()
            .filter(|value| !is_label(value))
            .map(without_default_account)
            .collect(),
        Value::Object(object) => {
            let kept = object
                .iter()
                .filter(|(key, value)| !(*key == LABEL || *key == "service-account") || *value != "default");
            Value::Object(
                kept.map(|(key, value)| (key.clone(), without_default_account(value)))
                    .collect(),
            )
        }
        other => other.clone(),
    }
}

fn write_status(api: &ApiServer, object: &Value, patch: Value) -> Result<(), Boxed> {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
    let patched = api.patch(
        &kind_of(object),
        text("namespace"),
        text("name"),
        Subresource::Status,
        &Patch::Merge(patch),
        &WriteOptions::default(),
    );
    Ok(patched.map(drop)?)
}
