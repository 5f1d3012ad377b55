// SPDX-License-Identifier: Apache-2.0

//! One endpoint: name, TCP, TLS.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{Report, certificate, no_answer};
use crate::connector::Connector;
use crate::file::{Endpoint, EtcdConfig};
use crate::tls;

/// Checks an endpoint at all its addresses.
pub(super) async fn check(
    report: &mut Report,
    config: &Arc<EtcdConfig>,
    endpoint: &Endpoint,
    limit: Duration,
) {
    let connector = Connector {
        endpoint: Arc::new(endpoint.clone()),
        config: config.clone(),
        resolver: None,
    };
    let addresses = match timeout(limit, connector.addresses()).await {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => return report.failed(5, "Cannot resolve hostname", hive::error_chain(&error)),
        Err(_) => return report.failed(5, "Cannot resolve hostname", no_answer(limit)),
    };
    if endpoint.host.parse::<IpAddr>().is_err() {
        let ips: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
        report.ok(5, format!("Hostname resolved to: {}", ips.join(", ")));
    }
    for address in addresses {
        check_address(report, config, endpoint, address, limit).await;
    }
}

async fn check_address(
    report: &mut Report,
    config: &EtcdConfig,
    endpoint: &Endpoint,
    address: SocketAddr,
    limit: Duration,
) {
    let failed = format!("Failed to establish TCP connection to {address}");
    let stream = match timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return report.failed(5, failed, error),
        Err(_) => return report.failed(5, failed, no_answer(limit)),
    };
    report.ok(5, format!("TCP connection successfully established to {address}"));
    if !endpoint.is_tls {
        return;
    }
    let failed = format!("Failed to establish TLS connection to {address}");
    match timeout(limit, handshake(config, endpoint, stream)).await {
        Ok(Ok(stream)) => {
            report.ok(5, format!("TLS connection successfully established to {address}"));
            print_session(report, &stream);
        }
        Ok(Err(error)) => report.failed(5, failed, error),
        Err(_) => report.failed(5, failed, no_answer(limit)),
    }
}

async fn handshake(
    config: &EtcdConfig,
    endpoint: &Endpoint,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, String> {
    let client = tls::client_config(&config.tls).map_err(|error| hive::error_chain(&error))?;
    let name = ServerName::try_from(endpoint.host.clone()).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(Arc::new(client));
    let stream = connector.connect(name, stream).await;
    stream.map_err(|error| hive::error_chain(&error))
}

/// What both sides agreed upon, and who the server is.
fn print_session(report: &mut Report, stream: &TlsStream<TcpStream>) {
    let session = stream.get_ref().1;
    let version = session
        .protocol_version()
        .and_then(|version| version.as_str())
        .map_or_else(String::new, |version| {
            version.replace("TLSv", "TLS ").replace('_', ".")
        });
    let suite = session.negotiated_cipher_suite();
    let suite = suite
        .and_then(|suite| suite.suite().as_str())
        .map_or_else(String::new, |suite| suite.replace("TLS13_", "TLS_"));
    report.info(
        5,
        format!("Negotiated TLS version: {version}, ciphersuite {suite}"),
    );
    report.info(5, "Server certificate:");
    for der in session.peer_certificates().into_iter().flatten().take(1) {
        certificate::print(report, 8, der);
    }
}
