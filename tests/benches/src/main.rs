// SPDX-License-Identifier: Apache-2.0

//! Benchmarks.

fn main() {}
