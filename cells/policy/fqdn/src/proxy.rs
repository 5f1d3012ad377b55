// SPDX-License-Identifier: Apache-2.0

//! The DNS proxy: takes the queries that policies redirect, and answers what policies allow with what servers say.

mod ports;
mod sockets;
mod tcp;
mod udp;
mod upstream;

use std::{
    fmt::Debug,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use hickory_proto::op::ResponseCode;
use jiff::Timestamp;
use skep_identity::{NumericIdentity, Reserved};
use skep_ipcache::{Writer, lookup};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    access_log::{AccessLog, Outcome},
    message::{self, Query},
    metrics::{NameMetrics, ProxyMetrics, QueryMetrics, Times},
    names::{Answer, Names},
    rules::Server,
};

#[cfg(feature = "api")]
pub(crate) use ports::NAME;
pub(crate) use ports::{Listeners, restored_port, route_marked, save_port};
pub(crate) use tcp::serve as serve_tcp;
pub(crate) use udp::serve as serve_udp;
pub(crate) use upstream::Upstream;

/// Time that servers have for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Mark of packets of an egress proxy.
pub(crate) const MARK: u32 = 0xb00;

/// An endpoint of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyEndpoint {
    pub id: u16,
    pub identity: NumericIdentity,
}

/// Knows the endpoints of this node.
pub trait ProxyEndpoints: Send + Sync + Debug {
    /// The endpoint with an address.
    fn by_address(&self, address: IpAddr) -> Option<ProxyEndpoint>;

    /// The host endpoint.
    fn host(&self) -> Option<ProxyEndpoint>;
}

/// How a query came.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub client: SocketAddr,
    /// Original destination.
    pub server: SocketAddr,
    pub is_tcp: bool,
}

/// Answers queries.
pub struct DnsProxy {
    pub(crate) names: Names,
    pub(crate) endpoints: Arc<dyn ProxyEndpoints>,
    pub(crate) ipcache: Writer,
    pub(crate) is_dual_stack: bool,
    pub(crate) upstream: Upstream,
    pub(crate) log: Option<AccessLog>,
    pub(crate) reject_code: ResponseCode,
    pub(crate) permits: Option<Semaphore>,
    pub(crate) name_metrics: Arc<NameMetrics>,
    pub(crate) proxy_metrics: Arc<ProxyMetrics>,
    pub(crate) query_metrics: Arc<QueryMetrics>,
}

impl Debug for DnsProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DnsProxy").finish_non_exhaustive()
    }
}

