// SPDX-License-Identifier: Apache-2.0

#[derive(Clone, hive::Config)]
struct Config {
    /// Where.
    #[config(default = some_function())]
    path: String,
}

fn main() {}
