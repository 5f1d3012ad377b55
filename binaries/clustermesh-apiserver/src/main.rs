// SPDX-License-Identifier: Apache-2.0

//! `skep-clustermesh-apiserver`: shares the state of this cluster with other clusters.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: skep_alloc::Allocator = skep_alloc::Allocator;

fn main() -> ExitCode {
    let args: Result<Vec<String>, _> = std::env::args_os()
        .skip(1)
        .map(std::ffi::OsString::into_string)
        .collect();
    let args = match args {
        Ok(args) => args,
        Err(argument) => {
            eprintln!("error: argument {argument:?} is not UTF-8");
            return ExitCode::from(hive::exit::USAGE);
        }
    };
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    ExitCode::from(skep_clustermesh_apiserver::run(args, env))
}
