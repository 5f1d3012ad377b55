// SPDX-License-Identifier: Apache-2.0

//! Settings: where the configuration is.

use std::fmt;

use hive::config::Faults;
use serde::{Deserialize, Serialize};

/// Where the configuration of the agent is in the cluster.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Reflect the configuration in the cluster to table `cilium-configs`.
    #[config(default = true)]
    pub enable_dynamic_config: bool,
    /// Namespace of the agents. Default: kube-system.
    pub k8s_namespace: String,
    /// Sources of the configuration: a JSON list of `kind` (config-map, cilium-node-config or node),
    /// `namespace` and `name`. Later sources take precedence. Default: ConfigMap `cilium-config` in the
    /// namespace of the agents.
    pub config_sources: String,
    /// Restriction of overrides by later sources: JSON with the lists `allowConfigKeys` and `denyConfigKeys`.
    /// `denyConfigKeys` applies if `allowConfigKeys` is empty.
    pub config_sources_overrides: String,
}

/// Why sources cannot be used: correct the setting.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    /// It is not the JSON that is expected.
    #[error("expected a JSON list of sources")]
    Sources(#[source] serde_json::Error),
    /// It is not the JSON that is expected.
    #[error("expected a JSON object with lists of keys")]
    Overrides(#[source] serde_json::Error),
    #[error("source {position} requires `{field}`")]
    Missing {
        /// Its place in the list, from 1.
        position: usize,
        field: &'static str,
    },
}

/// What kind of object a source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    ConfigMap,
    CiliumNodeConfig,
    /// A node: its labels and annotations `config.cilium.io/<key>`; annotations win.
    Node,
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "config-map",
            Self::CiliumNodeConfig => "cilium-node-config",
            Self::Node => "node",
        })
    }
}

/// `config-map/kube-system/cilium-config`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        let parts = [&self.namespace, &self.name];
        let mut parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.try_for_each(|part| write!(f, "/{part}"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// What kind of object it is.
    pub kind: SourceKind,
    #[serde(default)]
    pub namespace: String,
    /// Name of the object; empty for all CiliumNodeConfigs of the namespace that select this node, and for this node.
    #[serde(default)]
    pub name: String,
}

impl Source {
    /// Reads `config-map:[namespace/]name`, `cilium-node-config:[namespace[/name]]` or `node:[name]`.
    pub(crate) fn parse(text: &str, default_namespace: &str) -> Option<Self> {
        let (kind, object) = text.split_once(':')?;
        let parts = object.split_once('/');
        let (kind, namespace, name) = match kind {
            "config-map" => {
                let (namespace, name) = parts.unwrap_or((default_namespace, object));
                (SourceKind::ConfigMap, namespace, name)
            }
            "cilium-node-config" => {
                let (namespace, name) = parts.unwrap_or((object, ""));
                (SourceKind::CiliumNodeConfig, namespace, name)
            }
            "node" => (SourceKind::Node, "", object),
            _ => return None,
        };
        let namespace = match namespace {
            "" if kind != SourceKind::Node => default_namespace,
            namespace => namespace,
        };
        let is_complete = kind != SourceKind::ConfigMap || !name.is_empty();
        (is_complete && !name.contains('/')).then(|| Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

/// Which keys sources other than the first may set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Overrides {
    /// Only these, if there are any.
    pub allow_config_keys: Vec<String>,
    pub deny_config_keys: Vec<String>,
}

impl Overrides {
    /// Whether sources other than the first may set a key.
    #[must_use]
    pub fn permits(&self, key: &str) -> bool {
        let has = |keys: &[String]| keys.iter().any(|known| known == key);
        match self.allow_config_keys.is_empty() {
            true => !has(&self.deny_config_keys),
            false => has(&self.allow_config_keys),
        }
    }
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if let Err(error) = self.sources() {
            faults.add("config-sources", hive::error_chain(&error).to_string());
        }
        if let Err(error) = self.overrides() {
            faults.add("config-sources-overrides", hive::error_chain(&error).to_string());
        }
    }

    /// The sources, in their order.
    ///
    /// # Errors
    /// [`SourcesError`] if the setting is not valid; validation reports it before the start.
    pub fn sources(&self) -> Result<Vec<Source>, SourcesError> {
        let sources: Vec<Source> = match self.config_sources.trim() {
            "" => vec![self.default_source()],
            text => serde_json::from_str(text).map_err(SourcesError::Sources)?,
        };
        for (index, source) in sources.iter().enumerate() {
            let missing = |field| SourcesError::Missing {
                position: index + 1,
                field,
            };
            if source.kind != SourceKind::Node && source.namespace.is_empty() {
                return Err(missing("namespace"));
            }
            if source.kind == SourceKind::ConfigMap && source.name.is_empty() {
                return Err(missing("name"));
            }
        }
        Ok(sources)
    }

    fn default_source(&self) -> Source {
        let namespace = match self.k8s_namespace.as_str() {
            "" => "kube-system",
            namespace => namespace,
        };
        Source {
            kind: SourceKind::ConfigMap,
            namespace: namespace.to_owned(),
            name: "cilium-config".to_owned(),
        }
    }

    /// Which keys sources other than the first may set.
    ///
    /// # Errors
    /// [`SourcesError`] if the setting is not valid; validation reports it before the start.
    pub fn overrides(&self) -> Result<Overrides, SourcesError> {
        match self.config_sources_overrides.trim() {
            "" => Ok(Overrides::default()),
            text => serde_json::from_str(text).map_err(SourcesError::Overrides),
        }
    }
}
