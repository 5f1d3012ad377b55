// SPDX-License-Identifier: Apache-2.0

//! What this node publishes about itself and its endpoints.

pub mod endpoints;
pub mod node;
