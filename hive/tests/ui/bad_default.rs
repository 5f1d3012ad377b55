// SPDX-License-Identifier: Apache-2.0

#[derive(Clone, hive::Config)]
struct Config {
    /// How long.
    #[config(default = "5 minutes")]
    wait: std::time::Duration,
}

fn main() {}
