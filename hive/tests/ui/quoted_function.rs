// SPDX-License-Identifier: Apache-2.0

use hive::{Cell, Cfg};

#[derive(Clone, hive::Config)]
#[config(validate = "Config::check")]
struct Config {
    /// Where.
    path: String,
}

fn open(_config: Cfg<Config>) {}

fn main() {
    let _ = Cell::module("files", "Opens files").config::<Config>().run(open);
}
