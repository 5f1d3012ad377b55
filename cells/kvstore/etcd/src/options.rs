// SPDX-License-Identifier: Apache-2.0

//! `--kvstore-opt`: options of the client of etcd.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use skep_duration::parse_duration;
use skep_kvstore_client::{ClientOptions, PageSize, RateLimit};

use crate::backend::{ConfigSource, TransportOptions};
use crate::file::EtcdConfig;

/// Options of a client of etcd, as `--kvstore-opt` has them.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// `etcd.config` or `etcd.address`: how etcd is reached.
    pub source: ConfigSource,
    /// `etcd.qps`, `etcd.bootstrapQps`, `etcd.maxInflight`.
    pub rate: RateLimit,
    /// `etcd.limit`: keys a page of lists; 0 for all in one.
    pub page: PageSize,
    /// `etcd.keepaliveHeartbeat`, `etcd.keepaliveTimeout`.
    pub transport: TransportOptions,
}

/// What is wrong with an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("unknown option `{key}`; known are {}", KEYS.join(", "))]
    Unknown { key: String },
    #[error("`{key}`: `{value}` is not {expected}")]
    Value {
        key: String,
        value: String,
        expected: &'static str,
    },
    #[error("`etcd.address`: {reason}")]
    Address { reason: String },
    /// It is not said where etcd is.
    #[error("either `etcd.config` or `etcd.address` is required")]
    NoEndpoint,
}

const KEYS: [&str; 8] = [
    "etcd.address",
    "etcd.bootstrapQps",
    "etcd.config",
    "etcd.keepaliveHeartbeat",
    "etcd.keepaliveTimeout",
    "etcd.limit",
    "etcd.maxInflight",
    "etcd.qps",
];

impl EtcdOptions {
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, Vec<OptionError>> {
        let mut errors = Vec::new();
        let mut source = None;
        let mut parsed = Self {
            source: ConfigSource::File(PathBuf::new()),
            rate: RateLimit::default(),
            page: PageSize::default(),
            transport: TransportOptions::default(),
        };
        for (key, value) in options {
            let value = value.trim();
            let result = match key.as_str() {
                // The file has more than an address.
                "etcd.config" if !value.is_empty() => {
                    source = Some(ConfigSource::File(value.into()));
                    Ok(())
                }
                "etcd.address" if !value.is_empty() => EtcdConfig::of_address(value)
                    .map(|config| {
                        source.get_or_insert(ConfigSource::Config(config));
                    })
                    .map_err(|error| OptionError::Address {
                        reason: error.to_string(),
                    }),
                "etcd.config" | "etcd.address" => Ok(()),
                "etcd.qps" => positive(key, value).map(|qps| parsed.rate.qps = qps),
                "etcd.bootstrapQps" => positive(key, value).map(|qps| parsed.rate.bootstrap_qps = Some(qps)),
                "etcd.maxInflight" => positive(key, value).map(|max| parsed.rate.max_inflight = max),
                "etcd.limit" => number(key, value).map(|limit| parsed.page = PageSize::Keys(limit as usize)),
                "etcd.keepaliveHeartbeat" => {
                    duration(key, value).map(|time| parsed.transport.keepalive_interval = time)
                }
                "etcd.keepaliveTimeout" => {
                    duration(key, value).map(|time| parsed.transport.keepalive_timeout = time)
                }
                _ => Err(OptionError::Unknown { key: key.clone() }),
            };
            errors.extend(result.err());
        }
        let is_named = ["etcd.config", "etcd.address"]
            .iter()
            .any(|key| options.get(*key).is_some_and(|value| !value.trim().is_empty()));
        if !is_named {
            errors.push(OptionError::NoEndpoint);
        }
        match source {
            Some(source) if errors.is_empty() => Ok(Self { source, ..parsed }),
            _ => Err(errors),
        }
    }

    /// Takes over what is the client's.
    pub fn apply(&self, options: &mut ClientOptions) {
        options.rate = self.rate;
        options.page = self.page;
    }
}

