// SPDX-License-Identifier: Apache-2.0

//! Whether the store makes progress: heartbeat, quorum, endpoints.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Client, Event, lock};
use crate::backend::{BackendError, EndpointAnswer, EndpointStatus};
use crate::error::{ConnectionError, Error, QuorumError};
use crate::keys;
use crate::operation::Operation;
use crate::options::ClientKind;

/// How long one check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
const RECONNECT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// What is known of the store.
#[derive(Debug)]
pub(super) struct Monitor {
    connected: watch::Sender<bool>,
    state: Mutex<Checks>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    /// When the heartbeat was last seen.
    pub(super) heartbeat: Option<Instant>,
    /// How often in a row the heartbeat could not be watched, and why the last time.
    pub(super) watch_error: Option<(u32, BackendError)>,
    pub(super) endpoints: Vec<EndpointStatus>,
    /// Failed quorum checks in a row.
    pub(super) quorum_errors: u32,
    pub(super) quorum_error: Option<QuorumError>,
    pub(super) refusal: Option<BackendError>,
    /// The last error before the client was connected.
    pub(super) connect_error: Option<Error>,
}

impl Default for Monitor {
    fn default() -> Self {
        Self {
            connected: watch::Sender::new(false),
            state: Mutex::default(),
        }
    }
}

impl Monitor {
    pub(super) async fn wait_connected(&self) {
        // The sender lives as long as this.
        let _ = self.connected.subscribe().wait_for(|connected| *connected).await;
    }

    pub(super) fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }

    pub(super) fn checks(&self) -> Checks {
        self.state.lock().clone()
    }

    /// Remembers whether a prefix could be watched, after so many failures in a row. The heartbeat stands for all.
    pub(super) fn watched(&self, prefix: &str, failures: u32, error: Option<&BackendError>) {
        if prefix == keys::HEARTBEAT {
            self.state.lock().watch_error = error.map(|error| (failures, error.clone()));
        }
    }

    /// Remembers why the client is not connected.
    pub(super) fn note(&self, error: &Error) {
        if !self.is_connected() {
            self.state.lock().connect_error = Some(error.clone());
        }
    }
}

/// Connects, then checks now and then. Does not return.
pub(super) async fn run(client: &Client) {
    let listed = watch::Sender::new(false);
    tokio::join!(beat(client, &listed), async {
        connect(client, &listed).await;
        check_periodically(client).await;
    });
}

async fn beat(client: &Client, listed: &watch::Sender<bool>) {
    let mut heartbeat = client.list_and_watch(keys::HEARTBEAT);
    loop {
        match heartbeat.next().await {
            // The time of this machine: clocks differ.
            Event::Create(_) | Event::Modify(_) => {
                client.inner.monitor.state.lock().heartbeat = Some(Instant::now());
            }
            Event::Delete(_) => {}
            Event::ListDone => {
                listed.send_replace(true);
            }
        }
    }
}

async fn connect(client: &Client, listed: &watch::Sender<bool>) {
    let after = client.inner.options.connect_timeout;
    let ready = async {
        if client.inner.options.kind == ClientKind::Full {
            acquire_lock_lease(client).await;
        }
        let _ = listed.subscribe().wait_for(|listed| *listed).await;
    };
    let mut ready = std::pin::pin!(ready);
    if tokio::time::timeout(after, &mut ready).await.is_err() {
        let cause = client.inner.monitor.checks().connect_error.map(Box::new);
        client.fail(ConnectionError::Connect {
            name: client.name().to_owned(),
            after,
            cause,
        });
        ready.await;
    }
    let monitor = &client.inner.monitor;
    {
        let mut state = monitor.state.lock();
        state.heartbeat.get_or_insert_with(Instant::now);
        state.connect_error = None;
    }
    client.recover();
    monitor.connected.send_replace(true);
}

/// Locks are taken with a lease: without one the client of the own store is of no use.
async fn acquire_lock_lease(client: &Client) {
    let (mut pause, last) = RECONNECT;
    let grant = |ttl| async move { client.inner.backend.grant_lease(ttl).await };
    while let Err(cause) = client.inner.lock_leases.ensure(grant).await {
        let error = client.error(Operation::AcquireLease, keys::INIT_LOCK, cause);
        tracing::info!(
            client = client.name(),
            error = error.backend().map(tracing::field::display),
            "Waiting for the kvstore"
        );
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(last);
    }
}