impl DnsProxy {
    /// Answers a query; none if there is nothing to send.
    pub(crate) async fn answer(
        &self,
        request: &Request,
        bytes: &[u8],
        connection: &mut Option<tokio::net::TcpStream>,
    ) -> Option<Vec<u8>> {
        let start = Instant::now();
        let mut times = Times::default();
        self.query_metrics.count("received");
        let query = match Query::parse(bytes) {
            Ok(query) => query,
            Err(error) => {
                tracing::debug!(client = %request.client, %error, "Cannot parse DNS request");
                self.query_metrics.count("parse_errors");
                return message::failure(bytes);
            }
        };
        let done = |error, times: &mut Times| {
            times.total = start.elapsed();
            self.proxy_metrics.observe(error, times);
        };
        let Some(endpoint) = self.endpoint(request.client.ip()) else {
            tracing::debug!(client = %request.client, "DNS request cannot be associated with an existing endpoint");
            done("proxyErr", &mut times);
            return Some(query.reply(ResponseCode::ServFail));
        };
        let permit = self.permit().await;
        times.semaphore = start.elapsed();
        let Ok(_permit) = permit else {
            self.name_metrics.rejected.inc();
            tracing::debug!("Dropping DNS request due to too many DNS requests already in-flight");
            done("timeout", &mut times);
            return Some(query.reply(ResponseCode::ServFail));
        };
        let before = Instant::now();
        let server = Server {
            protocol: if request.is_tcp { 6 } else { 17 },
            address: request.server.ip(),
            port: request.server.port(),
            identity: self.identity_of(request.server.ip()),
        };
        let is_allowed = self.names.rules().allow(endpoint.id, &server, &query.name);
        times.policy = before.elapsed();
        let log = |outcome: Outcome<'_>| {
            if let Some(log) = &self.log {
                log.record(request, endpoint, &server, &query, &outcome);
            }
        };
        if !is_allowed {
            tracing::debug!(endpoint = endpoint.id, name = query.name, server = %request.server, "Rejecting DNS query due to policy");
            log(Outcome::Denied);
            self.query_metrics.count("denied");
            done("denied", &mut times);
            return Some(query.reply(self.reject_code));
        }
        log(Outcome::Forwarded);
        self.query_metrics.count("forwarded");
        let before = Instant::now();
        let exchanged = self
            .upstream
            .exchange(request, endpoint, &server, &query, bytes, connection);
        let exchanged = tokio::time::timeout(TIMEOUT, exchanged).await;
        times.upstream = before.elapsed();
        let (mut reply, response) = match exchanged {
            Ok(Ok(exchanged)) => exchanged,
            Ok(Err(error)) => {
                tracing::debug!(server = %request.server, error = %hive::error_chain(&error), "Cannot forward proxied DNS lookup");
                log(Outcome::Failed(&hive::error_chain(&error)));
                done("proxyErr", &mut times);
                return Some(query.reply(ResponseCode::ServFail));
            }
            Err(_) => {
                tracing::warn!(server = %request.server, endpoint = endpoint.id, name = query.name, "Timeout waiting for response to forwarded proxied DNS lookup");
                *connection = None;
                done("timeout", &mut times);
                return None;
            }
        };
        log(Outcome::Answered(&response));
        self.query_metrics.count("received");
        self.names.rules().used(server.address);
        if response.code == 0 && !response.addresses.is_empty() {
            let before = Instant::now();
            let answer = Answer {
                name: query.name.clone(),
                addresses: response.addresses,
                ttl: response.ttl,
            };
            if !self.names.learn(endpoint.id, &answer, Timestamp::now()).await {
                self.proxy_metrics.timeouts.inc();
            }
            times.dataplane = before.elapsed();
        }
        message::set_id(&mut reply, query.id);
        if !request.is_tcp && self.names.config().compression {
            reply = message::compressed(reply, query.max_size);
        }
        self.query_metrics.count("forwarded");
        done("allow", &mut times);
        Some(reply)
    }

    /// The endpoint with an address; those of the node are the host's.
    fn endpoint(&self, address: IpAddr) -> Option<ProxyEndpoint> {
        let endpoint = self.endpoints.by_address(address);
        endpoint.or_else(|| match self.identity_of(address) {
            NumericIdentity::HOST => self.endpoints.host(),
            _ => None,
        })
    }

    async fn permit(&self) -> Result<Option<SemaphorePermit<'_>>, ()> {
        let Some(permits) = &self.permits else {
            return Ok(None);
        };
        let grace = self.names.config().concurrency_grace;
        match grace.is_zero() {
            true => permits.try_acquire().map(Some).map_err(drop),
            false => match tokio::time::timeout(grace, permits.acquire()).await {
                Ok(Ok(permit)) => Ok(Some(permit)),
                _ => Err(()),
            },
        }
    }

    /// The identity of a server; unknown ones are the world's.
    fn identity_of(&self, address: IpAddr) -> NumericIdentity {
        let snapshot = self.ipcache.db().read();
        let table = self.ipcache.table();
        let found = lookup(&table, &snapshot, address, 0);
        let identity = found.and_then(|row| row.resolve().map(|resolved| resolved.identity));
        identity.unwrap_or_else(|| Reserved::world(address, self.is_dual_stack).identity())
    }
}
