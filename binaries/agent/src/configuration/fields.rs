// SPDX-License-Identifier: Apache-2.0

//! Settings by the names of Cilium's fields: `daemonConfigurationMap`, which `skep config` shows.
//!
//! `fields.txt` has a line for each: name, kind, setting, and the value without a setting. Fields of features that do not
//! exist here have the values that they have in Cilium when the feature is off.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use skep_duration::parse_duration_nanos;

use super::ConfigurationParams;

const FIELDS: &str = include_str!("fields.txt");

/// Every field.
pub(super) fn map(params: &ConfigurationParams) -> Map<String, Value> {
    let mut all = Map::new();
    for line in FIELDS.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.splitn(4, ' ');
        let [Some(name), Some(kind), Some(setting), Some(default)] = [(); 4].map(|()| words.next()) else {
            continue;
        };
        let default: Value = serde_json::from_str(default).unwrap_or_default();
        let text = params.all.get(setting);
        let value = Some(text).filter(|text| !text.is_empty());
        let value = value.and_then(|text| value_of(kind, text)).unwrap_or(default);
        all.insert(name.to_owned(), value);
    }
    all.extend(computed(params).map(|(name, value)| (name.to_owned(), value)));
    all
}

/// Fields that take more than one setting.
fn computed(params: &ConfigurationParams) -> impl Iterator<Item = (&'static str, Value)> {
    let ConfigurationParams {
        all,
        families,
        attach,
        monitor,
        packets,
        state,
        ..
    } = params;
    let masqueraded = params.masqueraded();
    let is_on = |name: &str| all.get(name) == "true";
    let duration = |name: &str| value_of("Duration", all.get(name)).unwrap_or_else(|| json!(0));
    let network = json!({ "IP": "", "Mask": null });
    [
        ("CreationTime", json!(all.created.to_string())),
        ("Devices", json!(params.device_names())),
        ("EnableIPv4Masquerade", json!(masqueraded.ipv4)),
        ("EnableIPv6Masquerade", json!(masqueraded.ipv6)),
        (
            "EnableIPv4FragmentsTracking",
            json!(families.ipv4 && packets.fragments4),
        ),
        (
            "EnableIPv6FragmentsTracking",
            json!(families.ipv6 && packets.fragments6),
        ),
        ("EnableLocalNodeRoute", json!(attach.routes_local_node())),
        (
            "MonitorAggregation",
            json!(super::options::level(monitor.aggregation.number())),
        ),
        ("MonitorAggregationFlags", json!(packets.report_flags.bits())),
        ("StateDir", json!(state.directory())),
        (
            "HiveConfig",
            json!({
                "StartTimeout": duration("hive-start-timeout"),
                "StopTimeout": duration("hive-stop-timeout"),
                "LogThreshold": duration("hive-log-threshold"),
            }),
        ),
        (
            "UnsafeDaemonConfigOption",
            json!({
                "EnableSocketLBTracing": is_on("trace-sock"),
                "EnableSocketLBPeer": true,
                "EnableHealthDatapath": false,
                "EnableSocketLBPodConnectionTermination": is_on("bpf-lb-sock-terminate-pod-connections"),
                "EnableHostLegacyRouting": attach.enable_host_legacy_routing,
                "LoadBalancerRSSv4": network,
                "LoadBalancerRSSv6": network,
                "EnableIPIPDevices": false,
                "BPFSocketLBHostnsOnly": is_on("bpf-lb-sock-hostns-only"),
                "AllowLocalhost": "always",
            }),
        ),
    ]
    .into_iter()
}

/// The value of a setting, as a field of a kind.
fn value_of(kind: &str, text: &str) -> Option<Value> {
    Some(match kind {
        "Bool" => text.parse::<bool>().ok()?.into(),
        "Number" => text.parse::<u64>().ok()?.into(),
        "Float" => number(text.parse().ok()?),
        "Duration" => parse_duration_nanos(text).ok()?.into(),
        "Text" => text.into(),
        "List" | "ListOrNull" => json!(list(text)),
        "Numbers" => list(text)
            .iter()
            .filter_map(|word| word.parse::<u64>().ok())
            .collect(),
        "Map" | "MapOrNull" => Value::Object(pairs(text)),
        "Network" => {
            let network: IpNet = text.parse().ok()?;
            let mask = match network.netmask() {
                std::net::IpAddr::V4(mask) => BASE64_STANDARD.encode(mask.octets()),
                std::net::IpAddr::V6(mask) => BASE64_STANDARD.encode(mask.octets()),
            };
            json!({ "IP": network.network(), "Mask": mask })
        }
        _ => return None,
    })
}

/// A whole number without a fraction, as Go writes it.
fn number(value: f64) -> Value {
    match value.fract() == 0.0 {
        true => json!(value as i64),
        false => json!(value),
    }
}

/// `a,b`, or a JSON list.
fn list(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_else(|_| {
        let words = text.split([',', ' ']).map(str::trim);
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    })
}

/// `a=b,c=d`, or a JSON object.
pub(super) fn pairs(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_else(|_| {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().into()));
        pairs.collect()
    })
}
