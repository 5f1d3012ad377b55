// SPDX-License-Identifier: Apache-2.0

//! Tests.

mod conflicts;
mod mcsapi;
mod merge;
mod mirror;
mod world;
