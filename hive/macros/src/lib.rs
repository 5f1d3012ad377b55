// SPDX-License-Identifier: Apache-2.0

//! Derive macros of the hive crate.
