// SPDX-License-Identifier: Apache-2.0

//! `skep status`: the agent's status as text, as Cilium's command prints it.

use std::fmt::Write as _;

use hive_script::text::TabWriter;
use jiff::Timestamp;
use skep_base_api_types::{
    BigTcp, BpfMapStatus, ControllerStatus, EncryptionStatus, HubbleStatus, KubeProxyReplacement,
    KubeProxyReplacementFeatures, Masquerading, ModuleStatus, MonitorStatus, NodePortFeature, ProxyStatus,
    State, StatusResponse, Switch,
};

use crate::{health, mesh};

/// Job that exists if the node has a health endpoint.
const HEALTH_JOB: &str = "cilium-health-ep";

/// Details to print.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Details {
    pub(crate) addresses: bool,
    pub(crate) controllers: bool,
    pub(crate) nodes: bool,
    pub(crate) redirects: bool,
    pub(crate) clusters: bool,
    pub(crate) health: bool,
    pub(crate) verbose: bool,
}

impl Details {
    pub(crate) fn all() -> Self {
        Self {
            addresses: true,
            controllers: true,
            nodes: true,
            redirects: true,
            clusters: true,
            health: true,
            verbose: true,
        }
    }
}

/// Whether the agent is healthy, for the exit status.
pub(crate) fn is_well(status: &StatusResponse) -> bool {
    status.cilium.state.is_well()
}

/// The first thing that is wrong.
pub(crate) fn failure(status: &StatusResponse) -> Option<String> {
    let part =
        |name: &str, state: State, msg: &str| (!state.is_well()).then(|| format!("error in {name}: {msg}"));
    let kvstore = status.kvstore.as_ref();
    let kubernetes = status.kubernetes.as_ref();
    let health = status.cluster.as_ref().and_then(|part| part.health.as_ref());
    kvstore
        .and_then(|found| part("kvstore", found.state, &found.msg))
        .or_else(|| kubernetes.and_then(|found| part("kubernetes", found.state, &found.msg)))
        .or_else(|| part("cilium", status.cilium.state, &status.cilium.msg))
        .or_else(|| health.and_then(|found| part("cilium-health", found.state, &found.msg)))
        .or_else(|| {
            let mut jobs = status.controllers.iter();
            let job = jobs.find(|job| is_failing(job))?;
            Some(format!(
                "error in controller {}: {}",
                job.name, job.status.last_failure_msg
            ))
        })
}

fn is_failing(job: &ControllerStatus) -> bool {
    !job.status.last_failure_msg.is_empty()
}

/// What is not in the status itself.
pub(crate) struct Sources<'a> {
    /// Results of probes between nodes; none if the prober does not answer.
    pub(crate) health: &'a dyn Fn() -> Option<skep_base_api_types::HealthStatusResponse>,
    /// Health of all modules as the agent prints it.
    pub(crate) tree: &'a dyn Fn() -> Option<String>,
}

/// The status, then the health of the nodes and of the modules.
pub(crate) fn text(status: &StatusResponse, details: Details, sources: &Sources<'_>) -> String {
    let mut table = TabWriter::new();
    summary(&mut table, status, details);
    if is_well(status) {
        if !status.controllers.iter().any(|job| job.name == HEALTH_JOB) {
            table.row(["Cluster health:", "Probe disabled"]);
            return table.finish() + &degraded_modules(status);
        }
        match (sources.health)() {
            Some(found) if details.nodes => {
                health::write(&mut table, &found, health::Nodes::All, details.verbose)
            }
            Some(found) => health::write(&mut table, &found, health::Nodes::Unhealthy, false),
            None => table.write("Cluster health:\t\t\tWarning\tcilium-health daemon unreachable\n"),
        }
    }
    if let Some(modules) = &status.modules_health {
        let tree = details
            .health
            .then(|| (sources.tree)().unwrap_or_else(|| listed(modules)));
        match tree {
            Some(tree) => {
                table.write("Modules Health:");
                let mut lines: Vec<&str> = tree.lines().collect();
                lines.push("");
                for line in lines {
                    table.write(&format!("\t\t{line}\n"));
                }
                table.write("\n");
            }
            None => {
                table.row(vec!["Modules Health:".to_owned(), modules_line(modules)]);
                table.write("\n");
            }
        }
    }
    table.finish() + &degraded_modules(status)
}

/// `skep health get`: the status without details, after the load of the node.
pub(crate) fn of_node(health: &skep_base_api_types::HealthResponse) -> String {
    let mut table = TabWriter::new();
    table.row(["Daemon uptime:", &health.uptime]);
    let load = &health.system_load;
    table.row([
        "Node load:".to_owned(),
        format!("{} {} {}", load.last1, load.last5, load.last15),
    ]);
    summary(&mut table, &health.cilium, Details::default());
    table.finish()
}

