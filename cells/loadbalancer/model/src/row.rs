// SPDX-License-Identifier: Apache-2.0

//! Rows as text: table cells, JSON with the field names of Cilium's dumps, YAML in and out.

mod yaml;

use std::fmt::Display;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use skep_duration::{format_duration, human_duration_nanos};
use statedb::Row;
use statedb::reconciler::Status;
use statedb::row::{self, BoxError};

use crate::node::NodeFacts;
use crate::types::{
    Backend, BackendSet, Frontend, L3n4Addr, LbAlgorithm, Names, ProxyRedirect, Service, SourceRangesPolicy,
    StringMap,
};

/// Most backends shown in a cell.
const SHOWN_BACKENDS: usize = 5;

/// How a value is to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Yaml,
}

impl Form {
    fn object<const N: usize>(self, fields: [(&str, Value); N]) -> Value {
        let key = |name: &str| {
            if self == Self::Yaml {
                name.to_lowercase()
            } else {
                name.to_owned()
            }
        };
        Value::Object(
            fields
                .into_iter()
                .map(|(name, value)| (key(name), value))
                .collect(),
        )
    }

    // An absent list is null in JSON and empty in YAML.
    fn list(self, items: Option<Vec<Value>>) -> Value {
        match (items, self) {
            (Some(items), _) => Value::Array(items),
            (None, Self::Json) => Value::Null,
            (None, Self::Yaml) => json!([]),
        }
    }

    fn map(self, items: Option<Map<String, Value>>) -> Value {
        match (items, self) {
            (Some(items), _) => Value::Object(items),
            (None, Self::Json) => Value::Null,
            (None, Self::Yaml) => json!({}),
        }
    }

    fn strings(self, map: &StringMap) -> Value {
        let items = || {
            map.iter()
                .map(|(key, value)| (key.to_owned(), value.into()))
                .collect()
        };
        self.map((!map.is_absent()).then(items))
    }

