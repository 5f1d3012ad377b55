// SPDX-License-Identifier: Apache-2.0

//! Endpoints in files: `<state-dir>/state/<id>/ep_config.json`, with Cilium's keys.
//!
//! Cilium's directories are read, too: `<id>_next…` is of a build that was interrupted, and counts only without `<id>`. A
//! directory whose file is not that of an endpoint is moved aside, to `<id>_corrupt`.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skep_identity::{Label, Labels, NumericIdentity, Reserved};
use skep_k8s_types::slim::Str;
use skep_policy_fqdn::{DnsState, Names};

use crate::{DatapathConfiguration, Endpoint, EndpointLabels, EndpointOptions, EndpointSpec, Mac};

/// Name of the file in the folder of an endpoint.
const FILE: &str = "ep_config.json";
/// The file while it is written.
const TEMPORARY: &str = "ep_config.json.tmp";

/// Why an endpoint's file was not read, written or removed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("{what} {}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is not that of an endpoint. It is moved aside: correct it and move it back, or remove it.
    #[error("{} is not the file of an endpoint", path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    /// A field of the file has no value that makes sense. It is moved aside: correct it and move it back, or remove it.
    #[error("{}: {field} is `{value}`", path.display())]
    Field {
        path: PathBuf,
        field: &'static str,
        value: String,
    },
}

/// The folder with the endpoints of this node.
#[derive(Clone, Debug)]
pub struct StateDir {
    folder: PathBuf,
    /// Names that endpoints looked up.
    names: Option<Names>,
    /// One file is written at a time.
    turn: Arc<Mutex<()>>,
}

/// An endpoint as its file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) id: u16,
    pub(crate) spec: EndpointSpec,
    pub(crate) labels: EndpointLabels,
    pub(crate) identity: Option<NumericIdentity>,
    pub(crate) identity_labels: Labels,
    pub(crate) options: EndpointOptions,
    pub(crate) cilium_endpoint_uid: Str,
    /// What the datapath did for it.
    pub(crate) effective: DatapathConfiguration,
    /// Names that it looked up, and its DNS rules.
    pub(crate) dns: DnsState,
}

impl Saved {
    /// Whether it is the listener of Ingresses, which has no interface.
    pub(crate) fn is_ingress(&self) -> bool {
        self.identity == Some(NumericIdentity::INGRESS) && self.spec.interface.is_empty()
    }
}