fn summary(table: &mut TabWriter, status: &StatusResponse, details: Details) {
    connections(table, status);
    let replacement = status.kube_proxy_replacement.as_ref();
    if let Some(part) = replacement {
        let on = devices(part);
        let on = if part.mode == "False" { "" } else { on.as_str() };
        table.row(["KubeProxyReplacement:", &part.mode, &bracketed(on)]);
    }
    if let Some(part) = &status.host_firewall {
        match part.mode.as_str() {
            "Disabled" => table.row(["Host firewall:", "Disabled"]),
            mode => table.row(["Host firewall:", mode, &format!("[{}]", part.devices.join(", "))]),
        }
    }
    if let Some(part) = &status.srv6 {
        match part.enabled {
            true => table.row(["SRv6:", "Enabled", &format!("[encap-mode: {}]", part.encap_mode)]),
            false => table.row(["SRv6:", "Disabled"]),
        }
    }
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
    if !status.stale.is_empty() {
        let stale = status
            .stale
            .iter()
            .map(|(name, since)| format!("{name:?} since {since}"));
        table.row(["Stale status:", &stale.collect::<Vec<_>>().join(", ")]);
    }
    match &status.node_monitor {
        None => table.row(["NodeMonitor:", "Disabled"]),
        Some(rings) => {
            table.row(["NodeMonitor:", &monitor(rings)]);
            if rings.lost > 0 || rings.unknown > 0 {
                let (lost, unknown) = (rings.lost, rings.unknown);
                table.row([
                    "",
                    &format!("{lost} events lost, {unknown} unknown notifications"),
                ]);
            }
        }
    };
    if let Some(part) = status.cluster.as_ref().and_then(|part| part.health.as_ref()) {
        table.row(["Cilium health daemon:", part.state.as_str(), &part.msg]);
    }
    if let Some(part) = &status.ipam {
        table.row(["IPAM:", &part.status]);
        if details.addresses {
            table.write("Allocated addresses:\n");
            let owned = part
                .allocations
                .iter()
                .map(|(ip, owner)| format!("  {ip} ({owner})\n"));
            let mut owned: Vec<String> = owned.collect();
            owned.sort();
            owned.iter().for_each(|line| table.write(line));
        }
    }
    if let Some(part) = &status.cluster_mesh {
        table.write(&mesh::clusters(part, details.clusters, Timestamp::now()));
    }
    datapath(table, status, details);
    jobs(table, &status.controllers, details.controllers);
    proxy(table, status.proxy.as_ref(), details.redirects);
    match &status.identity_range {
        Some(part) => {
            let (min, max) = (part.min_identity, part.max_identity);
            table.row(["Global Identity Range:", &format!("min {min}, max {max}")]);
        }
        None => table.row(["Global Identity Range:", "Unknown"]),
    };
    if let Some(part) = &status.hubble {
        table.row(hubble(part, status.hubble_metrics.as_ref()));
    }
    if details.verbose {
        if let Some(part) = replacement {
            table.write(&replacement_details(part));
        }
        if let Some(part) = &status.bpf_maps {
            table.row(["BPF Maps:", &sizing(part)]);
            table.write(&maps(part));
        }
    }
    if let Some(part) = &status.encryption {
        table.row(encryption(part));
    }
}

fn connections(table: &mut TabWriter, status: &StatusResponse) {
    if let Some(part) = &status.kvstore {
        table.row(["KVStore:", part.state.as_str(), &part.msg]);
    }
    let Some(part) = &status.kubernetes else { return };
    table.row(["Kubernetes:", part.state.as_str(), &part.msg]);
    if part.state != State::Disabled {
        let mut apis = part.k8s_api_versions.clone();
        apis.sort();
        let apis: Vec<String> = apis.iter().map(|api| format!("{api:?}")).collect();
        table.row(["Kubernetes APIs:", &format!("[{}]", apis.join(", "))]);
    }
}

