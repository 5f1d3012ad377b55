// SPDX-License-Identifier: Apache-2.0

//! Table `endpoints`.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use serde_json::{Value, json};
use skep_bpf_maps::endpoint::{self as family, LxcKey, LxcValue, endpoint_flags, lxc_flags};
use skep_identity::{Labels, NumericIdentity};
use skep_k8s_types::slim::Str;
use skep_policy_maps::Realized;
use statedb::{
    Db, Index, Row, RwTable, Table,
    reconciler::{Status, StatusField, StatusKind},
    row::BoxError,
};

use crate::{
    DatapathConfiguration, EndpointLabels, EndpointOptions, EndpointPod, Mac, StatusCode, StatusLog,
};

/// What an endpoint is: an interface with addresses and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSpec {
    /// Id of its container in the runtime.
    pub container_id: String,
    /// Name of the interface in the container.
    pub container_interface: String,
    pub netns: String,
    /// Cookie of that namespace; 0 if unknown.
    pub netns_cookie: u64,
    /// Name of the interface on the node's side.
    pub interface: String,
    pub ifindex: u32,
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Pool of the IPv4 address.
    pub ipv4_pool: String,
    /// Pool of the IPv6 address.
    pub ipv6_pool: String,
    pub mac: Mac,
    /// Hardware address of the interface on the node's side.
    pub host_mac: Mac,
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    /// Labels of the request, in addition to those of the pod.
    pub labels: Labels,
    /// IPv4 packets to the world keep their source.
    pub skip_masquerade4: bool,
    /// IPv6 packets to the world keep their source.
    pub skip_masquerade6: bool,
    /// What it requests of the datapath; settings of the node come before.
    pub datapath: DatapathConfiguration,
}

impl EndpointSpec {
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.ipv4.map(IpAddr::from);
        v4.into_iter().chain(self.ipv6.map(IpAddr::from))
    }

    /// This one with what another one has.
    pub(crate) fn changed(&self, change: &Self) -> Self {
        let text = |own: &String, other: &String| match other.is_empty() {
            true => own.clone(),
            false => other.clone(),
        };
        let number = |own: u32, other: u32| if other == 0 { own } else { other };
        let mac = |own: Mac, other: Mac| if other == Mac::default() { own } else { other };
        Self {
            container_id: text(&self.container_id, &change.container_id),
            container_interface: text(&self.container_interface, &change.container_interface),
            netns: text(&self.netns, &change.netns),
            netns_cookie: match change.netns_cookie {
                0 => self.netns_cookie,
                cookie => cookie,
            },
            interface: text(&self.interface, &change.interface),
            ifindex: number(self.ifindex, change.ifindex),
            ipv4: change.ipv4.or(self.ipv4),
            ipv6: change.ipv6.or(self.ipv6),
            ipv4_pool: text(&self.ipv4_pool, &change.ipv4_pool),
            ipv6_pool: text(&self.ipv6_pool, &change.ipv6_pool),
            mac: mac(self.mac, change.mac),
            host_mac: mac(self.host_mac, change.host_mac),
            namespace: text(&self.namespace, &change.namespace),
            pod: text(&self.pod, &change.pod),
            pod_uid: text(&self.pod_uid, &change.pod_uid),
            labels: match change.labels.is_empty() {
                true => self.labels.clone(),
                false => change.labels.clone(),
            },
            ..self.clone()
        }
    }

    /// Its addresses, with their pools.
    pub fn allocations(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        let v4 = self.ipv4.map(|address| (address.into(), self.ipv4_pool.as_str()));
        let v6 = self.ipv6.map(|address| (address.into(), self.ipv6_pool.as_str()));
        v6.into_iter().chain(v4)
    }

    /// `<namespace>/<name>` of its pod; none without pod.
    pub fn pod_name(&self) -> Option<String> {
        (!self.pod.is_empty()).then(|| format!("{}/{}", self.namespace, self.pod))
    }

    /// `<container>:<interface>`: an interface in a container; none without container.
    pub fn attachment(&self) -> Option<String> {
        (!self.container_id.is_empty()).then(|| format!("{}:{}", self.container_id, self.container_interface))
    }
}

/// Where an endpoint is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Live,
    /// It was there before this run of the agent.
    Restored,
    /// It was created in a state after which none is built.
    NeverBuilt,
    Disconnecting,
    /// Nothing of it is left outside the table.
    Disconnected,
}

/// State of an endpoint, as Cilium names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointState {
    /// That of an endpoint whose creator named a state in which none begins.
    None,
    WaitingForIdentity,
    WaitingToRegenerate,
    /// It is being written.
    Regenerating,
    /// As before, after a restart of the agent.
    Restoring,
    /// Programs deliver to it, and take its packets.
    Ready,
    /// It was not written, and is tried again.
    NotReady,
    Disconnecting,
    Disconnected,
}

