// SPDX-License-Identifier: Apache-2.0

//! Pools that the operator creates at its start: never changed afterwards.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Client, WriteOptions};
use skep_k8s_crds::pools::{CiliumPodIPPool, Ipv4Pool, Ipv6Pool, PodPoolSpec};
use skep_k8s_types::Resource;

use super::pool::{PoolSpec, PoolSpecError};

/// Pools to create, by name. Written as `name=ipv4-cidrs:10.10.0.0/16,10.20.0.0/16;ipv4-mask-size:24`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AutoPools(BTreeMap<String, AutoPool>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct AutoPool {
    text: String,
    spec: PodPoolSpec,
}

/// Why pools cannot be created: correct the setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AutoPoolError {
    #[error("`{text}` is not <pool>=<settings>")]
    NoName { text: String },
    #[error("pool `{pool}` is listed twice")]
    Twice { pool: String },
    /// A setting is unknown or has a wrong value.
    #[error(
        "pool `{pool}`: `{text}` is none of ipv4-cidrs:<networks>, ipv4-mask-size:<number>, ipv6-cidrs:<networks>, \
         ipv6-mask-size:<number>, allow-first-ip:<bool>, allow-last-ip:<bool>"
    )]
    Setting { pool: String, text: String },
    /// Networks and mask size of a family belong together.
    #[error("pool `{pool}`: ipv{family}-cidrs and ipv{family}-mask-size require each other")]
    Half {
        pool: String,
        /// 4 or 6.
        family: u8,
    },
    #[error("pool `{pool}` has no networks")]
    Empty { pool: String },
    /// Networks and mask size are not valid.
    #[error("pool `{pool}`: {cause}")]
    Spec { pool: String, cause: PoolSpecError },
}

impl FromStr for AutoPools {
    type Err = AutoPoolError;

    fn from_str(text: &str) -> Result<Self, AutoPoolError> {
        // A comma ends a pool only if another one follows: networks are separated by commas, too.
        let mut entries: Vec<String> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match entries.last_mut() {
                Some(entry) if !part.contains('=') => {
                    entry.push(',');
                    entry.push_str(part);
                }
                _ => entries.push(part.to_owned()),
            }
        }
        let mut pools = BTreeMap::new();
        for entry in entries {
            let (name, settings) = match entry.split_once('=') {
                Some((name, settings)) if !name.trim().is_empty() => (name.trim(), settings),
                _ => return Err(AutoPoolError::NoName { text: entry }),
            };
            let pool = AutoPool {
                text: settings.to_owned(),
                spec: parse(name, settings)?,
            };
            if pools.insert(name.to_owned(), pool).is_some() {
                return Err(AutoPoolError::Twice {
                    pool: name.to_owned(),
                });
            }
        }
        Ok(Self(pools))
    }
}

impl fmt::Display for AutoPools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, pool)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{name}={}", pool.text)?;
        }
        Ok(())
    }
}

hive::config_value!(AutoPools, "pools");

fn parse(pool: &str, settings: &str) -> Result<PodPoolSpec, AutoPoolError> {
    let name = || pool.to_owned();
    let mut spec = PodPoolSpec::default();
    let (mut v4, mut v6) = ((None, None), (None, None));
    for setting in settings.split(';').map(str::trim).filter(|text| !text.is_empty()) {
        let fault = || AutoPoolError::Setting {
            pool: name(),
            text: setting.to_owned(),
        };
        let (key, value) = setting.split_once(':').ok_or_else(fault)?;
        let value = value.trim();
        let networks = || {
            value
                .split(',')
                .map(|text| text.trim().to_owned())
                .collect::<Vec<_>>()
        };
        match key.trim() {
            "ipv4-cidrs" => v4.0 = Some(networks()),
            "ipv6-cidrs" => v6.0 = Some(networks()),
            "ipv4-mask-size" => v4.1 = Some(value.parse().map_err(|_| fault())?),
            "ipv6-mask-size" => v6.1 = Some(value.parse().map_err(|_| fault())?),
            "allow-first-ip" => spec.allow_first_ip = Some(value.parse().map_err(|_| fault())?),
            "allow-last-ip" => spec.allow_last_ip = Some(value.parse().map_err(|_| fault())?),
            _ => return Err(fault()),
        }
    }
    spec.ipv4 = match v4 {
        (Some(cidrs), Some(mask_size)) => Some(Ipv4Pool { cidrs, mask_size }),
        (None, None) => None,
        _ => {
            return Err(AutoPoolError::Half {
                pool: name(),
                family: 4,
            });
        }
    };
    spec.ipv6 = match v6 {
        (Some(cidrs), Some(mask_size)) => Some(Ipv6Pool { cidrs, mask_size }),
        (None, None) => None,
        _ => {
            return Err(AutoPoolError::Half {
                pool: name(),
                family: 6,
            });
        }
    };
    if spec.ipv4.is_none() && spec.ipv6.is_none() {
        return Err(AutoPoolError::Empty { pool: name() });
    }
    PoolSpec::new(&spec).map_err(|cause| AutoPoolError::Spec { pool: name(), cause })?;
    Ok(spec)
}

/// A pool could not be created. Retried.
#[derive(Debug, thiserror::Error)]
#[error("CiliumPodIPPool `{pool}` cannot be created")]
pub(crate) struct CreateError {
    pool: String,
    #[source]
    cause: ApiError,
}

impl AutoPools {
    /// Whether there is nothing to create.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Creates the pools that do not exist. One that exists stays as it is.
pub(crate) async fn create_pools(client: &Arc<dyn Client>, pools: &AutoPools) -> Result<(), CreateError> {
    for (name, pool) in &pools.0 {
        let kind = CiliumPodIPPool::kind();
        let object: Value = json!({
            "apiVersion": kind.api_version(), "kind": &*kind.kind,
            "metadata": { "name": name }, "spec": pool.spec,
        });
        match client.create(&kind, "", object, &WriteOptions::default()).await {
            Ok(_) => tracing::info!(pool = name, "Created CiliumPodIPPool"),
            Err(error) if error.is_already_exists() => {}
            Err(cause) => {
                let pool = name.clone();
                return Err(CreateError { pool, cause });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