fn datapath(table: &mut TabWriter, status: &StatusResponse, details: Details) {
    for (name, part) in [
        ("IPv4 BIG TCP:", &status.ipv4_big_tcp),
        ("IPv6 BIG TCP:", &status.ipv6_big_tcp),
    ] {
        if let Some(part) = part {
            table.row(big_tcp(name, part));
        }
    }
    if let Some(part) = &status.bandwidth_manager {
        let text = match part.enabled {
            true => format!(
                "EDT with BPF [{}] [{}]",
                part.congestion_control.to_uppercase(),
                part.devices.join(", ")
            ),
            false => "Disabled".to_owned(),
        };
        table.row(["BandwidthManager:", &text]);
    }
    if let Some(part) = &status.routing {
        let mut network = format!("Network: {}", part.inter_host_routing_mode);
        if !part.tunnel_protocol.is_empty() {
            let _ = write!(network, " [{}]", part.tunnel_protocol);
        }
        let host = format!("Host: {}", part.intra_host_routing_mode);
        table.row(["Routing:", &network, &host]);
    }
    match status.attach_mode.as_str() {
        "" => {}
        "tc" => {
            table.row(["Attach Mode:", "Legacy TC"]);
        }
        mode => {
            table.row(["Attach Mode:", &mode.to_uppercase()]);
        }
    }
    if !status.datapath_mode.is_empty() {
        let configured = match status.configured_datapath_mode.as_str() {
            "" => String::new(),
            mode if mode == status.datapath_mode => String::new(),
            mode => format!(" [Configured: {mode}]"),
        };
        table.row(["Device Mode:", &(status.datapath_mode.clone() + &configured)]);
    }
    if let Some(part) = &status.masquerading {
        table.row(masquerading(part, status.kube_proxy_replacement.as_ref()));
    }
    if let Some(part) = status.clock_source.as_ref().filter(|_| details.verbose) {
        match part.mode.as_str() {
            "jiffies" => table.row([
                "Clock Source for BPF:",
                "jiffies",
                &format!("[{} Hz]", part.hertz),
            ]),
            mode => table.row(["Clock Source for BPF:", mode]),
        }
    }
}

fn jobs(table: &mut TabWriter, jobs: &[ControllerStatus], all: bool) {
    let healthy = jobs.iter().filter(|job| !is_failing(job)).count();
    table.row(["Controller Status:", &format!("{healthy}/{} healthy", jobs.len())]);
    let now = Timestamp::now();
    let ago = |time: Option<Timestamp>| match time {
        None => "never".to_owned(),
        Some(time) => {
            let seconds = now.duration_since(time).as_secs().max(0).unsigned_abs();
            let age = skep_duration::format_duration(std::time::Duration::from_secs(seconds));
            format!("{age} ago")
        }
    };
    let shown = jobs.iter().filter(|job| all || is_failing(job));
    let mut rows: Vec<String> = shown
        .map(|job| {
            let runs = &job.status;
            let error = match runs.last_failure_msg.as_str() {
                "" => "no error",
                error => error,
            };
            format!(
                "  {}\t{}\t{}\t{}\t{error}\t\n",
                job.name,
                ago(runs.last_success_timestamp),
                ago(runs.last_failure_timestamp),
                runs.consecutive_failure_count
            )
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    rows.sort();
    let mut own = TabWriter::new();
    own.write("  Name\tLast success\tLast error\tCount\tMessage\n");
    rows.iter().for_each(|row| own.write(row));
    table.write(&own.finish());
}

fn proxy(table: &mut TabWriter, part: Option<&ProxyStatus>, all: bool) {
    let Some(part) = part else {
        table.row(["Proxy Status:", "No managed proxy redirect"]);
        return;
    };
    let text = format!(
        "OK, ip {}, {} redirects active on ports {}, Envoy: {}",
        part.ip, part.total_redirects, part.port_range, part.envoy_deployment_mode
    );
    table.row(["Proxy Status:", &text]);
    if all && !part.redirects.is_empty() {
        let mut own = TabWriter::new();
        own.row(["  Protocol", "Redirect", "Proxy Port"]);
        for redirect in &part.redirects {
            own.row([
                format!("  {}", redirect.proxy),
                redirect.name.clone(),
                redirect.proxy_port.to_string(),
            ]);
        }
        table.write(&own.finish());
    }
}

fn hubble(part: &HubbleStatus, metrics: Option<&skep_base_api_types::Status>) -> Vec<String> {
    let with = |state: State, msg: &str, around: [&str; 2]| match msg {
        "" => state.as_str().to_owned(),
        msg => format!("{} {}{msg}{}", state.as_str(), around[0], around[1]),
    };
    let mut row = vec!["Hubble:".to_owned(), with(part.state, &part.msg, ["", ""])];
    if let Some(flows) = &part.observer {
        let mut words = Vec::new();
        if flows.max_flows > 0 {
            let (current, max) = (flows.current_flows, flows.max_flows);
            let share = current as f64 * 100.0 / max as f64;
            words.push(format!("Current/Max Flows: {current}/{max} ({share:.2}%)"));
        }
        if let Ok(uptime) = skep_duration::parse_duration(&flows.uptime)
            && !uptime.is_zero()
        {
            words.push(format!(
                "Flows/s: {:.2}",
                flows.seen_flows as f64 / uptime.as_secs_f64()
            ));
        }
        row.push(words.join(", "));
    }
    if let Some(metrics) = metrics {
        row.push(format!(
            "Metrics: {}",
            with(metrics.state, &metrics.msg, ["(", ")"])
        ));
    }
    row
}

fn encryption(part: &EncryptionStatus) -> Vec<String> {
    let message = match &part.wireguard {
        Some(wireguard) if part.msg.is_empty() => {
            let mut words = vec![format!("NodeEncryption: {}", wireguard.node_encryption)];
            words.extend(wireguard.interfaces.iter().map(|interface| {
                format!(
                    "{} (Pubkey: {}, Port: {}, Peers: {})",
                    interface.name, interface.public_key, interface.listen_port, interface.peer_count
                )
            }));
            format!("[{}]", words.join(", "))
        }
        _ => part.msg.clone(),
    };
    vec!["Encryption:".to_owned(), part.mode.clone(), message]
}

fn big_tcp(name: &str, part: &BigTcp) -> Vec<String> {
    let mut row = vec![name.to_owned(), enabled(part.enabled)];
    if part.enabled {
        row.push(match (part.max_gro, part.max_gso) {
            (gro, gso) if gro == gso => format!("[{gso}]"),
            (gro, gso) => format!("[{gro}, {gso}]"),
        });
    }
    row
}

/// State of the event rings, which the agent reads while the monitor has listeners.
pub(crate) fn monitor(rings: &MonitorStatus) -> String {
    format!(
        "Listening for events on {} CPUs with {}x{} of shared memory",
        rings.cpus, rings.npages, rings.pagesize
    )
}

fn masquerading(part: &Masquerading, replacement: Option<&KubeProxyReplacement>) -> Vec<String> {
    let mut row = vec!["Masquerading:".to_owned()];
    if !part.enabled {
        row.push("Disabled".to_owned());
        return row;
    }
    let families = format!(
        "[IPv4: {}, IPv6: {}]",
        enabled(part.enabled_protocols.ipv4),
        enabled(part.enabled_protocols.ipv6)
    );
    if part.mode != "BPF" {
        row.push(format!("{} {families}", part.mode));
        return row;
    }
    let devices = replacement
        .map(|part| part.devices.join(", "))
        .unwrap_or_default();
    let networks = [&part.exclusion4, &part.exclusion6];
    let networks = networks.into_iter().filter(|network| !network.is_empty());
    let mut words: Vec<String> = networks.cloned().collect();
    words.push(families);
    let agent = if part.ip_masq_agent {
        " (ip-masq-agent)"
    } else {
        ""
    };
    row.extend([format!("BPF{agent}"), format!("[{devices}]"), words.join(" ")]);
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
            let mark = if !direct.is_empty() && device.name == *direct {
                " (Direct Routing)"
            } else {
                ""
            };
            format!("{} {}{mark}", device.name, device.ip.join(" "))
        })
        .collect();
    devices.join(", ")
}