impl EndpointState {
    /// States that are counted.
    pub const ALL: [Self; 8] = [
        Self::WaitingForIdentity,
        Self::WaitingToRegenerate,
        Self::Regenerating,
        Self::Restoring,
        Self::Ready,
        Self::NotReady,
        Self::Disconnecting,
        Self::Disconnected,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::WaitingForIdentity => "waiting-for-identity",
            Self::WaitingToRegenerate => "waiting-to-regenerate",
            Self::Regenerating => "regenerating",
            Self::Restoring => "restoring",
            Self::Ready => "ready",
            Self::NotReady => "not-ready",
            Self::Disconnecting => "disconnecting",
            Self::Disconnected => "disconnected",
        }
    }
}

impl fmt::Display for EndpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why an endpoint is written, as Cilium names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegenerationReason {
    DaemonConfigUpdate,
    #[default]
    EndpointInit,
    EndpointRestore,
    EndpointUpdate,
    LabelsUpdate,
    PolicyUpdate,
}

impl RegenerationReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DaemonConfigUpdate => "DaemonConfigUpdate",
            Self::EndpointInit => "EndpointInit",
            Self::EndpointRestore => "EndpointRestore",
            Self::EndpointUpdate => "EndpointUpdate",
            Self::LabelsUpdate => "LabelsUpdate",
            Self::PolicyUpdate => "PolicyUpdate",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Endpoint {
    /// Its id, unique on the node.
    pub id: u16,
    pub spec: Arc<EndpointSpec>,
    /// Its pod; none until Kubernetes has reported it.
    pub pod: Option<Arc<EndpointPod>>,
    pub labels: Arc<EndpointLabels>,
    /// Its security identity. Without one it is not written to the maps.
    pub identity: Option<NumericIdentity>,
    /// Labels of its identity; those of [`labels`](Self::labels) once the identity is theirs.
    pub identity_labels: Arc<Labels>,
    /// It is the node itself, at `cilium_host`.
    pub is_host: bool,
    /// Its addresses stay allocated when it is deleted.
    pub keeps_addresses: bool,
    pub options: Arc<EndpointOptions>,
    /// Interface and addresses before a change; none once they are out of maps and hooks.
    pub former: Option<Arc<EndpointSpec>>,
    /// It was written once since the agent has started.
    pub is_written: bool,
    /// Uid of its CiliumEndpoint, if it has one.
    pub cilium_endpoint_uid: Str,
    /// Why it is written next, or was written last.
    pub reason: RegenerationReason,
    pub log: StatusLog,
    /// Its policy as realized in its map. Without one it is not written to the maps.
    pub policy: Option<Realized>,
    /// Where it is in its life.
    pub phase: Phase,
    /// Whether the maps and hooks are as they must be.
    pub status: Status,
}

impl Endpoint {
    pub const BY_ID: Index<Self, u16> = Index::new("id", |row, keys| keys.add(&row.id));
    /// By the interface on the node's side.
    pub const BY_INTERFACE: Index<Self, str> =
        Index::new("interface", |row, keys| keys.add(&row.spec.interface));
    pub const BY_ADDRESS: Index<Self, IpAddr> = Index::unique("address", |row, keys| {
        row.spec.addresses().for_each(|address| keys.add(&address));
    });
    /// By `<container>:<interface in it>`.
    pub const BY_ATTACHMENT: Index<Self, str> = Index::unique("attachment", |row, keys| {
        if let Some(attachment) = row.spec.attachment() {
            keys.add(&attachment);
        }
    });
    pub const BY_CONTAINER: Index<Self, str> = Index::new("container", |row, keys| {
        if !row.spec.container_id.is_empty() {
            keys.add(&row.spec.container_id);
        }
    });
    /// By `<namespace>/<name>` of the pod.
    pub const BY_POD: Index<Self, str> = Index::new("pod", |row, keys| {
        if let Some(pod) = row.spec.pod_name() {
            keys.add(&pod);
        }
    });
    pub(crate) const STATUS: StatusField<Self> = StatusField {
        get: |row| row.status.clone(),
        set: |row, status| row.status = status,
    };

