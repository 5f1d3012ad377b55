// SPDX-License-Identifier: Apache-2.0

//! Tests of the allocator, and of the cell against an API server.

mod allocation;
mod cluster;
mod controller;
mod model;
mod ownership;
