// SPDX-License-Identifier: Apache-2.0

//! A lister-watcher → one endless stream of what the objects are and how they change.
//!
//! List once; watch from the list's version; watch again from the last version seen whenever a watch ends or the
//! connection breaks; list again when the server has forgotten that version. Failures are waited out with a backoff.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use rand::Rng;
use tokio::time::Instant;

use crate::api::list_all;
use crate::client::ListerWatcher;
use crate::decode::DecodeError;
use crate::error::ApiError;
use crate::event::{Invalid, WatchEvent};
use crate::kind::Resource;
use crate::slim::Str;

/// What [`follow`] tells.
#[derive(Debug, Clone)]
pub enum SourceEvent<T> {
    /// The complete state. Objects told of before and not in here are gone.
    Replaced {
        /// All objects.
        items: Vec<Arc<T>>,
        /// Objects that could not be decoded: they exist.
        invalid: Vec<DecodeError>,
    },
    /// An object is new or has changed.
    Upserted(Arc<T>),
    /// An object is gone; its last state.
    Deleted(Arc<T>),
    /// An object has changed or is gone, and cannot be decoded.
    Invalid(Invalid),
    /// The server cannot be reached or refuses; tried again. What was told before may be stale.
    Failing(Arc<ApiError>),
    /// The server answers again.
    Working,
}

/// How long to wait after failures: twice as long each time, up to a limit, within ±50 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    fn after(self, failures: u32) -> Duration {
        let wait = self
            .first
            .saturating_mul(1 << failures.saturating_sub(1).min(16))
            .min(self.longest);
        wait.mul_f64(rand::rng().random_range(0.5..1.5))
    }
}

/// Within this time after a lost server is back everybody asks it again.
const SPREAD: Duration = Duration::from_secs(3);

/// A watch that lived this long was a success.
const HEALTHY_WATCH: Duration = Duration::from_secs(5);

/// Follows a source for ever.
///
/// ```
/// # async fn example(client: std::sync::Arc<dyn skep_k8s::Client>) {
/// use futures::StreamExt;
/// use skep_k8s::{Api, Backoff, SourceEvent, follow, slim::Service};
///
/// let mut events = follow(std::sync::Arc::new(Api::<Service>::all(client)), Backoff::default());
/// while let Some(event) = events.next().await {
///     match event {
///         SourceEvent::Replaced { items, .. } => println!("{} services", items.len()),
///         SourceEvent::Upserted(service) => println!("changed: {}", service.metadata.name),
///         SourceEvent::Deleted(service) => println!("gone: {}", service.metadata.name),
///         SourceEvent::Invalid(invalid) => println!("{}", invalid.error),
///         SourceEvent::Failing(error) => println!("{error}"),
///         SourceEvent::Working => println!("well again"),
///     }
/// }
/// # }
/// ```
pub fn follow<T: Resource>(
    source: Arc<dyn ListerWatcher<T>>,
    backoff: Backoff,
) -> BoxStream<'static, SourceEvent<T>> {
    let events = async_stream::stream! {
        // Version to watch from; empty when a list is needed.
        let mut version = Str::default();
        let mut failures = 0;
        let mut failing = false;
        loop {
            let error = if version.is_empty() {
                match list_all(&*source).await {
                    Ok(page) => {
                        version = page.resource_version;
                        yield SourceEvent::Replaced { items: page.items, invalid: page.invalid };
                        None
                    }
                    Err(error) => Some(error),
                }
            } else {
                None
            };
            let mut ended = error;
            if ended.is_none() {
                match source.watch(&version).await {
                    Err(error) => ended = Some(error),
                    Ok(mut watch) => {
                        if failing {
                            failing = false;
                            yield SourceEvent::Working;
                        }
                        let began = Instant::now();
                        let mut heard = false;
                        while let Some(event) = watch.next().await {
                            let event = match event {
                                Ok(event) => event,
                                Err(error) => {
                                    ended = Some(error);
                                    break;
                                }
                            };
                            heard = true;
                            if !event.resource_version().is_empty() {
                                version = event.resource_version().clone();
                            }
                            match event {
                                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                                    yield SourceEvent::Upserted(object);
                                }
                                WatchEvent::Deleted(object) => yield SourceEvent::Deleted(object),
                                WatchEvent::Invalid(invalid) => yield SourceEvent::Invalid(invalid),
                                WatchEvent::Bookmark { .. } => {}
                            }
                        }
                        if heard || began.elapsed() > HEALTHY_WATCH {
                            failures = 0;
                        }
                        if ended.is_none() && failures == 0 && (heard || began.elapsed() > HEALTHY_WATCH) {
                            // The server ends watches now and then: go on at once.
                            continue;
                        }
                    }
                }
            }
            failures += 1;
            if let Some(error) = ended {
                if must_list_again(&error) {
                    version = Str::default();
                    if failures == 1 {
                        // Nothing is wrong with the server: it has only forgotten.
                        continue;
                    }
                }
                failing = true;
                yield SourceEvent::Failing(Arc::new(error));
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.after(failures)) => {}
                () = source.recovered() => {
                    // Every node of a cluster notices at the same time: do not all list at once.
                    failures = 0;
                    tokio::time::sleep(SPREAD.mul_f64(rand::random_range(0.0..1.0))).await;
                }
            }
        }
    };
    Box::pin(events)
}

/// Whether the version to watch from is of no use any more.
fn must_list_again(error: &ApiError) -> bool {
    error.status().is_some_and(|status| match status.code {
        401 | 403 | 429 => false,
        400..500 => true,
        // The server's store was restored from an older copy.
        _ => status.message.contains("Too large resource version"),
    })
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tokio::sync::Notify;

    use super::*;
    use crate::client::WatchStream;
    use crate::event::Page;
    use crate::slim::Service;

    /// Away, until it is told to be back.
    #[derive(Default)]
    struct Away(Notify);

    #[async_trait]
    impl ListerWatcher<Service> for Away {
        async fn list(&self, _: &str) -> Result<Page<Service>, ApiError> {
            Err(ApiError::Disabled)
        }

        async fn watch(&self, _: &str) -> Result<WatchStream<Service>, ApiError> {
            Err(ApiError::Disabled)
        }

        async fn recovered(&self) {
            self.0.notified().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_back_is_asked_long_before_the_wait_is_over() {
        let source = Arc::new(Away::default());
        let day = Duration::from_secs(24 * 3600);
        let mut events = follow(
            source.clone(),
            Backoff {
                first: day,
                longest: day,
            },
        );
        assert!(matches!(events.next().await, Some(SourceEvent::Failing(_))));

        let began = Instant::now();
        source.0.notify_one();
        assert!(matches!(events.next().await, Some(SourceEvent::Failing(_))));
        assert!(began.elapsed() <= SPREAD, "{:?}", began.elapsed());

        events.next().await;
        assert!(began.elapsed() >= day / 2, "without a recovery it waits");
    }
}
