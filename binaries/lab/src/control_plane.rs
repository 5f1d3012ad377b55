// SPDX-License-Identifier: Apache-2.0

//! The control plane of a cluster: its API server and controllers.

use std::sync::Arc;

use skep_k8s::{Client, RemoteClient, Settings, Target, TargetError};

/// A client of the API server at `url`, without limits of its own.
///
/// # Errors
/// When `url` is none.
pub fn client(url: &str) -> Result<Arc<dyn Client>, TargetError> {
    let settings = Settings {
        qps: 0.0,
        ..Settings::default()
    };
    Ok(Arc::new(RemoteClient::new(
        Target::Urls(vec![url.to_owned()]),
        settings,
    )?))
}
