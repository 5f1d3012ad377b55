// SPDX-License-Identifier: Apache-2.0

//! `skep status`: the agent's status as text.

use hive_script::text::TabWriter;
use jiff::Timestamp;
use skep_base_api_types::{
    BpfMapStatus, KubeProxyReplacement, KubeProxyReplacementFeatures, Masquerading, ModuleStatus,
    MonitorStatus, NodePortFeature, Routing, State, StatusResponse, Switch,
};

use crate::mesh;

/// Whether the agent is healthy, for the exit status.
pub(crate) fn is_well(status: &StatusResponse) -> bool {
    status.cilium.state.is_well()
}

/// `OK`, or the errors.
pub(crate) fn brief(status: &StatusResponse) -> String {
    if is_well(status) {
        return "OK\n".to_owned();
    }
    match status.cilium.msg.as_str() {
        "" => format!("{}\n", status.cilium.state.as_str()),
        message => format!("{message}\n"),
    }
}

/// The overview, remote clusters that are not ready or all of them, and what is degraded.
pub(crate) fn overview(status: &StatusResponse, all_clusters: bool) -> String {
    summary(status) + &clusters(status, all_clusters) + &degraded_modules(status)
}

fn clusters(status: &StatusResponse, all: bool) -> String {
    let mesh = status.cluster_mesh.as_ref();
    mesh.map(|mesh| mesh::clusters(mesh, all, Timestamp::now()))
        .unwrap_or_default()
}

fn summary(status: &StatusResponse) -> String {
    let mut table = TabWriter::new();
    let mut part = |name: &str, part: Option<(State, &str)>| {
        let (state, message) = part.map_or(("", ""), |(state, message)| (state.as_str(), message));
        table.row([name, state, message]);
    };
    part(
        "KVStore:",
        status
            .kvstore
            .as_ref()
            .map(|part| (part.state, part.msg.as_str())),
    );
    let kubernetes = status.kubernetes.as_ref();
    part(
        "Kubernetes:",
        kubernetes.map(|part| (part.state, part.msg.as_str())),
    );
    if let Some(apis) = kubernetes
        .map(|part| &part.k8s_api_versions)
        .filter(|apis| !apis.is_empty())
    {
        let apis: Vec<String> = apis.iter().map(|api| format!("{api:?}")).collect();
        table.row(vec![
            "Kubernetes APIs:".to_owned(),
            format!("[{}]", apis.join(", ")),
        ]);
    }
    let replacement = status.kube_proxy_replacement.as_ref();
    table.row(vec![
        "KubeProxyReplacement:".to_owned(),
        replacement.map(|part| part.mode.clone()).unwrap_or_default(),
        bracketed(&replacement.map(devices).unwrap_or_default()),
    ]);
    if let Some(part) = &status.cni_chaining {
        table.row(["CNI Chaining:", &part.mode]);
    }
    if let Some(part) = &status.cni_file {
        let text = match part.msg.as_str() {
            "" => part.state.as_str(),
            message => message,
        };
        table.row(["CNI Config file:", text]);
    }
    let (state, message) = (status.cilium.state.as_str(), &status.cilium.msg);
    table.row(["Cilium:", &format!("{state}   {message}")]);
    match &status.node_monitor {
        None => table.row(["NodeMonitor:", "Disabled"]),
        Some(rings) => {
            table.row(["NodeMonitor:", &monitor(rings)]);
            if rings.lost > 0 || rings.unknown > 0 {
                let lost = format!(
                    "{} events lost, {} unknown notifications",
                    rings.lost, rings.unknown
                );
                table.row(["", &lost]);
            }
        }
    };
    if let Some(part) = &status.routing {
        table.row(["Routing:", &routing(part)]);
    }
    if !status.attach_mode.is_empty() {
        table.row(["Attach Mode:", &status.attach_mode.to_uppercase()]);
    }
    if !status.datapath_mode.is_empty() {
        table.row(["Device Mode:", &status.datapath_mode]);
    }
    if let Some(part) = &status.masquerading {
        table.row(masquerading(part, replacement));
    }
    table.row(vec!["Modules Health:".to_owned(), modules_line(status)]);
    table.finish()
}