fn number(key: &str, value: &str) -> Result<u32, OptionError> {
    value.parse().map_err(|_| OptionError::Value {
        key: key.to_owned(),
        value: value.to_owned(),
        expected: "a number from 0 to 4294967295",
    })
}

fn positive(key: &str, value: &str) -> Result<u32, OptionError> {
    let number = value.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| OptionError::Value {
        key: key.to_owned(),
        value: value.to_owned(),
        expected: "a number from 1 to 4294967295",
    })
}

fn duration(key: &str, value: &str) -> Result<Duration, OptionError> {
    let time = parse_duration(value).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| OptionError::Value {
        key: key.to_owned(),
        value: value.to_owned(),
        expected: "a duration such as 15s",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[(&str, &str)]) -> Result<EtcdOptions, Vec<String>> {
        let options = options
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        EtcdOptions::parse(&options).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn defaults_are_those_of_cilium() {
        let options = parse(&[("etcd.config", "/etc/etcd.yaml")]).expect("they are valid");

        assert!(matches!(&options.source, ConfigSource::File(path) if path.ends_with("etcd.yaml")));
        assert_eq!(
            (
                options.rate.qps,
                options.rate.bootstrap_qps,
                options.rate.max_inflight
            ),
            (20, None, 0)
        );
        assert_eq!(options.page, PageSize::default());
        assert_eq!(options.transport.keepalive_interval.as_secs(), 15);
        assert_eq!(options.transport.keepalive_timeout.as_secs(), 25);
    }

    #[test]
    fn each_option_is_read() {
        let options = parse(&[
            ("etcd.address", "https://127.0.0.1:2379"),
            ("etcd.qps", "100"),
            ("etcd.bootstrapQps", "10000"),
            ("etcd.maxInflight", "10"),
            ("etcd.limit", "0"),
            ("etcd.keepaliveHeartbeat", "1m"),
            ("etcd.keepaliveTimeout", "500ms"),
        ])
        .expect("they are valid");
        let mut client = ClientOptions::new("etcd", skep_kvstore_client::ClientKind::Full);
        options.apply(&mut client);

        assert!(matches!(&options.source, ConfigSource::Config(config) if config.endpoints[0].is_tls));
        assert_eq!(
            client.rate,
            RateLimit {
                qps: 100,
                bootstrap_qps: Some(10_000),
                max_inflight: 10
            }
        );
        assert_eq!(client.page, PageSize::Keys(0));
        assert_eq!(options.transport.keepalive_interval.as_secs(), 60);
        assert_eq!(options.transport.keepalive_timeout.as_millis(), 500);
    }

    #[test]
    fn the_file_comes_before_the_address() {
        let options = parse(&[("etcd.address", "http://a:1"), ("etcd.config", "/etc/etcd.yaml")]);

        assert!(matches!(
            options.expect("they are valid").source,
            ConfigSource::File(_)
        ));
    }

    #[test]
    fn all_faults_are_named() {
        let faults = parse(&[
            ("etcd.qps", "0"),
            ("etcd.limit", "many"),
            ("etcd.keepaliveTimeout", "5"),
            ("consul.address", "x"),
        ])
        .expect_err("they are invalid");

        assert_eq!(faults.len(), 5, "{faults:?}");
        assert!(faults[0].starts_with("unknown option `consul.address`; known are etcd.address, "));
        assert_eq!(
            faults[1],
            "`etcd.keepaliveTimeout`: `5` is not a duration such as 15s"
        );
        assert_eq!(
            faults[2],
            "`etcd.limit`: `many` is not a number from 0 to 4294967295"
        );
        assert_eq!(faults[3], "`etcd.qps`: `0` is not a number from 1 to 4294967295");
        assert_eq!(faults[4], "either `etcd.config` or `etcd.address` is required");
        let fault = parse(&[("etcd.address", "nowhere")]).expect_err("it is invalid");
        assert_eq!(
            fault,
            ["`etcd.address`: endpoint `nowhere`: it has no port; the form is https://host:port"]
        );
    }
}
