// SPDX-License-Identifier: Apache-2.0

//! Clusters of network namespaces on one machine.

fn main() {}
