// SPDX-License-Identifier: Apache-2.0

//! For tests: the suite that every store passes, and a store that fails on purpose.

pub mod contract;
mod faulty;

use std::sync::Arc;
use std::time::Duration;

pub use faulty::FaultyBackend;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::backend::Backend;
use crate::client::{Client, Event, Watcher};
use crate::options::{ClientKind, ClientOptions, RateLimit};

/// How long tests wait for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A client with its driver running; both end when this is dropped.
#[derive(Debug)]
pub struct RunningClient {
    client: Client,
    token: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl RunningClient {
    #[expect(
        clippy::disallowed_methods,
        reason = "tests without a hive have no jobs; the task ends with this value"
    )]
    pub fn new(backend: Arc<dyn Backend>, options: ClientOptions) -> Self {
        let (client, driver) = Client::new(backend, options);
        let token = CancellationToken::new();
        let stop = token.clone();
        let task = AbortOnDropHandle::new(tokio::spawn(async move { driver.run(stop).await }));
        Self { client, token, task }
    }

    /// Runs a full client without a rate limit.
    pub fn full(backend: Arc<dyn Backend>) -> Self {
        Self::new(backend, options(ClientKind::Full))
    }

    /// Runs a client of a remote cluster without a rate limit.
    pub fn mesh(backend: Arc<dyn Backend>) -> Self {
        Self::new(backend, options(ClientKind::Mesh))
    }

    /// Stops the driver as a program does that ends.
    pub async fn stop(self) {
        self.token.cancel();
        let _ = self.task.await;
    }
}

impl std::ops::Deref for RunningClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

pub fn options(kind: ClientKind) -> ClientOptions {
    ClientOptions {
        rate: RateLimit {
            qps: 0,
            bootstrap_qps: None,
            max_inflight: 0,
        },
        ..ClientOptions::new("etcd", kind)
    }
}

/// The next event of a watcher.
///
/// # Panics
///
/// If none comes within [`PATIENCE`].
#[track_caller]
pub fn next_event(watcher: &mut Watcher) -> impl Future<Output = Event> + '_ {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(PATIENCE, watcher.next()).await {
            Ok(event) => event,
            Err(_) => panic!("{caller}: {watcher:?} yields nothing"),
        }
    }
}

/// An event as a short text: `create k=v`, `modify k=v`, `delete k`, `listDone`.
pub fn event_text(event: &Event) -> String {
    match event {
        Event::Create(item) => format!("create {}={}", item.key, String::from_utf8_lossy(&item.value)),
        Event::Modify(item) => format!("modify {}={}", item.key, String::from_utf8_lossy(&item.value)),
        Event::Delete(key) => format!("delete {key}"),
        Event::ListDone => "listDone".to_owned(),
    }
}

/// The next events of a watcher as short texts.
///
/// # Panics
///
/// If so many do not come within [`PATIENCE`] each.
pub async fn event_texts(watcher: &mut Watcher, count: usize) -> Vec<String> {
    let mut texts = Vec::with_capacity(count);
    for _ in 0..count {
        texts.push(event_text(&next_event(watcher).await));
    }
    texts
}
