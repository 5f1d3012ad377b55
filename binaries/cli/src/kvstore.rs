// SPDX-License-Identifier: Apache-2.0

//! `skep kvstore`: keys of the key-value store, read and written without the agent; `skep troubleshoot kvstore`: whether the
//! store can be reached.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use skep_base_api_client::{Client as Agent, ClientError};
use skep_base_api_types::DaemonConfiguration;
use skep_kvstore_client::{Client, ClientKind, ClientOptions, KeyValue, Lifetime};
use skep_kvstore_etcd::{
    ConfigError, ConfigSource, Etcd, EtcdConfig, EtcdOptions, OptionError,
    troubleshoot::{Findings, troubleshoot},
};

use crate::{
    duration::duration,
    print::{self, Format},
};

/// How long an operation may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which store, and what to do there.
#[derive(Debug, Args)]
pub(crate) struct KvstoreCommand {
    /// Key-value store: etcd. Default without --kvstore-opt: that of the agent.
    #[arg(long, global = true)]
    kvstore: Option<String>,
    /// Options of the key-value store, such as etcd.address=http://127.0.0.1:2379 or etcd.config=FILE.
    #[arg(long, global = true, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair_of)]
    kvstore_opt: Vec<(String, String)>,
    #[command(subcommand)]
    verb: Verb,
}

/// Which store `skep troubleshoot kvstore` checks.
#[derive(Debug, Args)]
pub(crate) struct TroubleshootOptions {
    /// Configuration file of the etcd client; default: that of the agent.
    #[arg(long)]
    etcd_config: Option<PathBuf>,
    /// Timeout of each check.
    #[arg(long, default_value = "5s", value_parser = duration)]
    timeout: Duration,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the value of a key.
    Get {
        /// Key, or prefix with --recursive.
        key: String,
        /// All keys with the prefix.
        #[arg(long)]
        recursive: bool,
    },
    /// List keys without their values.
    #[command(alias = "ls")]
    List {
        /// Prefix of the keys.
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Set a key, without a lease.
    Set {
        /// Key and value, separated by the first `=`. Keys with `=` require --key and --value.
        #[arg(value_name = "KEY=VALUE", value_parser = pair_of, required_unless_present = "key", conflicts_with = "key")]
        pair: Option<(String, String)>,
        /// The key.
        #[arg(long)]
        key: Option<String>,
        /// The value.
        #[arg(long, requires = "key", default_value = "")]
        value: String,
    },
    /// Delete a key.
    Delete {
        /// Key, or prefix with --recursive.
        key: String,
        /// All keys with the prefix.
        #[arg(long)]
        recursive: bool,
    },
}

/// What the check says of an agent without a store.
pub(crate) const DISABLED: &str = "Unable to read etcd configuration: /var/lib/etcd-config/etcd.config\n\
                                   This is expected when Cilium is running in CRD mode\n";

/// Why a command on the key-value store failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KvstoreError {
    /// Neither the command line nor the agent names a store.
    #[error("the agent uses no key-value store: name one by {option}")]
    NoStore {
        /// The option that names one.
        option: &'static str,
    },
    /// The agent does not say which store it uses; name it on the command line.
    #[error("{option} is not given, and the agent cannot be asked")]
    Agent {
        /// The option that names one.
        option: &'static str,
        /// Why the agent did not answer.
        #[source]
        cause: ClientError,
    },
    /// There is only etcd.
    #[error("key-value store `{0}` is not supported; use `etcd`")]
    Unsupported(String),
    /// An option is wrong.
    #[error("--kvstore-opt: {}", text(.0))]
    Options(Vec<OptionError>),
    /// The file of `etcd.config` is missing or malformed.
    #[error("--kvstore-opt etcd.config")]
    Config(#[from] ConfigError),
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] skep_kvstore_client::Error),
    /// The store does not answer: check the address and the network.
    #[error("the key-value store does not answer within {PATIENCE:?}")]
    Timeout,
    /// There is no such key.
    #[error("key `{0}` is not found")]
    NotFound(String),
    /// The runtime cannot be started.
    #[error("starting the runtime")]
    Runtime(#[source] std::io::Error),
}