/// The overview with the details of service handling, the maps and every module's health. `tree` is the health of all
/// modules as the agent prints it, if its shell answers.
pub(crate) fn details(status: &StatusResponse, tree: Option<&str>) -> String {
    let mut out = summary(status) + &clusters(status, true);
    if let Some(replacement) = &status.kube_proxy_replacement {
        out.push_str(&replacement_details(replacement));
    }
    if let Some(all) = &status.bpf_maps {
        out.push_str(&maps(all));
    }
    match tree {
        Some(tree) => {
            out.push_str("Modules:\n");
            for line in tree.lines().filter(|line| !line.is_empty()) {
                out.push_str(&format!("  {line}\n"));
            }
        }
        None => out.push_str(&modules(status)),
    }
    out
}

/// State of the event rings, which the agent reads while the monitor has listeners.
pub(crate) fn monitor(rings: &MonitorStatus) -> String {
    format!(
        "Listening for events on {} CPUs with {}x{} of shared memory",
        rings.cpus, rings.npages, rings.pagesize
    )
}

fn routing(part: &Routing) -> String {
    let mut network = part.inter_host_routing_mode.clone();
    if !part.tunnel_protocol.is_empty() {
        network.push_str(&format!(" [{}]", part.tunnel_protocol));
    }
    format!("Network: {network}   Host: {}", part.intra_host_routing_mode)
}

fn masquerading(part: &Masquerading, replacement: Option<&KubeProxyReplacement>) -> Vec<String> {
    let mut row = vec!["Masquerading:".to_owned(), part.mode.clone()];
    if part.enabled {
        let devices = replacement
            .map(|part| part.devices.join(", "))
            .unwrap_or_default();
        let switch = |is_on| if is_on { "Enabled" } else { "Disabled" };
        let networks = [&part.exclusion4, &part.exclusion6];
        let networks = networks.into_iter().filter(|network| !network.is_empty());
        let mut words: Vec<String> = networks.cloned().collect();
        words.push(format!(
            "[IPv4: {}, IPv6: {}]",
            switch(part.enabled_protocols.ipv4),
            switch(part.enabled_protocols.ipv6)
        ));
        row.push(bracketed(&devices));
        row.push(words.join(" "));
    }
    row
}

fn bracketed(devices: &str) -> String {
    if devices.is_empty() {
        String::new()
    } else {
        format!("[{devices}]")
    }
}

/// Devices with node ports and their addresses.
fn devices(replacement: &KubeProxyReplacement) -> String {
    let direct = &replacement.direct_routing_device;
    let devices: Vec<String> = replacement
        .device_list
        .iter()
        .map(|device| {
            let addresses = device.ip.iter().map(String::as_str);
            let addresses: Vec<&str> = addresses.filter(|address| !address.is_empty()).collect();
            let mark = if !direct.is_empty() && device.name == *direct {
                " (Direct Routing)"
            } else {
                ""
            };
            format!("{}   {}{mark}", device.name, addresses.join(" "))
        })
        .collect();
    devices.join(", ")
}

fn all_modules(status: &StatusResponse) -> &[ModuleStatus] {
    status.modules_health.as_deref().unwrap_or_default()
}

fn modules_line(status: &StatusResponse) -> String {
    let count = |level: &str| {
        all_modules(status)
            .iter()
            .filter(|module| module.level == level)
            .count()
    };
    format!(
        "Stopped({}) Degraded({}) OK({})",
        count("Stopped"),
        count("Degraded"),
        count("OK")
    )
}

