// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

fn new_store() -> Arc<u8> {
    Arc::new(1)
}

fn main() {
    let _ = hive::Cell::module("store", "Store").run(new_store);
}
