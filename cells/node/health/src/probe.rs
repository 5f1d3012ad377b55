// SPDX-License-Identifier: Apache-2.0

//! One probe of one address.

use std::{
    error::Error,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::http::{StatusCode, Uri};
use http_body_util::Empty;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::icmp;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) at: Timestamp,
    pub(crate) result: Result<Duration, String>,
}

/// Result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probed {
    pub(crate) icmp: Outcome,
    pub(crate) http: Outcome,
}

impl Probed {
    pub(crate) fn is_reachable(&self) -> bool {
        self.icmp.result.is_ok() && self.http.result.is_ok()
    }
}

pub(crate) type HttpClient = Client<HttpConnector, Empty<&'static [u8]>>;

/// A client that keeps no connection.
pub(crate) fn client() -> HttpClient {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(TIMEOUT));
    Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build(connector)
}

pub(crate) async fn probe(client: &HttpClient, address: IpAddr, port: u16, requests: u32) -> Probed {
    let at = Timestamp::now();
    let (icmp, http) = tokio::join!(
        icmp::ping(address, requests, TIMEOUT),
        hello(client, SocketAddr::new(address, port))
    );
    let icmp = icmp.map_err(|error| match error.kind() {
        std::io::ErrorKind::TimedOut => "Connection timed out".to_owned(),
        _ => error.to_string(),
    });
    Probed {
        icmp: Outcome { at, result: icmp },
        http: Outcome { at, result: http },
    }
}

/// Sends `GET /hello` to a responder; returns the time of the answer, or the error as Go's client has it.
///
/// # Errors
///
/// The text of the error.
pub async fn ask(address: SocketAddr) -> Result<Duration, String> {
    hello(&client(), address).await
}

async fn hello(client: &HttpClient, address: SocketAddr) -> Result<Duration, String> {
    let url = format!("http://{address}/hello");
    let failed = |cause: &str| format!("Get {url:?}: {cause}");
    let uri: Uri = url.parse().map_err(|_| failed("invalid address"))?;
    let begun = Instant::now();
    let answer = match tokio::time::timeout(TIMEOUT, client.get(uri)).await {
        Err(_) => return Err(failed("context deadline exceeded")),
        Ok(Err(error)) => return Err(failed(&cause_of(&error, address))),
        Ok(Ok(answer)) => answer,
    };
    match answer.status() {
        StatusCode::OK => Ok(begun.elapsed()),
        other => Err(format!("HTTP status code: {}", other.as_u16())),
    }
}

/// The error of the socket, in the words of Go's client.
fn cause_of(error: &(dyn Error + 'static), address: SocketAddr) -> String {
    let mut causes = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    let of_socket = causes.find_map(|error| error.downcast_ref::<std::io::Error>());
    let text = match of_socket.map(std::io::Error::kind) {
        Some(std::io::ErrorKind::ConnectionRefused) => "connect: connection refused",
        Some(std::io::ErrorKind::NetworkUnreachable) => "connect: network is unreachable",
        Some(std::io::ErrorKind::HostUnreachable) => "connect: no route to host",
        Some(std::io::ErrorKind::TimedOut) => "i/o timeout",
        Some(_) | None => return hive::error_chain(error).to_string(),
    };
    format!("dial tcp {address}: {text}")
}