    fn duration(self, duration: Duration) -> Value {
        match self {
            Self::Json => json!(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
            Self::Yaml => format_duration(duration).into(),
        }
    }
}

fn since(at: Timestamp) -> String {
    let age = Timestamp::now().duration_since(at).as_nanos();
    human_duration_nanos(i64::try_from(age).unwrap_or(i64::MAX))
}

fn time(at: SystemTime) -> Value {
    Timestamp::try_from(at).map_or(Value::Null, |at| at.to_string().into())
}

fn redirect_text(redirect: &ProxyRedirect) -> String {
    if redirect.ports.is_empty() {
        return redirect.proxy_port.to_string();
    }
    let ports: Vec<String> = redirect.ports.iter().map(u16::to_string).collect();
    format!("{} (ports: [{}])", redirect.proxy_port, ports.join(" "))
}

fn service_flags(service: &Service) -> String {
    let mut flags = Vec::new();
    let mut flag = |name: &str, value: String| flags.push(format!("{name}={value}"));
    if service.session_affinity {
        flag(
            "SessionAffinity",
            format_duration(service.session_affinity_timeout),
        );
    }
    if let Some(ranges) = service
        .source_ranges
        .as_deref()
        .filter(|ranges| !ranges.is_empty())
    {
        flag(
            "SourceRanges",
            ranges
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        );
        if service.source_ranges_policy() == SourceRangesPolicy::Deny {
            flag("SourceRangesPolicy", "deny".to_owned());
        }
    }
    match service.proxy_redirects.as_deref().unwrap_or_default() {
        [] => {}
        [redirect] => flag("ProxyRedirects", redirect_text(redirect)),
        redirects => {
            flag(
                "ProxyRedirects",
                format!(
                    "[{}]",
                    redirects.iter().map(redirect_text).collect::<Vec<_>>().join(", ")
                ),
            );
        }
    }
    if service.health_check_node_port != 0 {
        flag("HealthCheckNodePort", service.health_check_node_port.to_string());
    }
    if service.loopback_host_port {
        flag("LoopbackHostPort", "true".to_owned());
    }
    if service.explicit_algorithm() != LbAlgorithm::Unset {
        flag("ExplicitLBAlgorithm", service.explicit_algorithm().to_string());
    }
    if !service.forwarding_mode.as_str().is_empty() {
        flag("ForwardingMode", service.forwarding_mode.to_string());
    }
    if !service.traffic_distribution.as_str().is_empty() {
        flag("TrafficDistribution", service.traffic_distribution.to_string());
    }
    if let Some(class) = &service.load_balancer_class {
        flag("LoadBalancerClass", class.to_string());
    }
    flags.sort_unstable();
    flags.join(", ")
}

fn service_value(service: &Service, form: Form) -> Value {
    let label = |(key, value): (&str, &str)| {
        let label = json!({ "key": key, "value": value, "source": service.label_source() });
        (key.to_owned(), label)
    };
    let labels = (!service.labels.is_absent()).then(|| service.labels.iter().map(label).collect());
    let redirect = |redirect: &ProxyRedirect| {
        let ports =
            (!redirect.ports.is_empty()).then(|| redirect.ports.iter().map(|port| json!(port)).collect());
        form.object([
            ("ProxyPort", redirect.proxy_port.into()),
            ("Ports", form.list(ports)),
        ])
    };
    let redirects = service
        .proxy_redirects
        .as_deref()
        .map(|all| all.iter().map(redirect).collect());
    let ranges = service.source_ranges.as_deref();
    let ranges = ranges.map(|all| all.iter().map(|net| net.to_string().into()).collect());
    let ports = service.port_names.as_deref();
    let ports = ports.map(|all| {
        all.iter()
            .map(|(name, port)| (name.to_string(), json!(port)))
            .collect()
    });
    form.object([
        ("Name", service.name.as_str().into()),
        ("Source", service.source.as_str().into()),
        ("Labels", form.map(labels)),
        ("Annotations", form.strings(&service.annotations)),
        ("Selector", form.strings(&service.selector)),
        ("NatPolicy", service.nat_policy.as_str().into()),
        ("ExtTrafficPolicy", service.ext_traffic_policy.as_str().into()),
        ("IntTrafficPolicy", service.int_traffic_policy.as_str().into()),
        ("ForwardingMode", service.forwarding_mode.as_str().into()),
        ("SessionAffinity", service.session_affinity.into()),
        (
            "SessionAffinityTimeout",
            form.duration(service.session_affinity_timeout),
        ),
        ("LoadBalancerClass", service.load_balancer_class.as_deref().into()),
        ("ProxyRedirects", form.list(redirects)),
        ("HealthCheckNodePort", service.health_check_node_port.into()),
        ("LoopbackHostPort", service.loopback_host_port.into()),
        ("SourceRanges", form.list(ranges)),
        ("PortNames", form.map(ports)),
        (
            "TrafficDistribution",
            service.traffic_distribution.as_str().into(),
        ),
    ])
}

/// A backend as a document; keys as in JSON.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct BackendDocument<'a> {
    service_name: &'a str,
    address: Shown<'a, L3n4Addr>,
    port_names: NameList<'a>,
    weight: u16,
    node_name: &'a str,
    zone: Option<ZoneDocument<'a>>,
    #[serde(rename = "ClusterID")]
    cluster_id: u32,
    source: &'a str,
    state: u8,
    unhealthy: bool,
    unhealthy_updated_at: Option<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ZoneDocument<'a> {
    zone: &'a str,
    for_zones: NameList<'a>,
}

impl<'a> BackendDocument<'a> {
    fn new(backend: &'a Backend, form: Form) -> Self {
        let params = &backend.params;
        Self {
            service_name: backend.service.as_str(),
            address: Shown(&params.address),
            port_names: NameList(&params.port_names, form),
            weight: params.weight,
            node_name: params.node_name.as_deref().unwrap_or_default(),
            zone: params.zone.as_deref().map(|zone| ZoneDocument {
                zone: zone.zone.as_str(),
                for_zones: NameList(&zone.for_zones, form),
            }),
            cluster_id: params.cluster_id,
            source: params.source.as_str(),
            state: params.state as u8,
            unhealthy: backend.unhealthy,
            unhealthy_updated_at: backend.unhealthy_updated_at.as_deref().map(|at| time(*at)),
        }
    }
}

/// As its text.
struct Shown<'a, T>(&'a T);

impl<T: Display> Serialize for Shown<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self.0)
    }
}

// An absent list is null in JSON and empty in YAML.
struct NameList<'a>(&'a Names, Form);

impl Serialize for NameList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_absent() && self.1 == Form::Json {
            return serializer.serialize_none();
        }
        serializer.collect_seq(self.0.iter())
    }
}

struct BackendList<'a>(&'a BackendSet, Form);

impl Serialize for BackendList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|row| BackendDocument::new(row, self.1)))
    }
}

/// A frontend as a document. JSON has the parameters beside the rest, YAML below a key of their own.
#[derive(Serialize)]
struct FrontendDocument<'a> {
    #[serde(flatten)]
    params: FrontendParamsDocument<'a>,
    #[serde(flatten)]
    managed: FrontendManaged<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct FrontendParamsDocument<'a> {
    address: Shown<'a, L3n4Addr>,
    r#type: &'a str,
    service_name: &'a str,
    port_name: &'a str,
    service_port: u16,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct FrontendManaged<'a> {
    status: &'a Status,
    backends: BackendList<'a>,
    health_check_backends: BackendList<'a>,
    #[serde(rename = "ID")]
    id: u16,
    redirect_to: Option<&'a str>,
}

