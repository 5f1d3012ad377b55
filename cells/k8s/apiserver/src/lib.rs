// SPDX-License-Identifier: Apache-2.0

//! Embedded Kubernetes API server, in process and over HTTP.
//!
//! - [`Tracker`]: the store, a table of objects whose revision is the resource version;
//! - [`ApiServer`]: the API as a library, acting like a real server or as a plain fake ([`Manner`]);
//! - [`Registry`]: the kinds that are served;
//! - [`HttpServer`]: the API over HTTP, for kubectl; with a [`PodRuntime`], logs of pods and programs in them;
//! - service accounts: every namespace has one, pods get tokens of theirs, and a request with a token comes from the
//!   account; a [`SigningKey`] signs them ([`ApiServer::request_token`]);
//! - [`InProcessClient`] and [`FakeClient`]: clients without a network; the fake one is filled by scripts
//!   ([`command`]);
//! - cells: [`fake_client_cell`], [`server_cell`], [`endpointslice_controller_cell`],
//!   [`namespace_controller_cell`], [`garbage_collector_cell`].
//!
//! ```
//! use serde_json::json;
//! use skep_k8s_apiserver::{ApiServer, Gvr, Manner, Registry, Rows, Settings, Tracker, WriteOptions};
//!
//! let rows = Rows::new(&statedb::Db::new())?;
//! let api = ApiServer::new(Tracker::new(rows, 1000, false), Registry::builtin(), Manner::Real(Settings::default()));
//! let service = json!({ "metadata": { "name": "web" }, "spec": { "ports": [{ "port": 80 }] } });
//! let made = api.create(&Gvr::new("", "v1", "services"), "default", service, &WriteOptions::default())?;
//! assert_eq!(made.object["spec"]["ports"][0]["protocol"], "TCP");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod accounts;
mod cell;
mod client;
pub mod command;
mod config;
mod controller;
mod error;
mod fake;
mod gvr;
mod history;
mod http;
mod kinds;
mod names;
mod object;
mod patch;
mod pods;
mod print;
mod schema;
mod selector;
mod server;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
mod time;
mod tracker;
mod yaml;

pub use accounts::{SigningKey, SigningKeyError};
pub use cell::{Listening, ServerError, fake_client_cell, in_process_client, server_cell};
pub use client::InProcessClient;
pub use command::update_status_command;
pub use config::{ApiServerConfig, ConfigError};
pub use controller::endpointslice::endpointslice_controller_cell;
pub use controller::garbage::garbage_collector_cell;
pub use controller::namespace::namespace_controller_cell;
pub use error::{ApiError, Fault};
pub use fake::{FakeClient, FakeError};
pub use gvr::{Gvr, api_version, guess_plural, split_api_version};
pub use http::{HttpOptions, HttpServer};
pub use kinds::{Custom, Kind, Registry, Scale};
pub use patch::Patch;
pub use pods::{ExecOptions, Execution, LogOptions, PodRuntime, PodRuntimeError, TerminalSize};
pub use schema::{Field, List as ListShape, Merge, Object, Scalar, Shape};
pub use selector::{FieldSelector, LabelSelector};
pub use server::{
    ApiServer, DeleteOptions, Deleted, FieldValidation, List, ListOptions, Manner, Propagation, Settings,
    Subresource, VersionMatch, Watch, WatchEvent, WatchKind, WriteOptions, Written, read_scale, scale_patch,
};
pub use table::{Rows, TABLE, TrackedObject};
pub use tracker::{Domain, Tracker, Transaction};

hive::catalogue!(fake_client_cell);
hive::catalogue!(server_cell);
hive::catalogue!(namespace_controller_cell);
hive::catalogue!(garbage_collector_cell);
hive::catalogue!(endpointslice_controller_cell);

#[cfg(test)]
mod tests;
