// SPDX-License-Identifier: Apache-2.0

//! The API over HTTP, for kubectl and other clients.
//!
//! JSON only (YAML is understood and given on request); protobuf is refused, so that clients fall back.

mod discovery;
mod negotiate;
mod openapi;
mod request;
mod respond;
mod reviews;
mod route;
mod serve;

pub use serve::{HttpOptions, HttpServer};

/// The version of Kubernetes that this server's API is like.
pub(crate) const VERSION: &str = "v1.33.0";

#[cfg(test)]
mod tests;