impl<'a> FrontendDocument<'a> {
    fn new(frontend: &'a Frontend, form: Form) -> Self {
        Self {
            params: FrontendParamsDocument {
                address: Shown(&frontend.params.address),
                r#type: frontend.params.kind.as_str(),
                service_name: frontend.service.name.as_str(),
                port_name: frontend.params.port_name.as_str(),
                service_port: frontend.params.service_port,
            },
            managed: FrontendManaged {
                status: &frontend.status,
                backends: BackendList(&frontend.backends, form),
                health_check_backends: BackendList(&frontend.health_check_backends, form),
                id: frontend.id,
                redirect_to: frontend.redirect_to.as_ref().map(|name| name.as_str()),
            },
        }
    }
}

impl Row for Service {
    fn header() -> &'static [&'static str] {
        &["Name", "Source", "PortNames", "TrafficPolicy", "Flags"]
    }

    fn cells(&self) -> Vec<String> {
        let ports = self.port_names.as_deref().unwrap_or_default();
        let ports: Vec<String> = ports
            .iter()
            .map(|(name, port)| format!("{name}={port}"))
            .collect();
        let policy = match (self.ext_traffic_policy, self.int_traffic_policy) {
            (ext, int) if ext == int => ext.to_string(),
            (ext, int) => format!("Ext={ext}, Int={int}"),
        };
        vec![
            self.name.to_string(),
            self.source.to_string(),
            ports.join(", "),
            policy,
            service_flags(self),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(service_value(self, Form::Json))
    }

    fn to_yaml(&self) -> Result<Value, BoxError> {
        Ok(service_value(self, Form::Yaml))
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        yaml::service(text)
    }

    fn type_name() -> String {
        "*loadbalancer.Service".to_owned()
    }
}

impl Row for Frontend {
    fn header() -> &'static [&'static str] {
        &[
            "Address",
            "Type",
            "ServiceName",
            "PortName",
            "Backends",
            "RedirectTo",
            "Status",
            "Since",
            "Error",
        ]
    }

    fn cells(&self) -> Vec<String> {
        let shown: Vec<String> = self
            .backends
            .iter()
            .take(SHOWN_BACKENDS)
            .map(|row| row.params.address.to_string())
            .collect();
        let mut backends = shown.join(", ");
        if self.backends.len() > SHOWN_BACKENDS {
            backends.push_str(&format!(" + {} more ...", self.backends.len() - SHOWN_BACKENDS));
        }
        vec![
            self.params.address.to_string(),
            self.params.kind.to_string(),
            self.service.name.to_string(),
            self.params.port_name.to_string(),
            backends,
            self.redirect_to
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            self.status.kind.to_string(),
            since(self.status.updated_at),
            self.status.error.as_deref().unwrap_or_default().to_owned(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(&FrontendDocument::new(self, Form::Json))
    }

    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), BoxError> {
        row::write_json(&FrontendDocument::new(self, Form::Json), out)
    }

    fn to_yaml(&self) -> Result<Value, BoxError> {
        let FrontendDocument { params, managed } = FrontendDocument::new(self, Form::Yaml);
        let status = serde_json::to_value(managed.status)?;
        let mut document = json!({ "frontendparams": row::lower_case_keys(row::to_json(&params)?) });
        if let (Value::Object(all), Value::Object(managed)) =
            (&mut document, row::lower_case_keys(row::to_json(&managed)?))
        {
            all.extend(managed);
            all.insert("status".to_owned(), status);
        }
        Ok(document)
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        yaml::frontend(text)
    }

    fn type_name() -> String {
        "*loadbalancer.Frontend".to_owned()
    }
}

impl Row for NodeFacts {
    fn header() -> &'static [&'static str] {
        &["Name", "Zone", "Addresses", "NodePortAddresses"]
    }

    fn cells(&self) -> Vec<String> {
        let list = |ips: Vec<IpAddr>| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        vec![
            self.name.to_string(),
            self.zone.as_deref().unwrap_or_default().to_owned(),
            list(sorted_addresses(self)),
            list(node_port_addresses(self)),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "Name": &*self.name,
            "Zone": self.zone.as_deref().unwrap_or_default(),
            "Addresses": sorted_addresses(self),
            "NodePortAddresses": node_port_addresses(self),
        }))
    }
}

