// SPDX-License-Identifier: Apache-2.0

//! Cilium's custom resources: full types, schemas made from them, registration.
//!
//! - The kinds as Rust types, whole: for whoever writes or judges them. Agents that only read a few fields of many
//!   objects use the compact types of `skep_k8s_types::slim`.
//! - [`schema`]: the structural OpenAPI schema of a type. Types and schemas have one definition and cannot differ.
//! - [`Definition`], [`definitions`]: the CustomResourceDefinitions with names, versions and printer columns.
//! - [`register_all`] creates them in a cluster and brings older ones up to date, as Cilium's operator does; [`cell`]
//!   does it when a program starts.
//!
//! ```
//! use skep_k8s_crds::definitions;
//!
//! let node = definitions::cilium_node();
//! assert_eq!(node.name(), "ciliumnodes.cilium.io");
//! assert_eq!(node.to_object()["spec"]["names"]["shortNames"][0], "cn");
//! ```

pub mod announcement;
pub mod bgp;
mod cell;
pub mod cidrgroup;
mod config;
mod definition;
pub mod definitions;
pub mod egress;
pub mod endpoint;
pub mod envoy;
pub mod gatewayclass;
pub mod identity;
pub mod mcs;
pub mod node;
mod object;
pub mod patterns;
pub mod plugin;
pub mod policy;
pub mod pools;
pub mod redirectpolicy;
mod register;
mod revision;
pub mod schema;
pub mod shared;

pub use cell::cell;
pub use config::{Config, CrdContext};
pub use definition::{
    Column, ColumnType, Definition, Revision, SCHEMA_VERSION, SCHEMA_VERSION_LABEL, Subresources, Version,
};
pub use object::Metadata;
pub use register::{Outcome, RegisterError, register, register_all};

hive::catalogue!(cell);
