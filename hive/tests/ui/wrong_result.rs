// SPDX-License-Identifier: Apache-2.0

struct Store;

fn new_store() -> Store {
    Store
}

fn main() {
    let _ = hive::Cell::module("store", "Store").provide(new_store);
}