fn sorted_addresses(facts: &NodeFacts) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = facts.addresses.all.iter().copied().collect();
    ips.sort_unstable();
    ips
}

fn node_port_addresses(facts: &NodeFacts) -> Vec<IpAddr> {
    let both = [false, true].map(|ipv6| facts.addresses.node_ports(ipv6));
    both.concat()
}

impl Row for Backend {
    fn header() -> &'static [&'static str] {
        &[
            "Service",
            "Address",
            "Source",
            "Priority",
            "State",
            "PortNames",
            "NodeName",
        ]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.service.to_string(),
            self.params.address.to_string(),
            self.params.source.to_string(),
            self.source_priority.to_string(),
            self.params.state.to_string(),
            self.params.port_names.iter().collect::<Vec<_>>().join(","),
            self.params.node_name.as_deref().unwrap_or_default().to_owned(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(&BackendDocument::new(self, Form::Json))
    }

    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), BoxError> {
        row::write_json(&BackendDocument::new(self, Form::Json), out)
    }

    fn to_yaml(&self) -> Result<Value, BoxError> {
        let document = row::to_json(&BackendDocument::new(self, Form::Yaml))?;
        Ok(row::lower_case_keys(document))
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        yaml::backend(text)
    }

    fn type_name() -> String {
        "*loadbalancer.Backend".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{BackendParams, FrontendKind, FrontendParams, ServiceName, Source};

    fn service() -> Service {
        let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
        service.session_affinity = true;
        service.session_affinity_timeout = Duration::from_secs(10800);
        service.labels = [("app", "web")].into_iter().collect();
        service.port_names = Some([("dns".into(), 53), ("http".into(), 80)].into());
        service.ext_traffic_policy = crate::types::TrafficPolicy::Local;
        service.proxy_redirects = Some(
            [ProxyRedirect {
                proxy_port: 1000,
                ports: [80, 443].into(),
            }]
            .into(),
        );
        service
    }

    #[test]
    fn cells_of_a_service() {
        assert_eq!(
            service().cells(),
            [
                "shop/web",
                "k8s",
                "dns=53, http=80",
                "Ext=Local, Int=Cluster",
                "ProxyRedirects=1000 (ports: [80 443]), SessionAffinity=3h0m0s"
            ]
        );
    }

    #[test]
    fn service_survives_yaml() {
        let yaml = serde_norway::to_string(&service().to_yaml().unwrap()).unwrap();
        assert!(
            yaml.contains("sessionaffinitytimeout: 3h0m0s") && yaml.contains("annotations: {}"),
            "{yaml}"
        );
        let json = service().to_json().unwrap();
        assert_eq!(json["SessionAffinityTimeout"], 10_800_000_000_000_u64);
        assert_eq!(json["Annotations"], Value::Null);
        assert_eq!(json["Labels"]["app"]["source"], "k8s");

        let back = Service::from_yaml(&yaml).unwrap();
        assert_eq!(back.to_yaml().unwrap(), service().to_yaml().unwrap());
    }

    #[test]
    fn frontend_and_backend_survive_yaml() {
        let params = FrontendParams {
            address: "[fd00::1]:80/TCP".parse().unwrap(),
            kind: FrontendKind::NodePort,
            port_name: "http".into(),
            service_port: 80,
        };
        let frontend = Frontend::new(params, crate::testing::service(service()));
        let json = frontend.to_json().unwrap();
        let mut written = Vec::new();
        frontend.write_json(&mut written).unwrap();
        assert_eq!(written, json.to_string().as_bytes());
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(
            keys,
            [
                "Address",
                "Type",
                "ServiceName",
                "PortName",
                "ServicePort",
                "Status",
                "Backends",
                "HealthCheckBackends",
                "ID",
                "RedirectTo"
            ]
        );
        let back =
            Frontend::from_yaml(&serde_norway::to_string(&frontend.to_yaml().unwrap()).unwrap()).unwrap();
        assert_eq!(back.params, frontend.params);
        assert_eq!(back.service.name, frontend.service.name);

        let mut params = BackendParams::new("10.0.0.1:80/TCP".parse().unwrap(), Source::Kubernetes);
        params.node_name = Some("n1".into());
        params.port_names = ["http"].into_iter().collect();
        let backend = Backend::new(ServiceName::new("shop", "web"), params);
        let back =
            Backend::from_yaml(&serde_norway::to_string(&backend.to_yaml().unwrap()).unwrap()).unwrap();
        assert_eq!(back, backend);
        assert_eq!(
            backend.cells(),
            ["shop/web", "10.0.0.1:80/TCP", "k8s", "4", "active", "http", "n1"]
        );
    }
}
