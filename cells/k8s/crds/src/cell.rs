// SPDX-License-Identifier: Apache-2.0

//! Cell: registers the custom resource definitions when the program starts.
//! Requires: a Kubernetes client; [`CrdContext`] if another cell provides them.

use std::sync::Arc;

use hive::{Cell, Cfg, HookCtx, Lifecycle, Params};
use skep_k8s_client::Client;

use crate::config::{Config, CrdContext};
use crate::register::{RegisterError, register_all};

/// Why the program does not start.
#[derive(Debug, thiserror::Error)]
#[error("unable to create CRDs")]
struct StartError(#[from] RegisterError);

/// Registers the definitions of the features that are on. The start fails if one cannot be registered.
pub fn cell() -> Cell {
    Cell::module("create-crds", "Registers custom resource definitions")
        .config::<Config>()
        .run(start)
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    client: Arc<dyn Client>,
    context: Option<CrdContext>,
    lifecycle: Lifecycle,
}

fn start(params: StartParams) {
    let StartParams {
        config,
        client,
        context,
        lifecycle,
    } = params;
    if config.skip_crd_creation || !client.is_enabled() {
        tracing::info!("Skipping creation of CRDs");
        return;
    }
    let context = context.unwrap_or_default();
    lifecycle.on_start("register", move |_: HookCtx| {
        let (client, config) = (client.clone(), config.clone());
        async move {
            // Their schemas are some megabytes, which nothing needs afterwards.
            let definitions = config.definitions(&context);
            register_all(&*client, &definitions).await.map_err(StartError)
        }
    });
}
