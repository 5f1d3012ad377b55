// SPDX-License-Identifier: Apache-2.0

//! The API over HTTP, for kubectl and other clients.
//!
//! Answers are JSON, or YAML on request. Bodies may be protobuf, too: clients with built-in types send that.

mod audit;
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
mod user;

pub use serve::{HttpOptions, HttpServer};

#[cfg(test)]
mod tests;
