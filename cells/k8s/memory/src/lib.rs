// SPDX-License-Identifier: Apache-2.0

//! Kubernetes API server in memory, without a network: for tests, and what `skep-k8s-apiserver` serves over HTTP.
//!
//! - [`Tracker`]: the store, a table of objects whose revision is the resource version;
//! - [`ApiServer`]: create, update, patch, server-side apply, delete, list and watch, like a real server or as a plain
//!   fake ([`Mode`]);
//! - [`Registry`]: the kinds that are served; a custom resource definition adds to them. Custom resources are pruned
//!   and defaulted; a [`SchemaCompiler`] validates them;
//! - [`InProcessClient`] and [`FakeClient`]: clients; the fake one is filled by scripts ([`command`]);
//! - cell: [`fake_client_cell`].
//!
//! ```
//! use serde_json::json;
//! use skep_k8s_memory::{ApiServer, Gvr, Mode, Registry, Rows, Settings, Tracker, WriteOptions};
//!
//! let rows = Rows::new(&statedb::Db::new())?;
//! let api = ApiServer::new(Tracker::new(rows, 1000, false), Registry::builtin(), Mode::Real(Settings::default()));
//! let service = json!({ "metadata": { "name": "web" }, "spec": { "ports": [{ "port": 80 }] } });
//! let made = api.create(&Gvr::new("", "v1", "services"), "default", service, &WriteOptions::default())?;
//! assert_eq!(made.object["spec"]["ports"][0]["protocol"], "TCP");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod cell;
mod client;
pub mod command;
mod error;
mod fake;
mod gvr;
mod history;
mod kinds;
mod names;
pub mod object;
mod patch;
pub mod schema;
mod selector;
mod server;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
mod tracker;
mod yaml;

pub use cell::{fake_client_cell, in_process_client};
pub use client::InProcessClient;
pub use command::update_status_command;
pub use error::{ApiError, Fault};
pub use fake::{FakeClient, FakeError};
pub use gvr::{Gvr, api_version, guess_plural, split_api_version};
pub use kinds::{Custom, Kind, Registry, Scale};
pub use patch::Patch;
pub use selector::{FieldSelector, LabelSelector};
pub use server::{
    ApiServer, Bound, DeleteOptions, Deleted, FieldValidation, List, ListOptions, Mode, Propagation,
    Reference, SchemaCompiler, Settings, Subresource, Token, TokenError, Validator, VersionMatch, Watch,
    WatchEvent, WatchKind, WriteOptions, Written, add_object_fields, prune, read_scale, scale_patch,
};
pub use table::{Changed, Following, Rows, TABLE, TrackedObject};
pub use tracker::{Domain, Tracker, Transaction};

/// The version of Kubernetes that the API is like, with feature gate RelaxedServiceNameValidation. The fields of the
/// built-in kinds are those of 1.33 (`generated/schema.txt`).
pub const VERSION: &str = "v1.34.0";

/// Operating system and architecture, as Go names them.
pub fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{architecture}", std::env::consts::OS)
}

hive::catalogue!(fake_client_cell);

#[cfg(test)]
mod tests;
