// SPDX-License-Identifier: Apache-2.0

//! Files of recorded scenarios.

use std::{collections::BTreeMap, net::IpAddr, path::Path};

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::Error;

#[derive(Debug, Deserialize)]
pub(crate) struct Group {
    pub format: u32,
    pub group: String,
    pub scenarios: Vec<Value>,
}

impl Group {
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        let group: Self = serde_json::from_slice(&text).map_err(|source| Error::Parse {
            path: path.to_owned(),
            source,
        })?;
        match group.format {
            1 => Ok(group),
            format => Err(Error::Format {
                path: path.to_owned(),
                format,
            }),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Scenario {
    pub name: String,
    #[serde(default)]
    pub cluster: String,
    #[serde(default)]
    pub options: BTreeMap<String, Value>,
    #[serde(default)]
    pub peer_fault: Option<String>,
    #[serde(default)]
    pub identities: Vec<(u32, Vec<String>)>,
    #[serde(default)]
    pub ipcache: Vec<Metadata>,
    #[serde(default)]
    pub pods: Vec<Pod>,
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    #[serde(default)]
    pub services: Vec<Service>,
    #[serde(default)]
    pub listeners: Vec<String>,
    #[serde(default)]
    pub secrets: Option<BTreeMap<String, BTreeMap<String, String>>>,
    #[serde(default)]
    pub origins: Vec<String>,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Metadata {
    pub prefix: IpNet,
    #[serde(default)]
    pub labels: Vec<String>,
    pub resource: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pod {
    pub ip: IpAddr,
    pub identity: u32,
    #[serde(default)]
    pub named_ports: Vec<NamedPort>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct NamedPort {
    pub name: String,
    pub port: u16,
    #[serde(default)]
    pub protocol: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Endpoint {
    pub name: String,
    pub id: u16,
    pub identity: u32,
    #[serde(default)]
    pub named_ports: Option<Vec<NamedPort>>,
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub labels: Option<Vec<String>>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Service {
    #[serde(default)]
    pub namespace: String,
    pub name: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub selector: BTreeMap<String, String>,
    #[serde(default)]
    pub backends: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    #[serde(rename = "do", default)]
    pub operations: Vec<Operation>,
    #[serde(default)]
    pub results: Vec<OperationResult>,
    #[serde(default)]
    pub local_identities: Option<Vec<(u32, Vec<String>)>>,
    #[serde(default)]
    pub ipcache: Option<Vec<(IpNet, u32)>>,
    #[serde(default)]
    pub selectors: BTreeMap<String, Option<(usize, Vec<u32>)>>,
    #[serde(default)]
    pub subjects: BTreeMap<String, Option<(usize, Vec<u32>)>>,
    #[serde(default)]
    pub endpoints: BTreeMap<String, EndpointState>,
    #[serde(default)]
    pub probes: Vec<Probe>,
    #[serde(default)]
    pub probes_if_recomputed: Vec<Probe>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub(crate) enum Operation {
    Apply {
        yaml: String,
    },
    Delete {
        yaml: String,
    },
    IdentityAdd {
        identity: Identity,
    },
    IdentityDelete {
        identity: IdentityRef,
    },
    Identities {
        #[serde(default)]
        add: Vec<Identity>,
        #[serde(default)]
        delete: Vec<u32>,
    },
    IpcacheUpsert {
        ipcache: Metadata,
    },
    IpcacheRemove {
        ipcache: Metadata,
    },
    PodUpsert {
        pod: Pod,
    },
    PodDelete {
        pod: Pod,
    },
    ServiceUpsert {
        service: Service,
    },
    ServiceDelete {
        service: Service,
    },
    DnsAnswer {
        name: String,
        #[serde(default)]
        ips: Vec<IpAddr>,
    },
    DnsExpire {
        name: String,
    },
    ListenerAdd {
        #[serde(alias = "name")]
        listener: ListenerRef,
    },
    ListenerDelete {
        #[serde(alias = "name")]
        listener: ListenerRef,
    },
    EndpointAdd {
        endpoint: Endpoint,
    },
    EndpointIdentity {
        endpoint: Endpoint,
    },
    EndpointPorts {
        endpoint: Endpoint,
    },
    Recompute,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Identity {
    pub id: u32,
    #[serde(default)]
    pub labels: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum IdentityRef {
    Whole(Identity),
    Number(u32),
}

impl IdentityRef {
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Whole(identity) => identity.id,
            Self::Number(number) => *number,
        }
    }
}

/// `<namespace>/<configuration>/<listener>`
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ListenerRef {
    Name(String),
    Object { name: String },
}

impl ListenerRef {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Name(name) | Self::Object { name } => name,
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct OperationResult {
    pub op: usize,
    #[serde(default)]
    pub class: Option<String>,
    #[serde(default)]
    pub error: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointState {
    pub identity: u32,
    pub ingress: bool,
    pub egress: bool,
    #[serde(default)]
    pub error: Option<String>,
    #[serde(default)]
    pub map: Option<Vec<Value>>,
    #[serde(default)]
    pub map_if_recomputed: Option<Vec<Value>>,
    #[serde(default)]
    pub l7: Option<Vec<Value>>,
    #[serde(default)]
    pub redirects: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub skipped_redirects: Option<usize>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Probe {
    pub endpoint: String,
    pub direction: String,
    pub ports: Vec<String>,
    pub rows: Vec<(Value, u32, String)>,
}