fn modules_line(modules: &[ModuleStatus]) -> String {
    let count = |level: &str| modules.iter().filter(|module| module.level == level).count();
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
    let modules = status.modules_health.iter().flatten();
    let lines: String = modules
        .filter(|module| module.level == "Degraded")
        .map(module_line)
        .collect();
    if lines.is_empty() {
        lines
    } else {
        format!("Degraded modules:\n{lines}")
    }
}

/// Modules one a line, without the tree.
fn listed(modules: &[ModuleStatus]) -> String {
    modules.iter().map(module_line).collect()
}

fn replacement_details(replacement: &KubeProxyReplacement) -> String {
    let features = &replacement.features;
    let (settings, services) = (settings(replacement, features), services(features));
    format!("KubeProxyReplacement Details:\n{settings}{services}")
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
    if node_port.mode != "SNAT" && !node_port.dsr_mode.is_empty() {
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

/// Kinds of services, some followed by a blank as in Cilium's text, and their annotations.
fn services(features: &KubeProxyReplacementFeatures) -> String {
    let node_port = &features.node_port;
    let range = if node_port.enabled {
        format!("Enabled (Range: {}-{}) ", node_port.port_min, node_port.port_max)
    } else {
        "Disabled".to_owned()
    };
    let mut table = TabWriter::new();
    table.row(["  Services:"]);
    let mut row = |name: &str, value: String| table.row([format!("  - {name}:"), value]);
    row("ClusterIP", "Enabled".to_owned());
    row("NodePort", range);
    row("LoadBalancer", enabled(node_port.enabled) + " ");
    row("externalIPs", switch(features.external_ips) + " ");
    row("HostPort", switch(features.host_port));
    if features.annotations.is_empty() {
        table.row(["  Annotations:", "(n/a)"]);
    } else {
        table.row(["  Annotations:"]);
        for annotation in &features.annotations {
            table.row([format!("  - {annotation}")]);
        }
    }
    table.finish()
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
    table.finish()
}

fn sizing(maps: &BpfMapStatus) -> String {
    match maps.dynamic_size_ratio {
        ratio if ratio > 0.0 => format!("dynamic sizing: on (ratio: {ratio:.6})"),
        _ => "dynamic sizing: off".to_owned(),
    }
}

#[cfg(test)]
mod tests;