fn module_line(module: &ModuleStatus) -> String {
    let error = match module.error.as_str() {
        "" => String::new(),
        error => format!(": {error}"),
    };
    format!(
        "  {}: [{}] {}{error}\n",
        module.id,
        module.level.to_uppercase(),
        module.message
    )
}

/// Modules that are degraded: shown also without `--verbose`.
fn degraded_modules(status: &StatusResponse) -> String {
    let lines: String = all_modules(status)
        .iter()
        .filter(|module| module.level == "Degraded")
        .map(module_line)
        .collect();
    if lines.is_empty() {
        lines
    } else {
        format!("Degraded modules:\n{lines}")
    }
}

fn modules(status: &StatusResponse) -> String {
    let lines: String = all_modules(status).iter().map(module_line).collect();
    format!("Modules:\n{lines}")
}

fn replacement_details(replacement: &KubeProxyReplacement) -> String {
    let features = &replacement.features;
    format!(
        "KubeProxyReplacement Details:\n{}  Services:\n{}{}",
        settings(replacement, features),
        service_kinds(features),
        annotations(features)
    )
}

fn enabled(is_enabled: bool) -> String {
    let word = if is_enabled { "Enabled" } else { "Disabled" };
    word.to_owned()
}

fn switch(feature: Switch) -> String {
    enabled(feature.enabled)
}

fn settings(replacement: &KubeProxyReplacement, features: &KubeProxyReplacementFeatures) -> String {
    let node_port = &features.node_port;
    let coverage = if features.bpf_socket_lb_hostns_only {
        "Hostns-only"
    } else {
        "Full"
    };
    let selection = match node_port.algorithm.as_str() {
        "Maglev" => format!("Maglev (Table Size: {})", node_port.lut_size),
        other => other.to_owned(),
    };
    let mut table = TabWriter::new();
    let mut row = |name: &str, value: String| table.row([format!("  {name}:"), value]);
    row("Status", replacement.mode.clone());
    row("Socket LB", switch(features.socket_lb));
    row("Socket LB Tracing", switch(features.socket_lb_tracing));
    row("Socket LB Coverage", coverage.to_owned());
    let on_devices = devices(replacement);
    if !on_devices.is_empty() {
        row("Devices", on_devices);
    }
    row("Mode", mode(node_port));
    if !node_port.dsr_mode.is_empty() {
        row("  DSR Dispatch Mode", node_port.dsr_mode.clone());
    }
    row("Backend Selection", selection);
    row("Session Affinity", switch(features.session_affinity));
    let translation = &features.nat46_x64;
    if translation.enabled {
        row("NAT46/64 Support", String::new());
        row("- Services", switch(translation.service));
        row("- Gateway", enabled(translation.gateway.enabled));
        row("  Prefixes", translation.gateway.prefixes.join(", "));
    } else {
        row("NAT46/64 Support", enabled(false));
    }
    row("XDP Acceleration", or_disabled(&node_port.acceleration));
    table.finish()
}

fn service_kinds(features: &KubeProxyReplacementFeatures) -> String {
    let node_port = &features.node_port;
    let range = if node_port.enabled {
        format!("Enabled (Range: {}-{})", node_port.port_min, node_port.port_max)
    } else {
        "Disabled".to_owned()
    };
    let mut table = TabWriter::new();
    let mut row = |name: &str, value: String| table.row([format!("  - {name}:"), value]);
    row("ClusterIP", "Enabled".to_owned());
    row("NodePort", range);
    row("LoadBalancer", enabled(node_port.enabled));
    row("externalIPs", switch(features.external_ips));
    row("HostPort", switch(features.host_port));
    table.finish()
}

fn annotations(features: &KubeProxyReplacementFeatures) -> String {
    if features.annotations.is_empty() {
        return "  Annotations: (n/a)\n".to_owned();
    }
    let lines: String = features
        .annotations
        .iter()
        .map(|annotation| format!("  - {annotation}\n"))
        .collect();
    format!("  Annotations:\n{lines}")
}

