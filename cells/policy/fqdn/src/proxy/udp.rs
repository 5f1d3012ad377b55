// SPDX-License-Identifier: Apache-2.0

//! Queries by UDP.

use std::{io, sync::Arc};

use tokio::task::JoinSet;

use super::{
    DnsProxy, Request,
    sockets::{self, Sender},
};

/// Largest UDP packet.
const BUFFER: usize = 65_536;
/// Maximum number of queries of a socket in flight: others are dropped, and repeated by their clients.
const IN_FLIGHT: usize = 32_768;

/// Answers the queries that a socket receives.
pub(crate) async fn serve(
    proxy: Arc<DnsProxy>,
    socket: tokio::net::UdpSocket,
    is_ipv6: bool,
) -> io::Result<()> {
    let sender = Arc::new(Sender::open(is_ipv6)?);
    let mut buffer = vec![0; BUFFER];
    let mut tasks = JoinSet::new();
    loop {
        let packet = tokio::select! {
            packet = sockets::receive(&socket, &mut buffer) => packet,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
        };
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::debug!(%error, "Dropping a DNS request");
                continue;
            }
            Err(error) => return Err(error),
        };
        if tasks.len() >= IN_FLIGHT {
            proxy.name_metrics.rejected.inc();
            continue;
        }
        let bytes = buffer[..packet.length].to_vec();
        let request = Request {
            client: packet.client,
            server: packet.server,
            is_tcp: false,
        };
        let (proxy, sender) = (proxy.clone(), sender.clone());
        tasks.spawn(async move {
            let Some(reply) = proxy.answer(&request, &bytes, &mut None).await else {
                return;
            };
            if let Err(error) = sender.send(request.server, request.client, &reply).await {
                tracing::debug!(client = %request.client, %error, "Cannot forward proxied DNS response");
            }
        });
    }
}
