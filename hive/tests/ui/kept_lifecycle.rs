// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

struct Server {
    _lifecycle: hive::Lifecycle,
}

fn new_server(lifecycle: hive::Lifecycle) -> Arc<Server> {
    Arc::new(Server { _lifecycle: lifecycle })
}

fn main() {
    let _ = hive::Cell::module("server", "Server").provide(new_server);
}
