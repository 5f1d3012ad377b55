// SPDX-License-Identifier: Apache-2.0

//! Settings of the profiles, and objects of the recorded cluster.

use serde_json::{Value, json};

use super::Site;

/// Settings of the agent in a profile: its first letters, and what follows as `with KEY=VALUE`.
pub(super) fn settings(profile: &str) -> Vec<(String, String)> {
    let (name, more) = profile.split_once(' ').unwrap_or((profile, ""));
    let mut all = vec![
        "kube-proxy-replacement=true",
        "enable-ipv4=true",
        "enable-ipv6=true",
        "enable-ipv4-masquerade=true",
        "enable-ipv6-masquerade=true",
        "enable-bpf-masquerade=true",
        "devices=eth0",
        "identity-allocation-mode=crd",
        "ipam=kubernetes",
        "routing-mode=native",
        "ipv4-native-routing-cidr=10.0.0.0/8",
        "ipv6-native-routing-cidr=fd00:10::/32",
        "preallocate-bpf-maps=true",
        "bpf-map-dynamic-size-ratio=0",
        "bpf-ct-global-tcp-max=16384",
        "bpf-ct-global-any-max=8192",
        "bpf-nat-global-max=24576",
        "bpf-neigh-global-max=24576",
        "bpf-sock-rev-map-max=16384",
        "enable-health-checking=true",
        "enable-endpoint-health-checking=true",
        "enable-source-ip-verification=false",
        "write-cni-conf-when-ready=/etc/cni/net.d/05-cilium.conflist",
        "external-envoy-proxy=true",
        "enable-l7-proxy=false",
    ];
    all.extend(match name {
        "S" => &[
            "enable-hubble=true",
            "enable-l7-proxy=true",
            "tofqdns-pre-cache=/etc/precache.json",
        ][..],
        "CONF" => &[
            "enable-ipv6=false",
            "enable-health-checking=false",
            "enable-endpoint-health-checking=false",
        ],
        "V4" => &["enable-ipv6=false"],
        "V6" => &["enable-ipv4=false"],
        "T" => &[
            "routing-mode=tunnel",
            "tunnel-protocol=vxlan",
            "enable-endpoint-routes=true",
            "annotate-k8s-node=true",
        ],
        "X" => &[
            "mtu=1400",
            "container-ip-local-reserved-ports=8472,9000-9010",
            "packetization-layer-pmtud-mode=always",
            "enable-ipv4-big-tcp=true",
            "enable-ipv6-big-tcp=true",
        ],
        "D" => &[
            "ipam=delegated-plugin",
            "local-router-ipv4=169.254.23.1",
            "local-router-ipv6=fe80::1234",
            "enable-health-checking=false",
            "enable-endpoint-health-checking=false",
        ],
        "CP" => &[
            "routing-mode=tunnel",
            "tunnel-protocol=vxlan",
            "ipam=cluster-pool",
            "enable-cilium-endpoint-slice=true",
        ],
        "MP" => &[
            "ipam=multi-pool",
            "ipam-multi-pool-pre-allocation=default=8,red=4,green=4",
            "ipv6-native-routing-cidr=fd00::/8",
        ],
        "CH" => &[
            "cni-chaining-mode=generic-veth",
            "cni-chaining-target=cbr0",
            "enable-endpoint-routes=true",
            "bpf-lb-sock-hostns-only=true",
        ],
        _ => &[],
    });
    let more = more.strip_prefix("with ").unwrap_or_default().split_whitespace();
    let more = more.map(|flag| flag.trim_start_matches("--"));
    let mut flags: Vec<(String, String)> = Vec::new();
    for flag in all.into_iter().chain(more) {
        let (key, value) = flag.split_once('=').unwrap_or((flag, "true"));
        // Later ones replace earlier ones.
        flags.retain(|(other, _)| other != key);
        flags.push((key.to_owned(), value.to_owned()));
    }
    let is = |key: &str, value: &str| flags.iter().any(|(other, found)| other == key && found == value);
    let is_tunnel = is("routing-mode", "tunnel");
    let has_pod_cidrs = is("ipam", "kubernetes") || is("ipam", "cluster-pool");
    for family in ["ipv4", "ipv6"] {
        let is_enabled = !flags.contains(&(format!("enable-{family}"), "false".to_owned()));
        if is_tunnel || !is_enabled {
            flags.retain(|(key, _)| *key != format!("{family}-native-routing-cidr"));
        }
        let key = format!("k8s-require-{family}-pod-cidr");
        if has_pod_cidrs && is_enabled && !flags.iter().any(|(other, _)| *other == key) {
            flags.push((key, "true".to_owned()));
        }
    }
    flags
}