impl StateDir {
    /// The folder `state` of the agent's state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            folder: state_dir.join("state"),
            names: None,
            turn: Arc::default(),
        }
    }

    /// With the names that endpoints looked up.
    #[must_use]
    pub(crate) fn with_names(mut self, names: Option<Names>) -> Self {
        self.names = names;
        self
    }

    /// What is known of the names of endpoints.
    pub(crate) fn dns_names(&self) -> Option<&Names> {
        self.names.as_ref()
    }

    fn folder(&self, id: u16) -> PathBuf {
        self.folder.join(id.to_string())
    }

    fn file(&self, id: u16) -> PathBuf {
        self.folder(id).join(FILE)
    }

    /// Whether there is a file for this id.
    pub fn has(&self, id: u16) -> bool {
        self.file(id).symlink_metadata().is_ok()
    }

    /// Writes an endpoint's file, atomically; one that says the same is left alone. `effective` is what the datapath does
    /// for it.
    ///
    /// # Errors
    ///
    /// [`StateError`] names the file, which is then as it was before.
    pub fn save(&self, endpoint: &Endpoint, effective: DatapathConfiguration) -> Result<(), StateError> {
        let _turn = self.turn.lock();
        let found = self.read(endpoint.id);
        let dns = match &self.names {
            Some(names) => names.saved(endpoint.id),
            None => match &found {
                Ok(Some(found)) => found.dns.clone(),
                _ => DnsState::default(),
            },
        };
        let saved = Saved {
            id: endpoint.id,
            spec: (*endpoint.spec).clone(),
            labels: (*endpoint.labels).clone(),
            identity: endpoint.identity,
            identity_labels: (*endpoint.identity_labels).clone(),
            options: (*endpoint.options).clone(),
            cilium_endpoint_uid: endpoint.cilium_endpoint_uid.clone(),
            effective,
            dns,
        };
        if found.is_ok_and(|found| found.as_ref() == Some(&saved)) {
            return Ok(());
        }
        self.write(endpoint.id, &File::of(&saved))
    }

    /// Writes the names of an endpoint into its file; fine if there is none.
    ///
    /// # Errors
    ///
    /// [`StateError`] names the file, which is then as it was before.
    pub(crate) fn save_names(&self, id: u16, dns: &DnsState) -> Result<(), StateError> {
        let _turn = self.turn.lock();
        match self.read(id)? {
            Some(mut saved) if saved.dns != *dns => {
                saved.dns = dns.clone();
                self.write(id, &File::of(&saved))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, id: u16, file: &File) -> Result<(), StateError> {
        let path = self.file(id);
        let folder = self.folder(id);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o770)
            .create(&folder)
            .map_err(failed("creating", &folder))?;
        let text = serde_json::to_vec(file).map_err(|source| StateError::Json {
            path: path.clone(),
            source,
        })?;
        let temporary = folder.join(TEMPORARY);
        let mut options = fs::OpenOptions::new();
        let opened = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary);
        let written = opened.and_then(|mut file| file.write_all(&text));
        written.map_err(failed("writing", &temporary))?;
        fs::rename(&temporary, &path).map_err(failed("writing", &path))
    }

    /// Removes an endpoint's directory; fine if there is none.
    ///
    /// # Errors
    ///
    /// [`StateError`] names the directory.
    pub fn remove(&self, id: u16) -> Result<(), StateError> {
        let folder = self.folder(id);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(failed("removing", &folder)),
        }
    }

    /// Reads all files: endpoints by id, and what is wrong with files that are none.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the directory cannot be read at all.
    pub(crate) fn read_all(&self) -> Result<(Vec<Saved>, Vec<StateError>), StateError> {
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        self.settle_builds()?;
        for id in self.ids()? {
            match self.read(id) {
                Ok(saved) => found.extend(saved),
                Err(error) => {
                    if matches!(error, StateError::Json { .. } | StateError::Field { .. }) {
                        errors.extend(self.move_aside(id).err());
                    }
                    errors.push(error);
                }
            }
        }
        Ok((found, errors))
    }

    fn move_aside(&self, id: u16) -> Result<(), StateError> {
        let (folder, aside) = (self.folder(id), self.folder.join(format!("{id}_corrupt")));
        match fs::remove_dir_all(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::rename(&folder, &aside),
        }
        .map_err(failed("moving aside", &folder))
    }

    /// Removes directories of interrupted builds, except the first one of an endpoint that has no other: it becomes that of
    /// the endpoint. A directory to which no file was written yet goes, too.
    fn settle_builds(&self) -> Result<(), StateError> {
        let mut builds: Vec<(u16, PathBuf)> = Vec::new();
        for name in self.names()? {
            if name.parse::<u16>().is_ok_and(|id| id > 0 && !self.has(id)) {
                let folder = self.folder.join(&name);
                // One that has anything else in it stays.
                _ = fs::remove_file(folder.join(TEMPORARY));
                _ = fs::remove_dir(folder);
                continue;
            }
            let id = name
                .split_once("_next")
                .and_then(|(id, _)| id.parse::<u16>().ok());
            builds.extend(id.filter(|id| *id > 0).map(|id| (id, self.folder.join(name))));
        }
        builds.sort();
        for (id, path) in builds {
            let is_whole = || path.join(FILE).symlink_metadata().is_ok();
            match !self.has(id) && is_whole() {
                true => {
                    // Without file, or there is none.
                    _ = fs::remove_dir_all(self.folder(id));
                    fs::rename(&path, self.folder(id)).map_err(failed("renaming", &path))?;
                }
                false => fs::remove_dir_all(&path).map_err(failed("removing", &path))?,
            }
        }
        Ok(())
    }

    /// Names in the directory.
    fn names(&self) -> Result<Vec<String>, StateError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("reading", &self.folder))?,
        };
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
        let names: io::Result<Vec<_>> = names.collect();
        Ok(names
            .map_err(failed("reading", &self.folder))?
            .into_iter()
            .flatten()
            .collect())
    }

    /// Ids that have a file, whatever is in it.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the folder cannot be read.
    pub fn ids(&self) -> Result<Vec<u16>, StateError> {
        let names = self.names()?;
        let ids = names.iter().filter_map(|name| name.parse::<u16>().ok());
        let mut ids: Vec<u16> = ids.filter(|id| *id > 0 && self.has(*id)).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// An endpoint's file; none if there is no file.
    fn read(&self, id: u16) -> Result<Option<Saved>, StateError> {
        let path = self.file(id);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(failed("reading", &path))?,
        };
        let file: File = serde_json::from_slice(&text).map_err(|source| StateError::Json {
            path: path.clone(),
            source,
        })?;
        let field = |field, value: String| StateError::Field {
            path: path.clone(),
            field,
            value,
        };
        if file.id != id {
            return Err(field("ID", file.id.to_string()));
        }
        file.saved().map(Some).map_err(|(name, value)| field(name, value))
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io { what, path, source }
}