    /// Whether it is not being deleted.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live | Phase::Restored | Phase::NeverBuilt)
    }

    /// Whether it is the listener of Ingresses: addresses without interface, whose packets the kernel takes.
    pub fn is_ingress(&self) -> bool {
        self.identity == Some(NumericIdentity::INGRESS) && self.spec.interface.is_empty()
    }

    /// Whether programs may be at its interface. An endpoint that never was ready has none.
    pub(crate) fn is_attached(&self) -> bool {
        self.is_written || !matches!(self.phase, Phase::Live | Phase::NeverBuilt)
    }

    pub fn state(&self) -> EndpointState {
        match (self.phase, self.status.kind) {
            (Phase::Disconnected, _) => EndpointState::Disconnected,
            (Phase::Disconnecting, _) => EndpointState::Disconnecting,
            (Phase::NeverBuilt, _) => EndpointState::None,
            _ if self.identity.is_none() => EndpointState::WaitingForIdentity,
            (_, StatusKind::Error) => EndpointState::NotReady,
            (_, StatusKind::Done | StatusKind::Refreshing) if self.policy.is_some() || self.is_host => {
                EndpointState::Ready
            }
            _ if self.log.last_state() == Some(EndpointState::Regenerating) => EndpointState::Regenerating,
            (Phase::Restored, _) => EndpointState::Restoring,
            (Phase::Live, _) => EndpointState::WaitingToRegenerate,
        }
    }

    /// It is due to be written.
    pub(crate) fn regenerate(&mut self, reason: RegenerationReason, cause: &str) {
        let message = format!(
            "Triggering endpoint regeneration due to {}: {cause}",
            reason.as_str()
        );
        if self.phase == Phase::NeverBuilt {
            let text = format!("Skipped invalid state transition to waiting-to-regenerate due to: {message}");
            return self.log.add(StatusCode::Warning, EndpointState::None, text);
        }
        self.status = Status::pending();
        self.reason = reason;
        self.log.ok(EndpointState::WaitingToRegenerate, message);
    }

    /// Entries of `cilium_lxc`, one for each address.
    pub(crate) fn lxc_entries(&self, identity: NumericIdentity) -> Vec<(LxcKey, LxcValue)> {
        let spec = &*self.spec;
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let value = LxcValue {
            ifindex: spec.ifindex,
            events: self.options.event_bits(),
            endpoint: self.id,
            flags: flag(self.is_ingress(), lxc_flags::AT_HOST_NS)
                | flag(spec.skip_masquerade4, lxc_flags::SKIP_MASQUERADE4)
                | flag(spec.skip_masquerade6, lxc_flags::SKIP_MASQUERADE6),
            mac: spec.mac.padded(),
            node_mac: spec.host_mac.padded(),
            identity: identity.get(),
            ..LxcValue::default()
        };
        spec.addresses()
            .map(|address| (LxcKey::new(address), value))
            .collect()
    }

    /// Entry of `skep_endpoints`, with what is realized of its policy.
    pub(crate) fn facts(&self, identity: NumericIdentity, policy: Realized) -> family::Endpoint {
        let spec = &*self.spec;
        let audit = match self.options.is_audited() {
            true => endpoint_flags::AUDIT,
            false => 0,
        };
        let verify = match self.options.verifies_source() {
            true => endpoint_flags::VERIFY_SOURCE,
            false => 0,
        };
        let arp = match spec.datapath.require_arp_passthrough {
            true => endpoint_flags::ARP_PASSTHROUGH,
            false => 0,
        };
        family::Endpoint {
            ipv4: spec.ipv4.map_or([0; 4], |address| address.octets()),
            ipv6: spec.ipv6.map_or([0; 16], |address| address.octets()),
            identity: identity.get(),
            id: self.id,
            flags: verify | arp | audit | policy.open,
            verdicts: match self.options.reports_verdicts() {
                true => policy.enforced,
                false => 0,
            },
            mac: spec.host_mac.0,
            events: self.options.event_bits(),
            netns_cookie: spec.netns_cookie,
            ..family::Endpoint::default()
        }
    }
}

impl Row for Endpoint {
    fn header() -> &'static [&'static str] {
        &[
            "ID",
            "Interface",
            "IPv4",
            "IPv6",
            "Identity",
            "Labels",
            "Pod",
            "Container",
            "State",
            "Status",
        ]
    }

    fn cells(&self) -> Vec<String> {
        let spec = &*self.spec;
        let text = |address: Option<IpAddr>| address.map(|address| address.to_string()).unwrap_or_default();
        vec![
            self.id.to_string(),
            spec.interface.clone(),
            text(spec.ipv4.map(IpAddr::from)),
            text(spec.ipv6.map(IpAddr::from)),
            self.identity
                .map(|identity| identity.to_string())
                .unwrap_or_default(),
            self.identity_labels.to_string(),
            spec.pod_name().unwrap_or_default(),
            spec.container_id.clone(),
            self.state().to_string(),
            self.status.kind.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        let spec = &*self.spec;
        Ok(json!({
            "ID": self.id,
            "Interface": spec.interface,
            "IfIndex": spec.ifindex,
            "IPv4": spec.ipv4,
            "IPv6": spec.ipv6,
            "MAC": spec.mac,
            "HostMAC": spec.host_mac,
            "Identity": self.identity.map(NumericIdentity::get),
            "PolicyRevision": self.policy.map(|policy| policy.revision),
            "Labels": self.identity_labels.to_string(),
            "DatapathConfiguration": serde_json::to_value(spec.datapath)?,
            "Namespace": spec.namespace,
            "PodName": spec.pod,
            "ContainerID": spec.container_id,
            "State": self.state().as_str(),
            "Status": serde_json::to_value(&self.status)?,
        }))
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<Endpoint>, statedb::Error> {
    RwTable::builder("endpoints")
        .primary(Endpoint::BY_ID)
        .index(Endpoint::BY_INTERFACE)
        .index(Endpoint::BY_ADDRESS)
        .index(Endpoint::BY_ATTACHMENT)
        .index(Endpoint::BY_CONTAINER)
        .index(Endpoint::BY_POD)
        .build(&db)
}

pub(crate) fn read_only(table: RwTable<Endpoint>) -> Table<Endpoint> {
    table.reader()
}