fn node(name: &str, number: u8, networks: [&str; 2]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
            "pool": "blue", "topology.kubernetes.io/zone": format!("z{number}"),
        }},
        "spec": {"podCIDR": networks[0], "podCIDRs": networks},
        "status": {"addresses": [
            {"type": "InternalIP", "address": format!("172.30.40.{number}")},
            {"type": "InternalIP", "address": format!("fd00:30:40::{number}")},
            {"type": "Hostname", "address": name},
        ], "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// Nodes and namespaces.
pub(super) fn base(site: &Site) -> Vec<Value> {
    let profile = site.profile.as_str();
    let peer = site.peer();
    let numbers = [Some(site.own), peer.as_ref().map(|peer| peer.number)];
    let mut all: Vec<Value> = numbers
        .into_iter()
        .flatten()
        .map(|number| match number {
            1 => node("n1", 1, ["10.1.0.0/24", "fd00:10:1::/64"]),
            _ => node("n2", 2, ["10.2.0.0/29", "fd00:10:2::/125"]),
        })
        .collect();
    let mut first = all
        .iter_mut()
        .filter(|node| site.has_external && node["metadata"]["name"] == "n1");
    if let Some(addresses) = first
        .next()
        .and_then(|node| node["status"]["addresses"].as_array_mut())
    {
        addresses.insert(2, json!({"type": "ExternalIP", "address": "198.51.100.7"}));
    }
    if let Some(peer) = peer {
        let mut object = all.last().cloned().unwrap_or_default();
        let addresses = object["status"]["addresses"].as_array().into_iter().flatten();
        let mut addresses: Vec<Value> = addresses
            .filter(|address| address["type"] != "Hostname")
            .map(|address| json!({"type": address["type"], "ip": address["address"]}))
            .collect();
        let router = [
            format!("10.{}.0.4", peer.number),
            format!("fd00:10:{}::4", peer.number),
        ];
        addresses.extend(router.map(|ip| json!({"type": "CiliumInternalIP", "ip": ip})));
        object["apiVersion"] = "cilium.io/v2".into();
        object["kind"] = "CiliumNode".into();
        object["spec"] = json!({
            "addresses": addresses,
            "health": {"ipv4": peer.health[0], "ipv6": peer.health[1]},
            "ipam": {"podCIDRs": object["spec"]["podCIDRs"]},
        });
        object["status"] = json!({});
        all.push(object);
    }
    let namespaces = [
        ("default", None),
        ("kube-system", None),
        ("gc-shop", Some("blue")),
        ("gc-ops", Some("red")),
    ];
    all.extend(namespaces.map(|(name, team)| {
        let mut labels = json!({"kubernetes.io/metadata.name": name});
        if let Some(team) = team {
            labels["team"] = team.into();
        }
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    }));
    all.extend(["cart", "web"].map(|name| {
        let meta = json!({"name": name, "namespace": "gc-shop"});
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    }));
    if profile.starts_with("MP") {
        all.extend(pools());
    }
    all.push(service(
        "default",
        "kubernetes",
        json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
        "ports": [{"name": "https", "port": 443, "targetPort": 6443}]}),
    ));
    all.push(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "endpoints": [{"addresses": ["172.30.40.10"], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
    }));
    all
}

