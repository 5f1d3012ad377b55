// SPDX-License-Identifier: Apache-2.0

//! `skep-cluster`: the commands of `skep` on a whole cluster; `skep` starts it.

use std::process::ExitCode;

fn main() -> ExitCode {
    skep_cluster::main()
}
