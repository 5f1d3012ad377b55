// SPDX-License-Identifier: Apache-2.0

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

/// The text with the results of the prober and the tree of modules.
fn shown(status: &StatusResponse, details: Details) -> String {
    let health = || {
        let node = |name: &str, error: &str| {
            let path =
                json!({"ip": "10.0.0.3", "icmp": {"latency": 1000, "status": error}, "http": {"latency": 1}});
            json!({"name": name, "host": {"primary-address": path}})
        };
        let nodes: Vec<_> = (0..12)
            .map(|at| node(&format!("n{at:02}"), "Connection timed out"))
            .collect();
        let nodes: Vec<_> = nodes.into_iter().chain([node("local", "")]).collect();
        from_value(json!({"local": {"name": "local"}, "nodes": nodes, "probeInterval": "1m0s"})).ok()
    };
    let tree = || Some("a\n└── b   [OK] fine (3s, x1)\n\n".to_owned());
    let sources = Sources {
        health: &health,
        tree: &tree,
    };
    text(status, details, &sources)
}

/// Widths of columns are those of recorded texts, in `tests/cli/recorded.rs`.
#[track_caller]
fn has_lines(text: &str, lines: &[&str]) {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in lines {
        assert!(
            text.lines().any(|found| words(found) == words(line)),
            "{line:?} is not in\n{text}"
        );
    }
}

#[test]
fn nothing_follows_when_nodes_are_not_probed_but_degraded_modules() {
    let text = shown(&status(), Details::default());

    assert!(!text.contains("Modules Health"), "{text}");
    let end = "Probe disabled\nDegraded modules:\n  a.c: [DEGRADED] not reached: timeout\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn ten_unhealthy_nodes_are_listed_or_all_nodes() {
    let mut status = status();
    status.controllers = from_value(json!([{"name": "cilium-health-ep"}])).unwrap();

    let some = shown(&status, Details::default());
    has_lines(&some, &["  ...", "n09 10.0.0.3 0/1 0/0"]);
    assert!(
        some.contains("1/13 reachable") && !some.contains("  n10"),
        "{some}"
    );
    assert!(!some.contains("localhost"), "it is healthy: {some}");
    let line = "Stopped(0) Degraded(1) OK(1)\n\n";
    assert!(some.contains(line), "{some}");

    let all = shown(&status, Details::all());
    has_lines(
        &all,
        &[
            "  local (localhost):",
            "Endpoint connectivity: nil",
            "ICMP to stack: Connection timed out (Last probed: )",
        ],
    );
    assert!(all.contains("└── b   [OK] fine (3s, x1)"), "{all}");
}

#[test]
fn the_monitor_is_shown_while_it_reads() {
    let mut status = status();
    status.node_monitor = from_value(json!({"cpus": 8, "npages": 64, "pagesize": 4096, "lost": 7})).unwrap();
    has_lines(
        &shown(&status, Details::default()),
        &[
            "NodeMonitor: Listening for events on 8 CPUs with 64x4096 of shared memory",
            "7 events lost, 0 unknown notifications",
        ],
    );
}

#[test]
fn parts_of_the_datapath_are_shown_as_cilium_shows_them() {
    let mut document = serde_json::to_value(status()).unwrap();
    let parts = json!({
        "attach-mode": "tc", "datapath-mode": "veth", "configured-datapath-mode": "auto",
        "masquerading": {"mode": "BPF", "enabled": true, "ip-masq-agent": true, "enabledProtocols": {"ipv4": true},
            "snat-exclusion-cidr-v4": "10.0.0.0/8"},
        "routing": {"intra-host-routing-mode": "Legacy", "inter-host-routing-mode": "Tunnel", "tunnel-protocol": "vxlan"},
        "ipv6-big-tcp": {"enabled": true, "maxGRO": 196608, "maxGSO": 196608},
        "host-firewall": {"mode": "Enabled", "devices": ["eth0", "eth1"]},
        "bandwidth-manager": {"enabled": true, "congestionControl": "bbr", "devices": ["eth0"]},
        "stale": {"kubernetes": "2026-11-28T11:32:30Z"},
        "encryption": {"mode": "Wireguard", "wireguard": {"node-encryption": "Disabled", "interfaces": [
            {"name": "cilium_wg0", "public-key": "k=", "listen-port": 51871, "peer-count": 2}]}},
        "hubble": {"state": "Warning", "msg": "starting"},
        "proxy": {"ip": "10.0.0.1", "port-range": "1-2", "envoy-deployment-mode": "embedded", "total-redirects": 1,
            "redirects": [{"name": "7:egress:UDP:53:", "proxy": "cilium-dns-egress", "proxy-port": 44923}]},
    });
    for (name, part) in parts.as_object().unwrap() {
        document[name] = part.clone();
    }
    let status: StatusResponse = from_value(document).unwrap();
    let details = Details {
        redirects: true,
        ..Details::default()
    };

    has_lines(
        &shown(&status, details),
        &[
            "Stale status: \"kubernetes\" since 2026-11-28T11:32:30Z",
            "Attach Mode: Legacy TC",
            "Device Mode: veth [Configured: auto]",
            "Masquerading: BPF (ip-masq-agent) [] 10.0.0.0/8 [IPv4: Enabled, IPv6: Disabled]",
            "Routing: Network: Tunnel [vxlan] Host: Legacy",
            "IPv6 BIG TCP: Enabled [196608]",
            "Host firewall: Enabled [eth0, eth1]",
            "BandwidthManager: EDT with BPF [BBR] [eth0]",
            "Encryption: Wireguard [NodeEncryption: Disabled, cilium_wg0 (Pubkey: k=, Port: 51871, Peers: 2)]",
            "Hubble: Warning starting",
            "Protocol Redirect Proxy Port",
            "cilium-dns-egress 7:egress:UDP:53: 44923",
        ],
    );
}

#[test]
fn verbose_tells_how_services_are_handled() {
    let mut status = status();
    if let Some(replacement) = &mut status.kube_proxy_replacement {
        replacement.features.nat46_x64 = from_value(json!({"enabled": true, "service": {"enabled": true},
            "gateway": {"prefixes": ["64:ff9b::/96"]}}))
        .unwrap();
    }
    has_lines(
        &shown(&status, Details::all()),
        &[
            "Devices: eth0 10.0.0.3 (Direct Routing)",
            "- Services: Enabled",
            "- Gateway: Disabled",
            "Prefixes: 64:ff9b::/96",
            "Backend Selection: Maglev (Table Size: 16381)",
            "BPF Maps: dynamic sizing: on (ratio: 0.002500)",
        ],
    );
}

#[test]
fn brief_names_the_first_failure() {
    assert_eq!(failure(&status()), None);
    let mut ill = status();
    ill.controllers =
        from_value(json!([{"name": "sync", "status": {"last-failure-msg": "no route"}}])).unwrap();
    let text = failure(&ill);
    assert_eq!(text.as_deref(), Some("error in controller sync: no route"));

    ill.cilium = from_value(json!({"state": "Warning", "msg": "Stale status data"})).unwrap();
    let text = failure(&ill);
    assert_eq!(text.as_deref(), Some("error in cilium: Stale status data"));
    assert!(!is_well(&ill));
}
