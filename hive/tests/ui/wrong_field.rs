// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

struct Store;

#[derive(hive::Params)]
struct Params {
    _path: String,
}

fn new_store(_params: Params) -> Arc<Store> {
    Arc::new(Store)
}

fn main() {
    let _ = hive::Cell::module("store", "Store").provide(new_store);
}