/// The file, with Cilium's keys. What is missing is empty; keys that are unknown are ignored.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct File {
    #[serde(rename = "ID")]
    id: u16,
    #[serde(rename = "dockerID", skip_serializing_if = "String::is_empty")]
    container_id: String,
    #[serde(rename = "ContainerNetnsPath")]
    netns: String,
    #[serde(rename = "IfName")]
    interface: String,
    #[serde(rename = "IfIndex")]
    ifindex: u32,
    #[serde(rename = "ParentIfIndex")]
    parent_ifindex: u32,
    #[serde(rename = "ContainerIfName")]
    container_interface: String,
    #[serde(rename = "DisableLegacyIdentifiers")]
    disable_legacy_identifiers: bool,
    #[serde(rename = "OpLabels")]
    labels: FileLabels,
    #[serde(rename = "LXCMAC")]
    mac: String,
    #[serde(rename = "IPv6")]
    ipv6: String,
    #[serde(rename = "IPv6IPAMPool")]
    ipv6_pool: String,
    #[serde(rename = "IPv4")]
    ipv4: String,
    #[serde(rename = "IPv4IPAMPool")]
    ipv4_pool: String,
    #[serde(rename = "NodeMAC")]
    host_mac: String,
    #[serde(rename = "SecLabel")]
    identity: Option<FileIdentity>,
    #[serde(rename = "Options")]
    options: FileOptions,
    #[serde(rename = "DNSHistory")]
    dns_history: Value,
    #[serde(rename = "DNSZombies")]
    dns_zombies: Value,
    #[serde(rename = "DNSRulesV2", skip_serializing_if = "Value::is_null")]
    dns_rules: Value,
    #[serde(rename = "K8sPodName")]
    pod: String,
    #[serde(rename = "K8sNamespace")]
    namespace: String,
    #[serde(rename = "K8sUID")]
    pod_uid: String,
    #[serde(rename = "DatapathConfiguration")]
    datapath: DatapathConfiguration,
    /// Not Cilium's: what the endpoint requested, if it gets something else.
    #[serde(
        rename = "RequestedDatapathConfiguration",
        skip_serializing_if = "Option::is_none"
    )]
    requested: Option<DatapathConfiguration>,
    /// Not Cilium's: labels of the request.
    #[serde(rename = "RequestedLabels", skip_serializing_if = "Option::is_none")]
    requested_labels: Option<LabelMap>,
    #[serde(rename = "CiliumEndpointUID")]
    cilium_endpoint_uid: String,
    #[serde(rename = "Properties")]
    properties: BTreeMap<String, Value>,
    #[serde(rename = "NetnsCookie")]
    netns_cookie: u64,
    #[serde(rename = "RTInfo")]
    rt_info: u32,
}

/// Labels by key.
type LabelMap = BTreeMap<String, FileLabel>;

/// Labels by where they are used.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct FileLabels {
    custom: LabelMap,
    orchestration_identity: LabelMap,
    disabled: LabelMap,
    orchestration_info: LabelMap,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum FileLabel {
    Parts {
        #[serde(default)]
        key: String,
        #[serde(default)]
        value: String,
        #[serde(default)]
        source: String,
    },
    /// `[source:]key[=value]`
    Text(String),
}