async fn check_periodically(client: &Client) {
    loop {
        let is_fine = check(client).await;
        let options = &client.inner.options;
        let interval = if is_fine {
            options.check_interval
        } else {
            options.check_interval_failing
        };
        let nodes = client.inner.nodes.load(std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(scaled(interval, nodes)).await;
    }
}

/// An interval that grows with the size of the cluster, so that the store has about the same load.
fn scaled(interval: Duration, nodes: usize) -> Duration {
    if nodes <= 1 {
        return interval;
    }
    interval.mul_f64((nodes as f64).ln_1p())
}

/// Checks quorum and endpoints. Returns whether all is fine.
async fn check(client: &Client) -> bool {
    let (quorum, endpoints) = match client.inner.options.kind {
        ClientKind::Full => {
            // Before the probe, which writes. A store that cannot be asked fails that as well.
            let _ = client.inner.history.verify(&*client.inner.backend).await;
            tokio::join!(probe(client), client.inner.backend.endpoints())
        }
        ClientKind::Mesh => (heartbeat_age(client), Vec::new()),
    };
    let (quorum, refusal) = refused(quorum, &endpoints);
    let failed: Vec<&EndpointStatus> = endpoints.iter().filter(|status| status.answer.is_err()).collect();
    let has_failed = !failed.is_empty();
    let no_endpoint = (has_failed && failed.len() == endpoints.len()).then(|| reasons(&failed));
    let is_fine = quorum.is_ok() && refusal.is_none() && !has_failed;

    let times = {
        let mut state = client.inner.monitor.state.lock();
        state.endpoints = endpoints;
        state.quorum_errors = match &quorum {
            Ok(()) => 0,
            Err(_) => state.quorum_errors.saturating_add(1),
        };
        state.quorum_error = quorum.as_ref().err().cloned();
        state.refusal = refusal;
        state.quorum_errors
    };
    let name = client.name().to_owned();
    if let Err(cause) = quorum {
        let reason = match cause {
            QuorumError::Lock(_) => "lock timeout",
            QuorumError::Heartbeat { .. } | QuorumError::Watch(_) => "no event received",
        };
        client.inner.options.recorder.quorum_error(reason);
        if times > client.inner.options.max_quorum_errors {
            client.fail(ConnectionError::Quorum { name, times, cause });
            return is_fine;
        }
    }
    match no_endpoint {
        Some(reasons) => client.fail(ConnectionError::NoEndpoint {
            name,
            kind: client.inner.backend.kind(),
            reasons,
        }),
        None if times == 0 => client.recover(),
        None => {}
    }
    is_fine
}

/// A store without space answers and has a quorum, but takes no writes: not even those of the quorum check.
fn refused(
    quorum: Result<(), QuorumError>,
    endpoints: &[EndpointStatus],
) -> (Result<(), QuorumError>, Option<BackendError>) {
    if let Err(QuorumError::Lock(error)) = &quorum
        && matches!(error.backend(), Some(BackendError::NoSpace))
    {
        return (Ok(()), Some(BackendError::NoSpace));
    }
    let mut answers = endpoints.iter().flat_map(|status| &status.answer);
    let has_alarm = answers.any(EndpointAnswer::has_no_space);
    (quorum, has_alarm.then_some(BackendError::NoSpace))
}

fn reasons(failed: &[&EndpointStatus]) -> String {
    let texts: Vec<String> = failed
        .iter()
        .map(|status| match &status.answer {
            Ok(_) => status.endpoint.clone(),
            Err(error) => format!("{}: {error}", status.endpoint),
        })
        .collect();
    texts.join("; ")
}

/// Takes and releases a lock that nothing else uses: that needs a quorum.
async fn probe(client: &Client) -> Result<(), QuorumError> {
    let path = format!("{}/{:x}", keys::INIT_LOCK, fastrand::u64(..));
    let lock = lock::lock_within(client, &path, CHECK_TIMEOUT)
        .await
        .map_err(QuorumError::Lock)?;
    match tokio::time::timeout(CHECK_TIMEOUT, lock.unlock()).await {
        Ok(result) => result.map_err(QuorumError::Lock),
        Err(_) => Err(QuorumError::Lock(Error::LockTimeout {
            path,
            after: CHECK_TIMEOUT,
        })),
    }
}

fn heartbeat_age(client: &Client) -> Result<(), QuorumError> {
    let seen = client.inner.monitor.state.lock().heartbeat;
    let age = seen.map_or(Duration::ZERO, |seen| seen.elapsed());
    if age > client.inner.options.heartbeat_interval * 2 {
        Err(QuorumError::Heartbeat { age })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_rarer_in_large_clusters() {
        let base = Duration::from_secs(30);

        assert_eq!(scaled(base, 0), base);
        assert_eq!(scaled(base, 1), base);
        assert_eq!(scaled(base, 1000).as_secs(), 207);
    }
}
