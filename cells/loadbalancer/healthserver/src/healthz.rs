// SPDX-License-Identifier: Apache-2.0

//! Cell `kube-proxy-healthz`: answers load balancers that ask every node for the health of its kube-proxy.
//!
//! Requires the load balancer's tables. Asks [`NodeHealth`], if something provides it, whether this node should get traffic.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hive::{Backoff, Cell, Cfg, Job, JobCtx, Jobs, Retry, SpawnError};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;
use skep_base_settings::KubeProxyReplacement;
use skep_listen::{BindError, Tcp};
use skep_loadbalancer_model::Writer;
use statedb::Db;
use statedb::reconciler::StatusKind;

use crate::server::serve;

/// The setting of the address.
const BIND_ADDRESS: &str = "kube-proxy-replacement-healthz-bind-address";
/// Waits between attempts to listen.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Settings of the answers for kube-proxy's health.
#[derive(Debug, Clone, hive::Config)]
pub struct HealthzConfig {
    /// Address and port of kube-proxy's `/healthz`, such as `0.0.0.0:10256`; empty: disabled.
    #[config(flag = "kube-proxy-replacement-healthz-bind-address")]
    pub bind_address: Option<SocketAddr>,
}

/// Whether this node should get traffic.
pub trait NodeHealth: Send + Sync {
    fn agent_is_healthy(&self) -> bool;

    /// Whether the node is about to be removed from the cluster.
    fn is_leaving(&self) -> bool;
}

/// Answers `/healthz` on the configured address.
pub fn kube_proxy_healthz() -> Cell {
    Cell::module("kube-proxy-healthz", "Answers for kube-proxy health checks")
        .config::<HealthzConfig>()
        .run(start)
}

fn start(
    config: Cfg<HealthzConfig>,
    replacement: Cfg<KubeProxyReplacement>,
    writer: Writer,
    db: Db,
    health: Option<Arc<dyn NodeHealth>>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    let Some(address) = config.bind_address.filter(|_| replacement.enabled) else {
        return Ok(());
    };
    let server = Arc::new(Server { writer, db, health });
    // Shared, so that a new agent can listen before the old one has ended.
    let endpoint = Tcp::new(address).share().setting(BIND_ADDRESS);
    let job = Job::once(format!("listener-{}", address.port()), move |cx: JobCtx| {
        let (server, endpoint) = (server.clone(), endpoint.clone());
        async move {
            let listener = endpoint.bind()?;
            cx.health.ok("Serving");
            let respond = move |request: &Request<Incoming>| server.respond(request.uri().path());
            serve(listener, cx.token.clone(), respond).await;
            Ok::<(), BindError>(())
        }
    });
    jobs.spawn(job.retry(Retry::forever().backoff(Backoff::exponential(FIRST_RETRY, LONGEST_RETRY))))
}

struct Server {
    writer: Writer,
    db: Db,
    health: Option<Arc<dyn NodeHealth>>,
}

impl Server {
    fn respond(&self, path: &str) -> Response<String> {
        if path != "/healthz" {
            let mut response = Response::new("404 page not found\n".to_owned());
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        }
        let is_healthy = self
            .health
            .as_ref()
            .is_none_or(|health| health.agent_is_healthy() && !health.is_leaving());
        let now = Timestamp::now();
        let updated = if is_healthy { now } else { self.last_reconciled() };
        healthz(is_healthy, updated, now)
    }

    /// When a frontend was last written to the maps.
    fn last_reconciled(&self) -> Timestamp {
        let snapshot = self.db.read();
        let frontends = self.writer.frontends();
        let done = frontends
            .all(&snapshot)
            .filter(|frontend| frontend.status.kind == StatusKind::Done);
        done.map(|frontend| frontend.status.updated_at)
            .max()
            .unwrap_or_default()
    }
}

fn healthz(is_healthy: bool, updated: Timestamp, now: Timestamp) -> Response<String> {
    let body = format!(
        "{{\"lastUpdated\": {},\"currentTime\": {}}}",
        json!(go_time(updated)),
        json!(go_time(now))
    );
    let mut response = Response::new(body);
    *response.status_mut() = if is_healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// A time as Go prints it: `2026-01-02 03:04:05.678901234 +0000 UTC`.
fn go_time(time: Timestamp) -> String {
    let utc = time.to_zoned(TimeZone::UTC);
    let mut text = utc.strftime("%Y-%m-%d %H:%M:%S").to_string();
    let nanos = utc.subsec_nanosecond();
    if nanos != 0 {
        text.push_str(format!(".{nanos:09}").trim_end_matches('0'));
    }
    text + " +0000 UTC"
}

#[cfg(test)]
mod tests {
    use skep_loadbalancer_model::{
        Frontend, FrontendKind, FrontendParams, Service, ServiceName, Source, Tables, WriterSettings,
    };
    use statedb::reconciler::Status;

    use super::*;

    struct Ill;

    impl NodeHealth for Ill {
        fn agent_is_healthy(&self) -> bool {
            false
        }

        fn is_leaving(&self) -> bool {
            false
        }
    }

    #[test]
    fn an_ill_node_says_when_a_frontend_was_last_written() {
        let db = Db::new();
        let tables = Tables::new(&db).unwrap();
        let frontends = tables.frontends.clone();
        let writer = Writer::new(db.clone(), tables, WriterSettings::default());
        let frontend = |address: &str| FrontendParams {
            address: address.parse().unwrap(),
            kind: FrontendKind::ClusterIp,
            port_name: "".into(),
            service_port: 80,
        };
        let mut txn = writer.write();
        let service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
        let params = ["10.0.0.1:80/TCP", "10.0.0.2:80/TCP", "10.0.0.3:80/TCP"].map(frontend);
        writer
            .upsert_service_and_frontends(&mut txn, service, params.into())
            .unwrap();
        txn.commit();
        let at = |second| Timestamp::from_second(second).unwrap();
        let statuses = [
            Status::pending().into_done(at(10)),
            Status::pending().into_done(at(20)),
            Status::pending().into_error(at(30), "the map is full"),
        ];
        let mut txn = db.write(&[&frontends]);
        let rows: Vec<_> = frontends.reader().all(&txn).cloned().collect();
        for (row, status) in rows.iter().zip(statuses) {
            let row = Frontend {
                status,
                ..(**row).clone()
            };
            frontends.insert(&mut txn, row).unwrap();
        }
        txn.commit();
        let health: Option<Arc<dyn NodeHealth>> = Some(Arc::new(Ill));

        let response = Server { writer, db, health }.respond("/healthz");

        let times: serde_json::Value = serde_json::from_str(response.body()).unwrap();
        assert_eq!(times["lastUpdated"], "1970-01-01 00:00:20 +0000 UTC");
    }

    #[test]
    fn tells_times_as_kube_proxy_does() {
        let now: Timestamp = "2026-01-02T03:04:05.67Z".parse().unwrap();
        let response = healthz(false, Timestamp::UNIX_EPOCH, now);

        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            response.body(),
            r#"{"lastUpdated": "1970-01-01 00:00:00 +0000 UTC","currentTime": "2026-01-02 03:04:05.67 +0000 UTC"}"#
        );
        assert_eq!(healthz(true, now, now).status(), StatusCode::OK);
    }
}
