// SPDX-License-Identifier: Apache-2.0

//! `skep status`: the agent's status as text.

use hive_script::text::TabWriter;
use serde_json::Value;

/// Whether everything is well: what the exit status says.
pub(crate) fn is_well(status: &Value) -> bool {
    matches!(status["cilium"]["state"].as_str(), Some("Ok" | "Disabled"))
}

/// One word, or what is wrong.
pub(crate) fn brief(status: &Value) -> String {
    if is_well(status) {
        return "OK\n".to_owned();
    }
    let text = |name: &str| status["cilium"][name].as_str().unwrap_or_default();
    match text("msg") {
        "" => format!("{}\n", text("state")),
        message => format!("{message}\n"),
    }
}

/// The overview, and what is degraded.
pub(crate) fn overview(status: &Value) -> String {
    summary(status) + &unwell(status)
}

fn summary(status: &Value) -> String {
    let mut table = TabWriter::new();
    let state = |name: &str| text(&status[name]["state"]).to_owned();
    table.row(vec![
        "KVStore:".to_owned(),
        state("kvstore"),
        text(&status["kvstore"]["msg"]).to_owned(),
    ]);
    table.row(vec![
        "Kubernetes:".to_owned(),
        state("kubernetes"),
        text(&status["kubernetes"]["msg"]).to_owned(),
    ]);
    if let Some(apis) = status["kubernetes"]["k8s-api-versions"]
        .as_array()
        .filter(|apis| !apis.is_empty())
    {
        let apis: Vec<String> = apis.iter().map(|api| format!("{:?}", text(api))).collect();
        table.row(vec![
            "Kubernetes APIs:".to_owned(),
            format!("[{}]", apis.join(", ")),
        ]);
    }
    let replacement = &status["kube-proxy-replacement"];
    table.row(vec![
        "KubeProxyReplacement:".to_owned(),
        text(&replacement["mode"]).to_owned(),
        bracketed(&devices(replacement)),
    ]);
    table.row(vec![
        "Cilium:".to_owned(),
        state("cilium"),
        text(&status["cilium"]["msg"]).to_owned(),
    ]);
    table.row(vec!["Modules Health:".to_owned(), modules_line(status)]);
    table.finish()
}

