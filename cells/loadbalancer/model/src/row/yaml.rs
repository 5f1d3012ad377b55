// SPDX-License-Identifier: Apache-2.0

//! Rows from YAML documents: lower-case keys, unknown ones ignored, missing ones zero.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use compact_str::CompactString;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use statedb::reconciler::Status;
use statedb::row::{BoxError, from_yaml};
use statedb::{Db, Index, RwTable, WriteTarget};

use crate::types::{
    Backend, BackendParams, BackendState, BackendZone, ForwardingMode, Frontend, FrontendKind,
    FrontendParams, L3n4Addr, L4Proto, Names, NatPolicy, ProxyRedirect, Service, ServiceName, ServiceRow,
    Source, StringMap, TrafficDistribution, TrafficPolicy,
};

fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServiceText {
    name: String,
    source: String,
    #[serde(deserialize_with = "or_default")]
    labels: BTreeMap<CompactString, LabelText>,
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<CompactString, CompactString>,
    #[serde(deserialize_with = "or_default")]
    selector: BTreeMap<CompactString, CompactString>,
    natpolicy: String,
    exttrafficpolicy: String,
    inttrafficpolicy: String,
    forwardingmode: String,
    sessionaffinity: bool,
    sessionaffinitytimeout: String,
    loadbalancerclass: Option<Arc<str>>,
    #[serde(deserialize_with = "or_default")]
    proxyredirects: Vec<RedirectText>,
    healthchecknodeport: u16,
    loopbackhostport: bool,
    #[serde(deserialize_with = "or_default")]
    sourceranges: Vec<IpNet>,
    #[serde(deserialize_with = "or_default")]
    portnames: BTreeMap<CompactString, u16>,
    trafficdistribution: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LabelText {
    value: CompactString,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RedirectText {
    proxyport: u16,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<u16>,
}

fn strings<V: Into<CompactString>>(map: BTreeMap<CompactString, V>) -> StringMap {
    if map.is_empty() {
        StringMap::ABSENT
    } else {
        map.into_iter().collect()
    }
}

fn non_empty<T>(items: Vec<T>) -> Option<Arc<[T]>> {
    (!items.is_empty()).then(|| items.into())
}

fn name(text: &str) -> Result<ServiceName, BoxError> {
    if text.is_empty() {
        Ok(ServiceName::default())
    } else {
        Ok(text.parse()?)
    }
}

// Sources never fail to parse: unknown ones rank last.
fn source(text: &str) -> Source {
    Source::from_str(text).unwrap_or_default()
}

fn zero_address() -> L3n4Addr {
    L3n4Addr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), 0, L4Proto::None)
}

fn address(text: &str) -> Result<L3n4Addr, BoxError> {
    if text.is_empty() {
        Ok(zero_address())
    } else {
        Ok(text.parse()?)
    }
}

/// Hours, minutes and seconds, as Go prints them.
fn duration(text: &str) -> Result<Duration, BoxError> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(|| format!("bad duration {text:?}"))?;
        let number: f64 = rest[..end].parse()?;
        let unit_end = rest[end..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(rest.len(), |at| end + at);
        total += number
            * match &rest[end..unit_end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                unit => return Err(format!("bad duration {text:?}: unit {unit:?}").into()),
            };
        rest = &rest[unit_end..];
    }
    Ok(Duration::try_from_secs_f64(total)?)
}

