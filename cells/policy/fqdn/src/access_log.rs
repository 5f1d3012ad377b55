// SPDX-License-Identifier: Apache-2.0

//! Queries and answers as events of the monitor.

use std::{net::SocketAddr, sync::Arc};

use jiff::Timestamp;
use skep_datapath_monitor::Monitor;
use skep_datapath_monitor_events::access_log::{EndpointInfo, LogRecord, LogRecordDns};
use skep_identity::NumericIdentity;
use skep_identity_cache::SecurityIdentity;
use statedb::{Db, Table};

use crate::{
    message::{Query, Response},
    proxy::{ProxyEndpoint, Request},
    rules::Server,
};

/// Sends events while there are listeners.
pub(crate) struct AccessLog {
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) identities: Table<SecurityIdentity>,
    pub(crate) db: Db,
}

/// What became of a query.
pub(crate) enum Outcome<'a> {
    Forwarded,
    Denied,
    /// Of the server, or on the way to it.
    Failed(&'a str),
    Answered(&'a Response),
}

impl AccessLog {
    pub(crate) fn record(
        &self,
        request: &Request,
        endpoint: ProxyEndpoint,
        server: &Server,
        query: &Query,
        outcome: &Outcome<'_>,
    ) {
        if !self.monitor.has_listeners() {
            return;
        }
        let client = self.info(endpoint.id.into(), request.client, endpoint.identity);
        let of_server = self.info(0, request.server, server.identity);
        let (kind, verdict, info) = match outcome {
            Outcome::Forwarded => ("Request", "Forwarded", "Allowed by policy".to_owned()),
            Outcome::Denied => ("Request", "Denied", "Denied by policy".to_owned()),
            Outcome::Failed(error) => ("Response", "Error", format!("Error: {error}")),
            Outcome::Answered(_) => ("Response", "Forwarded", "Allowed by policy".to_owned()),
        };
        let (source, destination) = match kind {
            "Request" => (client, of_server),
            _ => (of_server, client),
        };
        let mut dns = LogRecordDns {
            query: query.name.clone(),
            observation_source: "proxy".to_owned(),
            qtypes: vec![query.kind.into()],
            ..LogRecordDns::default()
        };
        if let Outcome::Answered(response) = outcome {
            dns.ips = response.addresses.clone();
            dns.ttl = response.ttl.into();
            dns.cnames = response.aliases.clone();
            dns.rcode = response.code.into();
            dns.answer_types = response.types.clone();
        }
        self.monitor.access_log(&LogRecord {
            kind: kind.to_owned(),
            timestamp: Timestamp::now().to_string(),
            observation_point: "Egress".to_owned(),
            source,
            destination,
            verdict: verdict.to_owned(),
            info,
            transport: server.protocol,
            dns: Some(dns),
            ..LogRecord::default()
        });
    }

    fn info(&self, id: u64, address: SocketAddr, identity: NumericIdentity) -> EndpointInfo {
        let snapshot = self.db.read();
        let row = self
            .identities
            .get(&snapshot, SecurityIdentity::BY_ID.key(&identity.get()));
        let labels = row.map(|row| row.labels.iter().map(ToString::to_string).collect());
        EndpointInfo {
            id,
            address: Some(address.ip()),
            port: address.port(),
            identity: identity.get().into(),
            labels: labels.unwrap_or_default(),
        }
    }
}