/// Runs a command; returns what it prints.
pub(crate) fn run(command: KvstoreCommand, agent: &Agent, format: Format) -> Result<Vec<u8>, KvstoreError> {
    let options: BTreeMap<String, String> = command.kvstore_opt.into_iter().collect();
    let (kind, options) = match command.kvstore {
        Some(kind) => (kind, options),
        None if !options.is_empty() => ("etcd".to_owned(), options),
        None => of_agent(agent, "--kvstore")?,
    };
    let etcd = etcd_options(kind, &options)?;
    if let ConfigSource::File(path) = &etcd.source {
        // The client waits for a missing file, which a command must not.
        EtcdConfig::load(path)?;
    }
    let mut client = ClientOptions::new("etcd", ClientKind::Full);
    etcd.apply(&mut client);
    runtime()?.block_on(async {
        let backend = Etcd::new(etcd.source, etcd.transport);
        // Nothing has a lease, so the driver has nothing to do.
        let (client, _driver) = Client::new(Arc::new(backend), client);
        let done = tokio::time::timeout(PATIENCE, execute(&client, command.verb, format)).await;
        done.map_err(|_| KvstoreError::Timeout)?
    })
}

/// Checks whether a store can be reached, step by step.
pub(crate) fn check(options: TroubleshootOptions, agent: &Agent) -> Result<Findings, KvstoreError> {
    let source = match options.etcd_config {
        Some(path) => ConfigSource::File(path),
        None => {
            let (kind, settings) = of_agent(agent, "--etcd-config")?;
            etcd_options(kind, &settings)?.source
        }
    };
    Ok(runtime()?.block_on(troubleshoot(&source, options.timeout)))
}

fn etcd_options(kind: String, options: &BTreeMap<String, String>) -> Result<EtcdOptions, KvstoreError> {
    if kind != "etcd" {
        return Err(KvstoreError::Unsupported(kind));
    }
    EtcdOptions::parse(options).map_err(KvstoreError::Options)
}

fn runtime() -> Result<tokio::runtime::Runtime, KvstoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(KvstoreError::Runtime)
}

async fn execute(client: &Client, verb: Verb, format: Format) -> Result<Vec<u8>, KvstoreError> {
    match verb {
        Verb::Get { key, recursive: true } => Ok(pairs(&client.list(&key).await?.items, format)),
        Verb::Get { key, .. } => {
            let found = client.get(&key).await?;
            let item = found.ok_or(KvstoreError::NotFound(key))?;
            Ok(pairs(&[item], format))
        }
        Verb::List { prefix } => {
            let items = client.list(&prefix).await?.items;
            let keys = items.iter().map(|item| &*item.key);
            Ok(match format {
                Format::Text => keys.map(|key| format!("{key}\n")).collect::<String>(),
                _ => print::value(&keys.collect::<Value>(), format),
            }
            .into_bytes())
        }
        Verb::Set { pair, key, value } => {
            let (key, value) = pair.or(key.map(|key| (key, value))).unwrap_or_default();
            client.put(&key, value, Lifetime::Permanent).await?;
            Ok(Vec::new())
        }
        Verb::Delete { key, recursive: true } => {
            client.delete_prefix(&key).await?;
            Ok(Vec::new())
        }
        Verb::Delete { key, .. } => match client.delete(&key).await? {
            true => Ok(Vec::new()),
            false => Err(KvstoreError::NotFound(key)),
        },
    }
}

/// Keys and values: lines as Cilium's command prints them, or an object by key with values in base64.
fn pairs(items: &[KeyValue], format: Format) -> Vec<u8> {
    if format == Format::Text {
        let mut out = Vec::new();
        for item in items {
            out.extend_from_slice(item.key.as_bytes());
            out.extend_from_slice(b" => ");
            out.extend_from_slice(&item.value);
            out.push(b'\n');
        }
        return out;
    }
    let object: Map<String, Value> = items
        .iter()
        .map(|item| {
            let value = json!({
                "Data": BASE64_STANDARD.encode(&item.value),
                "ModRevision": item.mod_revision.0,
                "LeaseID": item.lease.0,
            });
            (item.key.to_string(), value)
        })
        .collect();
    print::value(&Value::Object(object), format).into_bytes()
}

/// The store of the agent, by its settings, because there is no `option`.
fn of_agent(agent: &Agent, option: &'static str) -> Result<(String, BTreeMap<String, String>), KvstoreError> {
    let config: DaemonConfiguration = agent
        .get("config", &[])
        .map_err(|cause| KvstoreError::Agent { option, cause })?;
    let store = config.status.kvstore_configuration;
    match store.kind.as_str() {
        "" => Err(KvstoreError::NoStore { option }),
        _ => Ok((store.kind, store.options)),
    }
}

/// `key=value`.
fn pair_of(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        Some(_) | None => Err("expected KEY=VALUE"),
    }
}

fn text(errors: &[OptionError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}
