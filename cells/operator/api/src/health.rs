// SPDX-License-Identifier: Apache-2.0

//! Whether the operator is healthy.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::StatusCode;
use hive::{Member, error_chain};
use skep_k8s_client::Client;

/// How long a probe may take: kubelet waits for three seconds.
pub(crate) const PATIENCE: Duration = Duration::from_millis(2500);

/// Why something that the operator needs does not work.
pub type Unhealthy = Box<dyn std::error::Error + Send + Sync>;

/// Something that the operator needs, as `Member<Arc<dyn HealthProbe>>`.
#[async_trait]
pub trait HealthProbe: Send + Sync {
    /// What it is, such as `kubernetes`.
    fn name(&self) -> &'static str;

    /// Checks that it works. A check that takes longer than 2.5 s counts as failed.
    async fn check(&self) -> Result<(), Unhealthy>;
}

struct Kubernetes(Arc<dyn Client>);

/// Whether the API server answers; without a cluster there is nothing to answer.
pub(crate) fn kubernetes(client: Arc<dyn Client>) -> Member<Arc<dyn HealthProbe>> {
    Member(Arc::new(Kubernetes(client)))
}

#[async_trait]
impl HealthProbe for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    async fn check(&self) -> Result<(), Unhealthy> {
        if self.0.is_enabled() {
            self.0.server_version().await?;
        }
        Ok(())
    }
}

/// The answer to `GET /healthz`: `ok`, or what does not work.
pub(crate) async fn answer(probes: &[Arc<dyn HealthProbe>]) -> (StatusCode, String) {
    for probe in probes {
        let failed = match tokio::time::timeout(PATIENCE, probe.check()).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error_chain(&*error),
            Err(_) => format!("no answer within {}s", PATIENCE.as_secs_f64()),
        };
        let text = format!("{}: {failed}", probe.name());
        tracing::warn!(reason = %text, "Unhealthy");
        return (StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    (StatusCode::OK, "ok".to_owned())
}
