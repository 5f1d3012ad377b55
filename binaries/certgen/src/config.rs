// SPDX-License-Identifier: Apache-2.0

//! Options and the list of certificates.

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, Parser};
use serde::{Deserialize, Deserializer, de::Error as _};

/// Creates and renews certificates in Secrets.
#[derive(Debug, Clone, Parser)]
#[command(name = "skep-certgen", version)]
pub struct Options {
    /// Create the authority, unless --ca-reuse-secret finds one.
    #[arg(long, env = "CILIUM_CERTGEN_CA_GENERATE", num_args = 0..=1, require_equals = true, default_value_t = false,
        default_missing_value = "true", action = ArgAction::Set)]
    pub ca_generate: bool,
    /// Use the authority of the Secret if it is valid.
    #[arg(long, env = "CILIUM_CERTGEN_CA_REUSE_SECRET", num_args = 0..=1, require_equals = true, default_value_t = false,
        default_missing_value = "true", action = ArgAction::Set)]
    pub ca_reuse_secret: bool,
    /// Namespace of the authority's Secret.
    #[arg(
        long,
        env = "CILIUM_CERTGEN_CA_SECRET_NAMESPACE",
        default_value = "kube-system"
    )]
    pub ca_secret_namespace: String,
    /// Name of the authority's Secret.
    #[arg(long, env = "CILIUM_CERTGEN_CA_SECRET_NAME", default_value = "cilium-ca")]
    pub ca_secret_name: String,
    /// Common name of a new authority.
    #[arg(long, env = "CILIUM_CERTGEN_CA_COMMON_NAME", default_value = "Cilium CA")]
    pub ca_common_name: String,
    /// Validity of a new authority.
    #[arg(long, env = "CILIUM_CERTGEN_CA_VALIDITY_DURATION", default_value = "26280h", value_parser = skep_duration::parse_duration)]
    pub ca_validity_duration: Duration,
    /// Replace an authority that expires before a certificate would.
    #[arg(long, env = "CILIUM_CERTGEN_CA_ENFORCE_VALIDITY_THROUGHOUT_LEAVES_DURATION", num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    pub ca_enforce_validity_throughout_leaves_duration: bool,
    /// List of certificates, in YAML.
    #[arg(
        long,
        env = "CILIUM_CERTGEN_CONFIG",
        default_value = "",
        hide_env_values = true
    )]
    pub config: String,
    /// Kubeconfig of the cluster; default: the service account of the pod.
    #[arg(long, env = "CILIUM_CERTGEN_K8S_KUBECONFIG_PATH")]
    pub k8s_kubeconfig_path: Option<PathBuf>,
    /// Accepted; there is nothing more to log.
    #[arg(long, env = "CILIUM_CERTGEN_DEBUG", num_args = 0..=1, require_equals = true, default_value_t = false,
        default_missing_value = "true", action = ArgAction::Set)]
    pub debug: bool,
}

/// A certificate of the list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Certificate {
    /// Name of its Secret.
    pub name: String,
    /// Namespace of its Secret.
    pub namespace: String,
    /// Common name.
    pub common_name: String,
    /// Alternative names: DNS names and addresses.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Usages, as cfssl names them.
    #[serde(default)]
    pub usage: Vec<String>,
    /// Validity.
    #[serde(deserialize_with = "duration")]
    pub validity: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    certs: Vec<Certificate>,
}

/// Why there is no list of certificates.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The list is no such YAML. Fix `CILIUM_CERTGEN_CONFIG`.
    #[error("invalid list of certificates")]
    Yaml(#[source] serde_norway::Error),
}

impl Options {
    /// The certificates of the list.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if it is invalid.
    pub fn certificates(&self) -> Result<Vec<Certificate>, ConfigError> {
        if self.config.trim().is_empty() {
            return Ok(Vec::new());
        }
        let list: List = serde_norway::from_str(&self.config).map_err(ConfigError::Yaml)?;
        Ok(list.certs)
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    skep_duration::parse_duration(&text).map_err(D::Error::custom)
}