/// How packets reach backends of other nodes, as text.
fn mode(node_port: &NodePortFeature) -> String {
    match node_port.mode.as_str() {
        "HYBRID" => "Hybrid".to_owned(),
        other => or_disabled(other),
    }
}

fn or_disabled(word: &str) -> String {
    if word.is_empty() { "Disabled" } else { word }.to_owned()
}

fn maps(maps: &BpfMapStatus) -> String {
    let mut table = TabWriter::new();
    table.row(["  Name", "Size"]);
    for map in &maps.maps {
        table.row([format!("  {}", map.name), map.size.to_string()]);
    }
    let sizing = match maps.dynamic_size_ratio {
        ratio if ratio > 0.0 => format!("on (ratio: {ratio:.6})"),
        _ => "off".to_owned(),
    };
    format!("BPF Maps: dynamic sizing: {sizing}\n{}", table.finish())
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn status() -> StatusResponse {
        from_value(json!({
            "cilium": {"state": "Ok", "msg": "0.1.0"},
            "kvstore": {"state": "Disabled"},
            "kubernetes": {"state": "Ok", "msg": "1.33 (v1.33.1)", "k8s-api-versions": ["core/v1::Pods"]},
            "cni-file": {"state": "Ok", "msg": "successfully wrote it"},
            "cni-chaining": {"mode": "none"},
            "kube-proxy-replacement": {"mode": "True", "deviceList": [{"name": "eth0", "ip": ["", "10.0.0.3"]}],
                "directRoutingDevice": "eth0",
                "features": {"socketLB": {"enabled": true}, "nodePort": {"enabled": true, "algorithm": "Maglev",
                    "mode": "SNAT", "lutSize": 16381, "portMin": 30000, "portMax": 32767}, "annotations": ["service.cilium.io/node"]}},
            "bpf-maps": {"dynamic-size-ratio": 0.0025, "maps": [{"name": "Services", "size": 65536}]},
            "modules-health": [
                {"id": "a.b", "level": "OK", "message": "fine"},
                {"id": "a.c", "level": "Degraded", "message": "not reached", "error": "timeout"}],
        }))
        .unwrap()
    }

    #[test]
    fn overview_aligns_states_and_shows_what_is_degraded() {
        let expected = [
            "KVStore:                Disabled   ",
            "Kubernetes:             Ok         1.33 (v1.33.1)",
            "Kubernetes APIs:        [\"core/v1::Pods\"]",
            "KubeProxyReplacement:   True   [eth0   10.0.0.3 (Direct Routing)]",
            "CNI Chaining:           none",
            "CNI Config file:        successfully wrote it",
            "Cilium:                 Ok   0.1.0",
            "NodeMonitor:            Disabled",
            "Modules Health:         Stopped(0) Degraded(1) OK(1)",
            "Degraded modules:",
            "  a.c: [DEGRADED] not reached: timeout",
            "",
        ];
        assert_eq!(overview(&status(), false), expected.join("\n"));
    }

    #[test]
    fn the_monitor_is_shown_while_it_reads() {
        let mut status = status();
        let mut rings = MonitorStatus {
            cpus: 8,
            npages: 64,
            pagesize: 4096,
            ..MonitorStatus::default()
        };
        status.node_monitor = Some(rings);
        let shown = overview(&status, false);
        let line = "NodeMonitor:            Listening for events on 8 CPUs with 64x4096 of shared memory\n";
        assert!(shown.contains(line) && !shown.contains("events lost"), "{shown}");

        rings.lost = 7;
        status.node_monitor = Some(rings);
        let shown = overview(&status, false);
        assert!(
            shown.contains(" 7 events lost, 0 unknown notifications\n"),
            "{shown}"
        );
    }

    #[test]
    fn masquerading_names_devices_networks_and_families() {
        let mut status = status();
        status.attach_mode = "tcx".to_owned();
        status.masquerading = Some(Masquerading {
            mode: "Disabled".to_owned(),
            ..Masquerading::default()
        });
        let shown = overview(&status, false);
        assert!(shown.contains("Attach Mode:            TCX\n"), "{shown}");
        assert!(shown.contains("Masquerading:           Disabled\n"), "{shown}");

        status.masquerading = from_value(json!({"mode": "BPF", "enabled": true,
            "enabledProtocols": {"ipv4": true, "ipv6": false}, "snat-exclusion-cidr-v4": "10.0.0.0/8"}))
        .unwrap();
        if let Some(replacement) = &mut status.kube_proxy_replacement {
            replacement.devices = vec!["eth0".to_owned()];
        }
        let shown = overview(&status, false);
        let line = "Masquerading:           BPF   [eth0]   10.0.0.0/8 [IPv4: Enabled, IPv6: Disabled]\n";
        assert!(shown.contains(line), "{shown}");
    }

    #[test]
    fn routing_names_the_tunnel() {
        let mut status = status();
        status.datapath_mode = "veth".to_owned();
        for (routing, expected) in [
            (
                json!({"intra-host-routing-mode": "BPF", "inter-host-routing-mode": "Native"}),
                "Routing:                Network: Native   Host: BPF\n",
            ),
            (
                json!({"intra-host-routing-mode": "BPF", "inter-host-routing-mode": "Tunnel", "tunnel-protocol": "vxlan"}),
                "Routing:                Network: Tunnel [vxlan]   Host: BPF\n",
            ),
        ] {
            status.routing = from_value(routing).unwrap();
            let shown = overview(&status, false);
            assert!(shown.contains(expected), "{shown}");
            assert!(shown.contains("Device Mode:            veth\n"), "{shown}");
        }
    }

    #[test]
    fn health_is_the_tree_that_the_agent_draws() {
        let text = details(&status(), Some("a\n└── b   [OK] fine (3s, x1)\n\n"));

        assert!(
            text.ends_with("Modules:\n  a\n  └── b   [OK] fine (3s, x1)\n"),
            "{text}"
        );
    }

    #[test]
    fn translation_between_families_is_listed() {
        let mut status = status();
        if let Some(replacement) = &mut status.kube_proxy_replacement {
            replacement.features.nat46_x64 = from_value(json!({"enabled": true,
                "service": {"enabled": true},
                "gateway": {"enabled": false, "prefixes": ["64:ff9b::/96"]}}))
            .unwrap();
        }

        let text = details(&status, None);

        for line in [
            "  - Services:           Enabled\n",
            "  - Gateway:            Disabled\n",
            "    Prefixes:           64:ff9b::/96\n",
        ] {
            assert!(text.contains(line), "no {line:?} in {text}");
        }
    }

    #[test]
    fn verbose_tells_how_services_are_handled() {
        let text = details(&status(), None);
        for line in [
            "  Socket LB:            Enabled\n",
            "  Devices:              eth0   10.0.0.3 (Direct Routing)\n",
            "  Mode:                 SNAT\n",
            "  NAT46/64 Support:     Disabled\n",
            "  XDP Acceleration:     Disabled\n",
            "  Backend Selection:    Maglev (Table Size: 16381)\n",
            "  - NodePort:       Enabled (Range: 30000-32767)\n",
            "  - service.cilium.io/node\n",
            "BPF Maps: dynamic sizing: on (ratio: 0.002500)\n  Name       Size\n  Services   65536\n",
            "  a.b: [OK] fine\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn brief_is_ok_or_the_reason() {
        assert_eq!(brief(&status()), "OK\n");
        let ill =
            from_value(json!({"cilium": {"state": "Failure", "msg": "Kubernetes service is not ready"}}))
                .unwrap();
        assert_eq!(brief(&ill), "Kubernetes service is not ready\n");
        assert!(!is_well(&ill));
    }
}
