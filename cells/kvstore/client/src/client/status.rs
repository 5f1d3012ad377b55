// SPDX-License-Identifier: Apache-2.0

//! The status of a client, as a value and as Cilium's text.

use std::error::Error as _;
use std::fmt;

use super::Client;
use crate::backend::{BackendError, EndpointStatus};
use crate::error::{ConnectionError, Error, QuorumError};
use crate::options::ClientKind;

/// What is said of a client that has not reached its store.
pub(crate) const CONNECTING: &str = "Waiting for initial connection to be established";

#[derive(Clone, Debug)]
pub enum Connection {
    Disabled,
    /// The store has not been reached; the last error, if there was one.
    Connecting(Option<Error>),
    Connected,
}

/// How a client and its store are. As a text it reads like the line `KVStore` of Cilium's status.
#[derive(Clone, Debug)]
pub struct Status {
    pub connection: Connection,
    /// Kind of the store: `etcd`.
    pub backend: &'static str,
    pub kind: ClientKind,
    /// The endpoints as they were at the last check; empty for a mesh client, which does not ask them.
    pub endpoints: Vec<EndpointStatus>,
    pub endpoint_count: usize,
    pub leases: usize,
    pub lock_leases: usize,
    /// Failed quorum checks in a row.
    pub quorum_errors: u32,
    /// The failure of the last quorum check.
    pub quorum_error: Option<QuorumError>,
    /// Why the store refuses writes although it makes progress: it has no space left.
    pub refusal: Option<BackendError>,
    /// Why the client should be replaced, if it should.
    pub failure: Option<ConnectionError>,
    /// Id of the etcd cluster; 0 if it is not known.
    pub cluster_id: u64,
}

impl Status {
    /// Whether the store answers and makes progress.
    pub fn is_healthy(&self) -> bool {
        matches!(self.connection, Connection::Connected)
            && self.failure.is_none()
            && self.quorum_error.is_none()
            && self.refusal.is_none()
            && self.connected_endpoints() > 0
    }

    /// How many endpoints answer. A mesh client concludes from its heartbeat that one does.
    pub fn connected_endpoints(&self) -> usize {
        match self.kind {
            ClientKind::Full => self
                .endpoints
                .iter()
                .filter(|status| status.answer.is_ok())
                .count(),
            ClientKind::Mesh if self.quorum_error.is_none() => self.endpoint_count,
            ClientKind::Mesh => 0,
        }
    }
}

pub(super) fn status(client: &Client) -> Status {
    let inner = &client.inner;
    let checks = inner.monitor.checks();
    let cluster_id = match inner.history.pinned() {
        0 => checks
            .endpoints
            .iter()
            .find_map(|status| status.answer.as_ref().ok())
            .map_or(0, |answer| answer.header.cluster_id),
        id => id,
    };
    // A mesh client makes no other check: without this a store that is gone would show with the age of the heartbeat.
    let unwatched = checks
        .watch_error
        .filter(|_| inner.options.kind == ClientKind::Mesh);
    let (quorum_errors, quorum_error) = match (checks.quorum_error, unwatched) {
        (None, Some((failures, error))) => (failures, Some(QuorumError::Watch(error))),
        (error, _) => (checks.quorum_errors, error),
    };
    Status {
        connection: if !inner.is_enabled {
            Connection::Disabled
        } else if inner.monitor.is_connected() {
            Connection::Connected
        } else {
            Connection::Connecting(checks.connect_error)
        },
        backend: inner.backend.kind(),
        kind: inner.options.kind,
        endpoint_count: inner.backend.addresses().len(),
        endpoints: checks.endpoints,
        leases: inner.leases.count(),
        lock_leases: inner.lock_leases.count(),
        quorum_errors,
        quorum_error,
        refusal: checks.refusal,
        failure: inner.failed.borrow().clone(),
        cluster_id,
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.connection {
            Connection::Disabled => return f.write_str("Disabled"),
            Connection::Connecting(error) => {
                f.write_str(CONNECTING)?;
                let error = error.as_ref().and_then(Error::backend);
                let first = error.map(|error| error as &dyn std::error::Error);
                let mut causes = std::iter::successors(first, |cause| (*cause).source());
                return causes.try_for_each(|cause| write!(f, ": {cause}"));
            }
            Connection::Connected => {}
        }
        write!(
            f,
            "{}: {}/{} connected, leases={}, lock leases={}, has-quorum=",
            self.backend,
            self.connected_endpoints(),
            self.endpoint_count,
            self.leases,
            self.lock_leases,
        )?;
        match &self.quorum_error {
            None => f.write_str("true")?,
            Some(error) => {
                write!(f, "{error}")?;
                let causes = std::iter::successors(error.source(), |cause| (*cause).source());
                for cause in causes.filter(|_| matches!(error, QuorumError::Watch(_))) {
                    write!(f, ": {cause}")?;
                }
                write!(f, ", consecutive-errors={}", self.quorum_errors)?;
            }
        }
        if let Some(refusal) = &self.refusal {
            write!(f, ", {refusal}")?;
        }
        match self.kind {
            ClientKind::Mesh => write!(
                f,
                ": endpoint status checks are disabled, ID: {:x}",
                self.cluster_id
            ),
            ClientKind::Full => {
                for (at, status) in self.endpoints.iter().enumerate() {
                    f.write_str(if at == 0 { ": " } else { "; " })?;
                    match &status.answer {
                        Ok(answer) => {
                            write!(f, "{} - {}", status.endpoint, answer.version)?;
                            if answer.is_leader {
                                f.write_str(" (Leader)")?;
                            }
                            if !answer.alarms.is_empty() {
                                write!(f, " (alarm {})", answer.alarms.join(", "))?;
                            }
                        }
                        Err(error) => write!(f, "{} - {error}", status.endpoint)?,
                    }
                }
                Ok(())
            }
        }
    }
}
