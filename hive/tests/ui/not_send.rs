// SPDX-License-Identifier: Apache-2.0

use std::cell::RefCell;
use std::sync::Arc;

struct Store {
    _open: RefCell<u8>,
}

fn new_store() -> Arc<Store> {
    Arc::new(Store { _open: RefCell::new(0) })
}

fn main() {
    let _ = hive::Cell::module("store", "Store").provide(new_store);
}