/// The overview with the details of service handling, the maps and every module's health. `tree` is the health of all modules as the agent draws it, if it could be asked.
pub(crate) fn details(status: &Value, tree: Option<&str>) -> String {
    let mut out = summary(status);
    out.push_str(&replacement_details(&status["kube-proxy-replacement"]));
    out.push_str(&maps(&status["bpf-maps"]));
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

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn bracketed(devices: &str) -> String {
    if devices.is_empty() {
        String::new()
    } else {
        format!("[{devices}]")
    }
}

/// Devices with node ports and their addresses.
fn devices(replacement: &Value) -> String {
    let list = replacement["deviceList"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let direct = text(&replacement["directRoutingDevice"]);
    let devices: Vec<String> = list
        .iter()
        .map(|device| {
            let name = text(&device["name"]);
            let addresses = device["ip"].as_array().map(Vec::as_slice).unwrap_or_default();
            let addresses: Vec<&str> = addresses
                .iter()
                .map(text)
                .filter(|address| !address.is_empty())
                .collect();
            let mark = if !direct.is_empty() && name == direct {
                " (Direct Routing)"
            } else {
                ""
            };
            format!("{name}   {}{mark}", addresses.join(" "))
        })
        .collect();
    devices.join(", ")
}

fn level_of(module: &Value) -> &str {
    text(&module["level"])
}

fn all_modules(status: &Value) -> &[Value] {
    status["modules-health"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn modules_line(status: &Value) -> String {
    let count = |level: &str| {
        all_modules(status)
            .iter()
            .filter(|module| level_of(module) == level)
            .count()
    };
    format!(
        "Stopped({}) Degraded({}) OK({})",
        count("Stopped"),
        count("Degraded"),
        count("OK")
    )
}

fn module_line(module: &Value) -> String {
    let error = match text(&module["error"]) {
        "" => String::new(),
        error => format!(": {error}"),
    };
    format!(
        "  {}: [{}] {}{error}\n",
        text(&module["id"]),
        level_of(module).to_uppercase(),
        text(&module["message"])
    )
}

/// Modules that are degraded: shown also without `--verbose`.
fn unwell(status: &Value) -> String {
    let lines: String = all_modules(status)
        .iter()
        .filter(|module| level_of(module) == "Degraded")
        .map(module_line)
        .collect();
    if lines.is_empty() {
        lines
    } else {
        format!("Degraded modules:\n{lines}")
    }
}

fn modules(status: &Value) -> String {
    let lines: String = all_modules(status).iter().map(module_line).collect();
    format!("Modules:\n{lines}")
}

fn replacement_details(replacement: &Value) -> String {
    if replacement.is_null() {
        return String::new();
    }
    let features = &replacement["features"];
    format!(
        "KubeProxyReplacement Details:\n{}  Services:\n{}{}",
        settings(replacement, features),
        service_kinds(features),
        annotations(features)
    )
}

fn switch(value: &Value) -> String {
    let word = if value.as_bool() == Some(true) {
        "Enabled"
    } else {
        "Disabled"
    };
    word.to_owned()
}

fn settings(replacement: &Value, features: &Value) -> String {
    let node_port = &features["nodePort"];
    let coverage = if features["bpfSocketLBHostnsOnly"] == true {
        "Hostns-only"
    } else {
        "Full"
    };
    let selection = match text(&node_port["algorithm"]) {
        "Maglev" => format!(
            "Maglev (Table Size: {})",
            node_port["lutSize"].as_u64().unwrap_or_default()
        ),
        other => other.to_owned(),
    };
    let mut table = TabWriter::new();
    let mut row = |name: &str, value: String| table.row([format!("  {name}:"), value]);
    row("Status", text(&replacement["mode"]).to_owned());
    row("Socket LB", switch(&features["socketLB"]["enabled"]));
    row(
        "Socket LB Tracing",
        switch(&features["socketLBTracing"]["enabled"]),
    );
    row("Socket LB Coverage", coverage.to_owned());
    let on_devices = devices(replacement);
    if !on_devices.is_empty() {
        row("Devices", on_devices);
    }
    row("Mode", mode(node_port));
    let dispatch = text(&node_port["dsrMode"]);
    if !dispatch.is_empty() {
        row("  DSR Dispatch Mode", dispatch.to_owned());
    }
    row("Backend Selection", selection);
    row(
        "Session Affinity",
        switch(&features["sessionAffinity"]["enabled"]),
    );
    row("NAT46/64 Support", switch(&features["nat46X64"]["enabled"]));
    row("XDP Acceleration", or_disabled(&node_port["acceleration"]));
    table.finish()
}

fn service_kinds(features: &Value) -> String {
    let node_port = &features["nodePort"];
    let range = if node_port["enabled"] == true {
        format!(
            "Enabled (Range: {}-{})",
            node_port["portMin"], node_port["portMax"]
        )
    } else {
        "Disabled".to_owned()
    };
    let mut table = TabWriter::new();
    let mut row = |name: &str, value: String| table.row([format!("  - {name}:"), value]);
    row("ClusterIP", "Enabled".to_owned());
    row("NodePort", range);
    row("LoadBalancer", switch(&node_port["enabled"]));
    row("externalIPs", switch(&features["externalIPs"]["enabled"]));
    row("HostPort", switch(&features["hostPort"]["enabled"]));
    table.finish()
}

fn annotations(features: &Value) -> String {
    let annotations = features["annotations"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if annotations.is_empty() {
        return "  Annotations: (n/a)\n".to_owned();
    }
    let lines: String = annotations
        .iter()
        .map(|annotation| format!("  - {}\n", text(annotation)))
        .collect();
    format!("  Annotations:\n{lines}")
}

/// How packets reach backends of other nodes, as people write it.
fn mode(node_port: &Value) -> String {
    match text(&node_port["mode"]) {
        "HYBRID" => "Hybrid".to_owned(),
        "" => "Disabled".to_owned(),
        other => other.to_owned(),
    }
}

fn or_disabled(value: &Value) -> String {
    value
        .as_str()
        .filter(|word| !word.is_empty())
        .unwrap_or("Disabled")
        .to_owned()
}

fn maps(maps: &Value) -> String {
    let Some(list) = maps["maps"].as_array() else {
        return String::new();
    };
    let mut table = TabWriter::new();
    table.row(["  Name", "Size"]);
    for map in list {
        table.row([
            format!("  {}", text(&map["name"])),
            map["size"].as_u64().unwrap_or_default().to_string(),
        ]);
    }
    let sizing = match maps["dynamic-size-ratio"].as_f64() {
        Some(ratio) if ratio > 0.0 => format!("on (ratio: {ratio:.6})"),
        _ => "off".to_owned(),
    };
    format!("BPF Maps: dynamic sizing: {sizing}\n{}", table.finish())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status() -> Value {
        json!({
            "cilium": {"state": "Ok", "msg": "0.1.0"},
            "kvstore": {"state": "Disabled"},
            "kubernetes": {"state": "Ok", "msg": "1.33 (v1.33.1)", "k8s-api-versions": ["core/v1::Pods"]},
            "kube-proxy-replacement": {"mode": "True", "deviceList": [{"name": "eth0", "ip": ["", "10.0.0.3"]}],
                "directRoutingDevice": "eth0",
                "features": {"socketLB": {"enabled": true}, "nodePort": {"enabled": true, "algorithm": "Maglev",
                    "mode": "SNAT", "lutSize": 16381, "portMin": 30000, "portMax": 32767}, "annotations": ["service.cilium.io/node"]}},
            "bpf-maps": {"dynamic-size-ratio": 0.0025, "maps": [{"name": "Services", "size": 65536}]},
            "modules-health": [
                {"id": "a.b", "level": "OK", "message": "fine"},
                {"id": "a.c", "level": "Degraded", "message": "not reached", "error": "timeout"}],
        })
    }

    #[test]
    fn overview_aligns_states_and_shows_what_is_degraded() {
        let expected = [
            "KVStore:                Disabled   ",
            "Kubernetes:             Ok         1.33 (v1.33.1)",
            "Kubernetes APIs:        [\"core/v1::Pods\"]",
            "KubeProxyReplacement:   True   [eth0   10.0.0.3 (Direct Routing)]",
            "Cilium:                 Ok     0.1.0",
            "Modules Health:         Stopped(0) Degraded(1) OK(1)",
            "Degraded modules:",
            "  a.c: [DEGRADED] not reached: timeout",
            "",
        ];
        assert_eq!(overview(&status()), expected.join("\n"));
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
        let ill = json!({"cilium": {"state": "Failure", "msg": "Kubernetes service is not ready"}});
        assert_eq!(brief(&ill), "Kubernetes service is not ready\n");
        assert!(!is_well(&ill));
    }
}
