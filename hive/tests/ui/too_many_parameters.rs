// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

type S = Arc<u8>;

#[allow(clippy::too_many_arguments)]
fn many(_: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S) {}

fn main() {
    let _ = hive::Cell::module("many", "Many").run(many);
}
