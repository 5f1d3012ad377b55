// SPDX-License-Identifier: Apache-2.0

//! Agent API and status over a unix socket and HTTP.
//!
//! - [`Routes`]: what a cell adds to the API below `/v1`, with its part of the OpenAPI [`Document`], which is served as
//!   `/v1/openapi.json`.
//! - [`StatusProbe`]: the part of the status that a cell provides.
//!
//! It knows none of the cells that bring these. Paths and [models](skep_base_api_types) are those of Cilium's agent, so that its clients work; `/v1/debug/hive` (`tree`, `graph`) and
//! `/v1/debug/db` ([tables](statedb::http)) are our own.

mod address;
mod body;
mod cell;
mod config;
mod debug;
mod errors;
mod list;
mod local;
mod routes;
mod server;
mod status;

pub use address::parse_address;
pub use body::{BodyError, BodyModel};
pub use cell::cell;
pub use config::Config;
pub use errors::{error, with_errors};
pub use list::json_list;
pub use local::LocalApi;
pub use routes::{Document, Routes};
pub use server::ServeError;
pub use status::{ModuleHealth, StatusCollector, StatusProbe};

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
