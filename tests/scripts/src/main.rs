// SPDX-License-Identifier: Apache-2.0

//! Runs script tests against partial hives.

fn main() {}