fn pools() -> [Value; 3] {
    let pool = |name: &str, number: u8| {
        json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool", "metadata": {"name": name},
            "spec": {
                "ipv4": {"cidrs": [format!("10.{number}.0.0/16")], "maskSize": 24},
                "ipv6": {"cidrs": [format!("fd00:{number}::/104")], "maskSize": 120},
            },
        })
    };
    let mut red = pool("red", 61);
    red["metadata"]["annotations"] = json!({"ipam.cilium.io/skip-masquerade": "true"});
    let mut green = pool("green", 62);
    green["spec"]["podSelector"] = json!({"matchLabels": {"pool": "green"}});
    [pool("default", 60), red, green]
}

/// What the operator writes to the CiliumNode in a profile.
pub(super) fn networks(profile: &str) -> Option<Value> {
    let ipam = match profile.split(' ').next()? {
        "CP" => json!({"podCIDRs": ["10.50.0.0/24", "fd00:50::/120"]}),
        "MP" => {
            let pool = |name: &str, number: u8| {
                let cidrs = [format!("10.{number}.0.0/24"), format!("fd00:{number}::/120")];
                json!({"pool": name, "cidrs": cidrs})
            };
            json!({"pools": {"allocated": [pool("default", 60), pool("green", 62), pool("red", 61)]}})
        }
        _ => return None,
    };
    let status = json!({"alibaba-cloud": {}, "azure": {}, "eni": {}, "ipam": {"operator-status": {}}});
    Some(json!({"spec": {"ipam": ipam}, "status": status}))
}

/// The pods of the scene.
pub(super) fn pods() -> Vec<Value> {
    let pod = |namespace: &str, name: &str, labels: Value, more: Value| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"topology.kubernetes.io/zone": "z1"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "c"}]},
        });
        for (part, value) in [("/metadata/labels", labels), ("/spec", more)] {
            let target = pod.pointer_mut(part).and_then(Value::as_object_mut);
            if let (Some(target), Value::Object(value)) = (target, value) {
                target.extend(value);
            }
        }
        pod
    };
    let ports = |ports: &[(&str, u16, &str)]| {
        let ports = ports.iter();
        let ports: Value = ports
            .map(|(name, port, protocol)| json!({"name": name, "containerPort": port, "protocol": protocol}))
            .collect();
        json!([{"name": "c", "image": "c", "ports": ports}])
    };
    let mut cart_ports = ports(&[("http", 8080, "TCP"), ("dns", 53, "UDP")]);
    cart_ports[0]["name"] = "a".into();
    let mut second = ports(&[("metrics", 9090, "TCP"), ("sctp", 132, "SCTP")]);
    second[0]["name"] = "b".into();
    if let (Some(all), Some(more)) = (cart_ports.as_array_mut(), second.as_array_mut()) {
        all.append(more);
    }
    let web_ports = ports(&[("web", 80, "TCP")]);
    let mut db = pod("gc-shop", "db-0", json!({"app": "db", "tier": "data"}), json!({}));
    db["metadata"]["annotations"] = json!({"kubernetes.io/egress-bandwidth": "10M"});
    let cart = json!({
        "app": "cart", "app.kubernetes.io/name": "cart", "apps.kubernetes.io/pod-index": "0",
        "pod-template-hash": "5d8f", "statefulset.kubernetes.io/pod-name": "cart-0",
    });
    vec![
        pod(
            "gc-shop",
            "cart-0",
            cart,
            json!({"serviceAccountName": "cart", "containers": cart_ports}),
        ),
        pod(
            "gc-shop",
            "web-7d9f",
            json!({"app": "web", "pod-template-hash": "7d9f"}),
            json!({"serviceAccountName": "web", "containers": web_ports}),
        ),
        db,
        pod("gc-ops", "bare", json!({}), json!({})),
        pod(
            "gc-ops",
            "client",
            json!({"app": "client", "role": "probe"}),
            json!({}),
        ),
        pod(
            "gc-ops",
            "hostnet",
            json!({"app": "hostnet"}),
            json!({"hostNetwork": true}),
        ),
    ]
}