impl Serialize for FileLabel {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Parts { key, value, source } if value.is_empty() => {
                json!({"key": key, "source": source}).serialize(to)
            }
            Self::Parts { key, value, source } => {
                json!({"key": key, "value": value, "source": source}).serialize(to)
            }
            Self::Text(text) => text.serialize(to),
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct FileIdentity {
    id: u32,
    labels: LabelMap,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct FileOptions {
    map: BTreeMap<String, i64>,
}

fn label_map(labels: &Labels) -> LabelMap {
    let entry = |label: &Label| {
        let parts = FileLabel::Parts {
            key: label.key().to_owned(),
            value: label.value().to_owned(),
            source: label.source().as_str().to_owned(),
        };
        (label.key().to_owned(), parts)
    };
    labels.iter().map(entry).collect()
}

/// Labels of a field; or the field, with the key of what is no label.
fn labels(field: &'static str, map: &LabelMap) -> Result<Labels, (&'static str, String)> {
    let label = |(name, label): (&String, &FileLabel)| {
        let label = match label {
            FileLabel::Parts { key, value, source } => Label::new(source.as_str().into(), key, value),
            FileLabel::Text(text) => text.parse(),
        };
        label.map_err(|_| (field, name.clone()))
    };
    map.iter().map(label).collect()
}

pub(crate) const SKIP_MASQUERADE4: &str = "property-skip-masquerade-v4";
pub(crate) const SKIP_MASQUERADE6: &str = "property-skip-masquerade-v6";
const AT_HOST_NS: &str = "property-at-host-network-namespace";
const SKIP_BPF_POLICY: &str = "property-skip-bpf-policy";
const WITHOUT_BPF_ENDPOINT: &str = "property-without-bpf-endpoint";

impl File {
    fn of(saved: &Saved) -> Self {
        let spec = &saved.spec;
        let address =
            |address: Option<IpAddr>| address.map(|address| address.to_string()).unwrap_or_default();
        let init: Arc<Labels> = Reserved::Init.into();
        let of_dns = serde_json::to_value(&saved.dns).unwrap_or_default();
        let dns = |key: &str| of_dns.get(key).cloned().unwrap_or_default();
        let is_ingress = saved.is_ingress();
        let properties = [
            (AT_HOST_NS, is_ingress),
            (SKIP_BPF_POLICY, is_ingress),
            (WITHOUT_BPF_ENDPOINT, is_ingress),
            (SKIP_MASQUERADE4, spec.skip_masquerade4),
            (SKIP_MASQUERADE6, spec.skip_masquerade6),
        ];
        Self {
            id: saved.id,
            container_id: spec.container_id.clone(),
            netns: spec.netns.clone(),
            interface: spec.interface.clone(),
            ifindex: spec.ifindex,
            container_interface: spec.container_interface.clone(),
            labels: FileLabels {
                custom: label_map(&saved.labels.custom),
                orchestration_identity: match saved.labels.identity.is_empty() {
                    true if saved.labels.custom.is_empty() => label_map(&init),
                    _ => label_map(&saved.labels.identity),
                },
                disabled: label_map(&saved.labels.disabled),
                orchestration_info: label_map(&saved.labels.info),
            },
            mac: spec.mac.to_string(),
            ipv6: address(spec.ipv6.map(IpAddr::from)),
            ipv6_pool: spec.ipv6_pool.clone(),
            ipv4: address(spec.ipv4.map(IpAddr::from)),
            ipv4_pool: spec.ipv4_pool.clone(),
            host_mac: spec.host_mac.to_string(),
            identity: saved.identity.map(|identity| FileIdentity {
                id: identity.get(),
                labels: label_map(&saved.identity_labels),
            }),
            options: FileOptions {
                map: saved
                    .options
                    .numbers()
                    .iter()
                    .map(|(name, value)| (name.clone(), i64::from(*value)))
                    .collect(),
            },
            dns_history: dns("DNSHistory"),
            dns_zombies: dns("DNSZombies"),
            dns_rules: dns("DNSRulesV2"),
            pod: spec.pod.clone(),
            namespace: spec.namespace.clone(),
            pod_uid: spec.pod_uid.clone(),
            datapath: saved.effective,
            requested: (saved.effective != spec.datapath).then_some(spec.datapath),
            requested_labels: (!spec.labels.is_empty()).then(|| label_map(&spec.labels)),
            cilium_endpoint_uid: saved.cilium_endpoint_uid.to_string(),
            properties: properties
                .into_iter()
                .filter(|(_, is_set)| *is_set)
                .map(|(key, _)| (key.to_owned(), true.into()))
                .collect(),
            netns_cookie: spec.netns_cookie,
            ..Self::default()
        }
    }

    /// The endpoint; or the field that is wrong, with its value.
    fn saved(self) -> Result<Saved, (&'static str, String)> {
        let mac = |field, text: String| text.parse::<Mac>().map_err(|_| (field, text));
        let is_set = |key: &str| self.properties.get(key) == Some(&true.into());
        let dns = json!({"DNSHistory": self.dns_history, "DNSZombies": self.dns_zombies, "DNSRulesV2": self.dns_rules});
        // Without them it has to look names up again.
        let dns = serde_json::from_value(dns).unwrap_or_else(|error| {
            tracing::warn!(endpoint = self.id, %error, "Cannot restore the DNS names of an endpoint");
            DnsState::default()
        });
        let of = |map| labels("OpLabels", map);
        // Stands for no labels.
        let is_label = |label: &&Label| label.reserved() != Some(Reserved::Init);
        let identity = of(&self.labels.orchestration_identity)?;
        let kept = EndpointLabels {
            custom: of(&self.labels.custom)?,
            identity: Arc::new(identity.iter().filter(is_label).cloned().collect()),
            info: of(&self.labels.orchestration_info)?,
            disabled: of(&self.labels.disabled)?,
        };
        let requested_labels = match &self.requested_labels {
            Some(map) => labels("RequestedLabels", map)?,
            None if self.pod.is_empty() => kept.identity.iter().chain(kept.info.iter()).cloned().collect(),
            // They are its pod's.
            None => Labels::default(),
        };
        let (id, identity_labels) = match &self.identity {
            Some(identity) => (identity.id, labels("SecLabel", &identity.labels)?),
            None => (0, Labels::default()),
        };
        if self.interface.is_empty() && id != NumericIdentity::INGRESS.get() {
            return Err(("IfName", self.interface));
        }
        let spec = EndpointSpec {
            skip_masquerade4: is_set(SKIP_MASQUERADE4),
            skip_masquerade6: is_set(SKIP_MASQUERADE6),
            labels: requested_labels,
            container_id: self.container_id,
            container_interface: self.container_interface,
            netns: self.netns,
            netns_cookie: self.netns_cookie,
            interface: self.interface,
            ifindex: self.ifindex,
            ipv4: address::<Ipv4Addr>("IPv4", self.ipv4)?,
            ipv6: address::<Ipv6Addr>("IPv6", self.ipv6)?,
            ipv4_pool: self.ipv4_pool,
            ipv6_pool: self.ipv6_pool,
            mac: mac("LXCMAC", self.mac)?,
            host_mac: mac("NodeMAC", self.host_mac)?,
            namespace: self.namespace,
            pod: self.pod,
            pod_uid: self.pod_uid,
            datapath: self.requested.unwrap_or_else(|| requested(self.datapath)),
        };
        Ok(Saved {
            id: self.id,
            spec,
            labels: kept,
            effective: self.datapath,
            dns,
            identity: Some(NumericIdentity::new(id)).filter(|identity| *identity != NumericIdentity::UNKNOWN),
            identity_labels,
            options: EndpointOptions::of_numbers(self.options.map),
            cilium_endpoint_uid: self.cilium_endpoint_uid.into(),
        })
    }
}

/// What an endpoint of Cilium requested that gets this: only the node's settings give it a route.
fn requested(effective: DatapathConfiguration) -> DatapathConfiguration {
    if !effective.install_endpoint_route {
        return effective;
    }
    DatapathConfiguration {
        external_ipam: effective.external_ipam,
        require_arp_passthrough: effective.require_arp_passthrough,
        ..DatapathConfiguration::default()
    }
}

fn address<A: std::str::FromStr>(
    field: &'static str,
    text: String,
) -> Result<Option<A>, (&'static str, String)> {
    match text.as_str() {
        "" => Ok(None),
        other => other.parse().map(Some).map_err(|_| (field, text)),
    }
}

/// Files that are not restored, with what is wrong with each.
#[derive(Debug, thiserror::Error)]
#[error("{} of the state directory not restored: {}", count(.0.len()), texts(.0))]
pub(crate) struct BadFiles(pub(crate) Arc<[StateError]>);

fn count(files: usize) -> String {
    match files {
        1 => "1 file".to_owned(),
        files => format!("{files} files"),
    }
}

fn texts(errors: &[StateError]) -> String {
    let texts: Vec<String> = errors.iter().map(|error| hive::error_chain(error)).collect();
    texts.join("; ")
}
