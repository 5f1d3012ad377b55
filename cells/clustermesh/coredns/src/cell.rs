// SPDX-License-Identifier: Apache-2.0

//! Cells: configure CoreDNS when the program starts, and end the program after that.
//! Requires: a Kubernetes client. Provides: [`CoreDns`].

use std::sync::Arc;

use hive::{Cell, Cfg, HookCtx, Lifecycle, Shutdown};
use skep_k8s_client::Client;

use crate::config::Config;
use crate::update::{CoreDns, Outcome, UpdateError};

/// Configures CoreDNS. The start fails if that fails.
pub fn cell() -> Cell {
    Cell::module(
        "mcsapi-coredns",
        "Configures CoreDNS for the multi-cluster services API",
    )
    .config::<Config>()
    .provide(new)
    .run(|_: Arc<CoreDns>| ())
}

/// Ends the program when CoreDNS is configured.
pub fn exit_cell() -> Cell {
    Cell::module("mcsapi-coredns-exit", "Ends the program").run(exit)
}

fn new(client: Arc<dyn Client>, config: Cfg<Config>, lifecycle: Lifecycle) -> Arc<CoreDns> {
    let coredns = Arc::new(CoreDns::new(client, (*config).clone()));
    let configured = coredns.clone();
    lifecycle.on_start("configure", move |_: HookCtx| {
        let coredns = configured.clone();
        async move {
            match coredns.configure().await? {
                Outcome::Changed => tracing::info!("Configured CoreDNS, restarting it"),
                Outcome::Unchanged => tracing::info!("CoreDNS is already configured"),
            }
            Ok::<_, UpdateError>(())
        }
    });
    coredns
}

/// Its hook runs after that of what it requires.
fn exit(_: Arc<CoreDns>, shutdown: Shutdown, lifecycle: Lifecycle) {
    let shutdown = Arc::new(shutdown);
    lifecycle.on_start("exit", move |_: HookCtx| {
        let shutdown = shutdown.clone();
        async move {
            shutdown.request("CoreDNS is configured");
            Ok::<_, UpdateError>(())
        }
    });
}
