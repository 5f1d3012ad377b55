// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

struct Store;

fn new_store(_path: String) -> Arc<Store> {
    Arc::new(Store)
}

fn main() {
    let _ = hive::Cell::module("store", "Store").provide(new_store);
}
