// SPDX-License-Identifier: Apache-2.0

//! The API over HTTP, for kubectl and other clients.
//!
//! Answers are JSON, or YAML on request. Bodies may be protobuf, too: clients with built-in types send that.

mod discovery;
mod negotiate;
mod openapi;
mod pods;
mod protobuf;
mod request;
mod respond;
mod reviews;
mod route;
mod serve;

pub use serve::{HttpOptions, HttpServer};

/// The version of Kubernetes that this server's API is like, with feature gate RelaxedServiceNameValidation. The fields
/// of the built-in kinds are those of 1.33 (`generated/schema.txt`).
pub(crate) const VERSION: &str = "v1.34.0";

/// Operating system and architecture, as Go names them.
pub(crate) fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{architecture}", std::env::consts::OS)
}

#[cfg(test)]
mod tests;