pub(super) fn service(text: &str) -> Result<Service, BoxError> {
    let text: ServiceText = from_yaml(text)?;
    let redirects = text.proxyredirects.into_iter();
    let redirects = redirects
        .map(|r| ProxyRedirect {
            proxy_port: r.proxyport,
            ports: r.ports.into(),
        })
        .collect();
    let labels: BTreeMap<CompactString, CompactString> = text
        .labels
        .into_iter()
        .map(|(key, label)| (key, label.value))
        .collect();
    Ok(Service {
        name: name(&text.name)?,
        source: source(&text.source),
        labels: strings(labels),
        annotations: strings(text.annotations),
        selector: strings(text.selector),
        nat_policy: NatPolicy::from_text(&text.natpolicy).unwrap_or_default(),
        ext_traffic_policy: TrafficPolicy::from_text(&text.exttrafficpolicy).unwrap_or_default(),
        int_traffic_policy: TrafficPolicy::from_text(&text.inttrafficpolicy).unwrap_or_default(),
        forwarding_mode: ForwardingMode::from_text(&text.forwardingmode).unwrap_or_default(),
        session_affinity: text.sessionaffinity,
        session_affinity_timeout: duration(&text.sessionaffinitytimeout)?,
        load_balancer_class: text.loadbalancerclass,
        proxy_redirects: non_empty(redirects),
        health_check_node_port: text.healthchecknodeport,
        loopback_host_port: text.loopbackhostport,
        source_ranges: non_empty(text.sourceranges),
        port_names: non_empty(text.portnames.into_iter().collect()),
        traffic_distribution: TrafficDistribution::from_text(&text.trafficdistribution).unwrap_or_default(),
    })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BackendText {
    servicename: String,
    address: String,
    #[serde(deserialize_with = "or_default")]
    portnames: Vec<CompactString>,
    weight: u16,
    nodename: String,
    zone: Option<ZoneText>,
    clusterid: u32,
    source: String,
    state: u8,
    unhealthy: bool,
    unhealthyupdatedat: Option<jiff::Timestamp>,
    sourcepriority: Option<u8>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ZoneText {
    zone: CompactString,
    #[serde(deserialize_with = "or_default")]
    forzones: Vec<CompactString>,
}

pub(super) fn backend(text: &str) -> Result<Backend, BoxError> {
    let text: BackendText = from_yaml(text)?;
    let names = |names: Vec<CompactString>| {
        if names.is_empty() {
            Names::ABSENT
        } else {
            names.into_iter().collect()
        }
    };
    let zone = text.zone.map(|zone| BackendZone {
        zone: zone.zone,
        for_zones: names(zone.forzones),
    });
    let params = BackendParams {
        address: address(&text.address)?,
        port_names: names(text.portnames),
        weight: text.weight,
        node_name: (!text.nodename.is_empty()).then(|| text.nodename.into()),
        zone: zone.map(Arc::new),
        cluster_id: text.clusterid,
        source: source(&text.source),
        claimant: 0,
        state: BackendState::from_number(text.state).ok_or_else(|| format!("bad state {}", text.state))?,
    };
    let mut backend = Backend::new(name(&text.servicename)?, params);
    backend.unhealthy = text.unhealthy;
    backend.unhealthy_updated_at = text.unhealthyupdatedat.map(|at| Box::new(at.into()));
    if let Some(priority) = text.sourcepriority {
        backend.source_priority = priority;
    }
    Ok(backend)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FrontendText {
    frontendparams: FrontendParamsText,
    status: Option<Status>,
    id: u16,
    redirectto: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FrontendParamsText {
    address: String,
    r#type: String,
    servicename: String,
    portname: CompactString,
    serviceport: u16,
}

pub(super) fn frontend(text: &str) -> Result<Frontend, BoxError> {
    let text: FrontendText = from_yaml(text)?;
    let params = FrontendParams {
        address: address(&text.frontendparams.address)?,
        kind: FrontendKind::from_text(&text.frontendparams.r#type).unwrap_or_default(),
        port_name: text.frontendparams.portname,
        service_port: text.frontendparams.serviceport,
    };
    let service = Service::new(name(&text.frontendparams.servicename)?, Source::Unspec);
    let mut frontend = Frontend::new(params, detached(service)?);
    frontend.status = text.status.unwrap_or_default();
    frontend.id = text.id;
    frontend.redirect_to = text.redirectto.as_deref().map(name).transpose()?;
    Ok(frontend)
}

// A row that is in no table anybody sees: a frontend from text names its service and knows nothing else of it.
fn detached(service: Service) -> Result<ServiceRow, BoxError> {
    let db = Db::new();
    let key = Index::<Service, str>::new("name", |row, keys| keys.add(row.name.as_str()));
    let table: RwTable<Service> = RwTable::builder("services").primary(key).build_plain(&db)?;
    let mut txn = db.write(&[&table as &dyn WriteTarget]);
    Ok(table.insert_get(&mut txn, service)?)
}
