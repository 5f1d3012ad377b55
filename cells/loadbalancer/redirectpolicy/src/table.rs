// SPDX-License-Identifier: Apache-2.0

//! Tables `localredirectpolicies` and `desired-skiplbmap`.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use compact_str::CompactString;
use hive_script::text::human_duration;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use skep_loadbalancer_model::{L3n4Addr, ServiceName};
use statedb::reconciler::{Status, StatusKind};
use statedb::row::{BoxError, from_yaml};
use statedb::{Db, Index, Row, RwTable};

use crate::{Policy, Target};

/// Policies by `namespace/name`.
pub const POLICY_BY_ID: Index<Policy, str> = Index::new("id", |policy, keys| keys.add(policy.name.as_str()));
/// Policies by the service they redirect.
pub const POLICY_BY_SERVICE: Index<Policy, str> = Index::new("service", |policy, keys| {
    if let Some(service) = policy.service() {
        keys.add(service.as_str());
    }
});
/// Policies by the addresses they redirect.
pub const POLICY_BY_ADDRESS: Index<Policy, [u8]> = Index::new("address", |policy, keys| {
    policy
        .addresses()
        .for_each(|(address, _)| keys.add(&address.key()));
});

/// Table `localredirectpolicies`.
pub(crate) fn policies(db: Db) -> Result<RwTable<Policy>, statedb::Error> {
    RwTable::builder("localredirectpolicies")
        .primary(POLICY_BY_ID)
        .index(POLICY_BY_SERVICE)
        .index(POLICY_BY_ADDRESS)
        .build(&db)
}

fn joined<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items
        .into_iter()
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

impl Row for Policy {
    fn header() -> &'static [&'static str] {
        &[
            "Name",
            "Type",
            "Service",
            "FrontendType",
            "Frontends",
            "BackendSelector",
        ]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.to_string(),
            self.target.kind().to_owned(),
            self.service().map(ToString::to_string).unwrap_or_default(),
            self.frontend_type.to_string(),
            joined(self.addresses().map(|(address, _)| address)),
            self.selector.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        let ports = |ports: &[crate::Port]| -> Value {
            ports.iter().map(|port| json!({"Port": port.number, "Protocol": port.proto.as_str(), "Name": port.name.as_str()})).collect()
        };
        let address = match &self.target {
            Target::Address(ip) => Some(ip.to_string()),
            Target::Service(_) => None,
        };
        Ok(json!({
            "ID": self.name,
            "UID": self.uid.as_str(),
            "LRPType": self.target.kind(),
            "FrontendType": self.frontend_type.as_str(),
            "ServiceID": self.service(),
            "Address": address,
            "FrontendPorts": ports(&self.frontend_ports),
            "BackendSelector": self.selector.to_string(),
            "BackendPorts": ports(&self.backend_ports),
            "SkipRedirectFromBackend": self.skips_own_traffic,
        }))
    }
}

impl Target {
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Address(_) => "address",
            Self::Service(_) => "service",
        }
    }
}

/// What a pod should reach untranslated. Row of table `desired-skiplbmap`, one a pod; immutable once inserted.
///
/// Two cells write it: the controller knows the policies, whoever creates endpoints knows the cookie. Either may come
/// first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SkipRedirects {
    /// `namespace/name` of the pod.
    pub pod: CompactString,
    /// Policies that redirect to the pod and leave its own traffic alone.
    pub policies: BTreeSet<ServiceName>,
    pub frontends: BTreeSet<L3n4Addr>,
    /// Cookie of the pod's network namespace.
    pub cookie: Option<u64>,
    /// Whether the maps follow; unset: nothing is asked of them.
    pub status: Status,
}

impl SkipRedirects {
    /// The row with the status of one that the maps do not follow yet. Without a cookie there is nothing to follow, which
    /// an unset status says.
    pub(crate) fn unwritten(mut self) -> Self {
        self.status = match self.cookie {
            Some(_) => Status::pending(),
            None => Status::default(),
        };
        self
    }
}

/// Pods by `namespace/name`.
pub const SKIP_BY_POD: Index<SkipRedirects, str> = Index::new("pod-name", |row, keys| keys.add(&row.pod));
pub const SKIP_BY_POLICY: Index<SkipRedirects, str> = Index::new("lrp-id", |row, keys| {
    row.policies.iter().for_each(|policy| keys.add(policy.as_str()));
});

/// Table `desired-skiplbmap`.
pub(crate) fn skips(db: Db) -> Result<RwTable<SkipRedirects>, statedb::Error> {
    RwTable::builder("desired-skiplbmap")
        .primary(SKIP_BY_POD)
        .index(SKIP_BY_POLICY)
        .build(&db)
}

/// The YAML form of [`SkipRedirects`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct SkipDocument {
    podnamespacedname: CompactString,
    lrpid: Option<ServiceName>,
    netnscookie: Option<u64>,
    status: Status,
}

impl Row for SkipRedirects {
    fn header() -> &'static [&'static str] {
        &[
            "Pod",
            "LocalRedirectPolicy",
            "SkipRedirects",
            "NetnsCookie",
            "Status",
            "Since",
        ]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.pod.to_string(),
            joined(&self.policies),
            {
                let mut texts: Vec<String> = self.frontends.iter().map(ToString::to_string).collect();
                texts.sort();
                texts.join(", ")
            },
            self.cookie
                .map_or_else(|| "<unset>".to_owned(), |cookie| cookie.to_string()),
            self.status.kind.to_string(),
            human_duration(since(self.status.updated_at)),
        ]
    }

    /// Frontends are keys of a map in this form, which JSON has no text for: only YAML shows it.
    fn to_yaml(&self) -> Result<Value, BoxError> {
        let frontends: Vec<String> = self.frontends.iter().map(ToString::to_string).collect();
        let in_maps = self.status.kind == StatusKind::Done && self.cookie.is_some();
        let reconciled: Map<String, Value> = frontends
            .iter()
            .filter(|_| in_maps)
            .map(|address| (address.clone(), json!({})))
            .collect();
        Ok(json!({
            "podnamespacedname": self.pod.as_str(),
            "lrpid": joined(&self.policies),
            "skipredirectforfrontends": frontends,
            "reconciledaddrs": reconciled,
            "netnscookie": self.cookie,
            "status": serde_json::to_value(&self.status)?,
        }))
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        let document: SkipDocument = from_yaml(text)?;
        Ok(Self {
            pod: document.podnamespacedname,
            policies: document.lrpid.into_iter().collect(),
            frontends: BTreeSet::new(),
            cookie: document.netnscookie,
            status: document.status,
        })
    }
}

fn since(time: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(time)).unwrap_or_default()
}