/// The container of a pod of the scene; recorded requests name it.
pub(super) fn container(pod: &str) -> &'static str {
    match pod {
        "bare" => "14a4d8417e4b411680b464d49b7da73fa1e89b2576e1e069e92fff0ca41a726b",
        "client" => "a7d3470af632d0a5e62855d59a6fa072db5c4492fd7d54ba49f53649be4e1b15",
        "cart-0" => "9acfcf08580cebf967ce59ab218f2cc2000052a47d0362f95a9f1db18cfa6950",
        "db-0" => "b2138d32cf87d59db742d6f0b6284f47cd4099a24c1bc92fec07226103fc94f5",
        _ => "0f95408f02d2bc2d6f90954fd49d0fabb789486337cacd1442841443676e15ff",
    }
}

fn service(namespace: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// The services of the scene.
pub(super) fn services() -> Vec<Value> {
    let port = |port: u16, target: u16, protocol: &str| json!({"port": port, "targetPort": target, "protocol": protocol});
    let at = |ip: &str, port: Value| json!({"clusterIP": ip, "clusterIPs": [ip], "ports": [port]});
    let with = |mut spec: Value, more: Value| {
        if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
            spec.extend(more);
        }
        spec
    };
    let mut web = with(at("10.96.0.21", port(80, 80, "TCP")), json!({"type": "NodePort"}));
    web["ports"][0]["nodePort"] = 30_080.into();
    let mut lb = with(
        at("10.96.0.23", port(443, 80, "TCP")),
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31_443}),
    );
    lb["ports"][0]["nodePort"] = 30_443.into();
    let mut lb = service("gc-shop", "lb", lb);
    lb["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.80"}]}});
    let affinity = json!({"sessionAffinity": "ClientIP"});
    let dual = json!({
        "clusterIP": "10.96.0.25", "clusterIPs": ["10.96.0.25", "fd00:96::25"],
        "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack", "ports": [port(80, 80, "TCP")],
    });
    let headless = json!({"clusterIP": "None", "ports": [port(5432, 5432, "TCP")]});
    vec![
        service("gc-shop", "cart", at("10.96.0.20", port(80, 8080, "TCP"))),
        service("gc-shop", "web", web),
        service(
            "gc-shop",
            "dns",
            with(at("10.96.0.22", port(53, 53, "UDP")), affinity),
        ),
        lb,
        service("gc-shop", "empty", at("10.96.0.24", port(9, 9, "TCP"))),
        service("gc-shop", "dual", dual),
        service("gc-shop", "db", headless),
    ]
}

/// Slices of the services of the scene that have a pod with these addresses.
pub(super) fn slices(pod: &str, ips: &[String]) -> Vec<Value> {
    let services: &[(&str, u16, &str)] = match pod {
        "cart-0" => &[("cart", 8080, "TCP"), ("dns", 53, "UDP")],
        "web-7d9f" => &[("web", 80, "TCP"), ("lb", 80, "TCP"), ("dual", 80, "TCP")],
        "client" => &[("web", 80, "TCP")],
        "db-0" => &[("db", 5432, "TCP")],
        _ => &[],
    };
    let mut all = Vec::new();
    for (service, port, protocol) in services {
        for ip in ips {
            let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
            if family == "IPv6" && *service != "dual" {
                continue;
            }
            let name = format!("{service}-{pod}-{}", family.to_lowercase());
            all.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
                "metadata": {"name": name, "namespace": "gc-shop", "labels": {"kubernetes.io/service-name": service}},
                "endpoints": [{"addresses": [ip], "conditions": {"ready": true}, "nodeName": "n1"}],
                "ports": [{"port": port, "protocol": protocol}],
            }));
        }
    }
    all
}
