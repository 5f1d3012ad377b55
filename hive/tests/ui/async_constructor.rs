// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

struct Store;

async fn open() -> Arc<Store> {
    Arc::new(Store)
}

fn main() {
    let _ = hive::Cell::module("store", "Store").provide(open);
}
