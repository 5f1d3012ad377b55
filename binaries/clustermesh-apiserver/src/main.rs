// SPDX-License-Identifier: Apache-2.0

//! `skep-clustermesh-apiserver`: shares the state of this cluster with other clusters.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: skep_base_alloc::Allocator = skep_base_alloc::Allocator;

fn main() -> ExitCode {
    hive::with_arguments(skep_clustermesh_apiserver::run)
}
