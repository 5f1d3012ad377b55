// SPDX-License-Identifier: Apache-2.0

//! A lister-watcher → one endless stream of events.
//!
//! List once; watch from the list's version; watch again from the last version seen whenever a watch ends or the
//! connection breaks; list again when that version has expired. Failures are retried with a backoff.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use rand::Rng;
use skep_k8s_types::slim::Str;
use skep_k8s_types::{DecodeError, Resource};
use tokio::time::Instant;

use crate::api::list_all;
use crate::client::ListerWatcher;
use crate::error::ApiError;
use crate::event::{ObjectEvent, WatchEvent};

/// What a [`watcher`] reports.
#[derive(Debug, Clone)]
pub enum WatcherEvent<T> {
    /// Objects of the first list, of [`watcher_in_pages`] only. If a page fails, the complete list follows in
    /// [`Replaced`](Self::Replaced).
    InitPage {
        /// Objects of the page.
        items: Vec<Arc<T>>,
        /// Objects that could not be decoded: they exist.
        invalid: Vec<DecodeError>,
    },
    /// The first list is complete.
    InitDone,
    /// The complete state. Objects reported before and not in here are gone.
    Replaced {
        /// All objects.
        items: Vec<Arc<T>>,
        /// Objects that could not be decoded: they exist.
        invalid: Vec<DecodeError>,
    },
    /// An object changed.
    Object(ObjectEvent<T>),
    /// A request failed and is retried. Earlier events may be stale.
    Failing(Arc<ApiError>),
    /// The server answers again.
    Working,
}

/// Wait after failures: doubles each time, up to a limit, with a jitter of ±50 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Wait after the first failure.
    pub first: Duration,
    /// Longest wait.
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

/// Time over which the watchers of a recovered server spread their requests.
const SPREAD: Duration = Duration::from_secs(3);

/// A watch that lasted this long counts as a success.
const HEALTHY_WATCH: Duration = Duration::from_secs(5);

/// Watches a source without end.
///
/// ```
/// # async fn example(client: std::sync::Arc<dyn skep_k8s_client::Client>) {
/// use futures::StreamExt;
/// use skep_k8s_client::{Api, Backoff, ObjectEvent, WatcherEvent, watcher};
/// use skep_k8s_types::slim::Service;
///
/// let mut events = watcher(std::sync::Arc::new(Api::<Service>::all(client)), Backoff::default());
/// while let Some(event) = events.next().await {
///     match event {
///         WatcherEvent::Replaced { items, .. } => println!("{} services", items.len()),
///         WatcherEvent::Object(ObjectEvent::Applied(service)) => println!("changed: {}", service.metadata.name),
///         WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => println!("gone: {key}"),
///         WatcherEvent::Object(ObjectEvent::Invalid(error)) => println!("{error}"),
///         WatcherEvent::Failing(error) => println!("{error}"),
///         WatcherEvent::Working => println!("connected again"),
///         WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => {}
///     }
/// }
/// # }
/// ```
pub fn watcher<T: Resource>(
    source: Arc<dyn ListerWatcher<T>>,
    backoff: Backoff,
) -> BoxStream<'static, WatcherEvent<T>> {
    watch_after(source, backoff, Str::default())
}

/// Watches a source without end, as [`watcher`] does, but reports the first list page by page: a reader without state
/// starts with the first page, and the list is never in memory as a whole. Later lists are complete, so that deletions
/// are seen.
pub fn watcher_in_pages<T: Resource>(
    source: Arc<dyn ListerWatcher<T>>,
    backoff: Backoff,
) -> BoxStream<'static, WatcherEvent<T>> {
    let events = async_stream::stream! {
        let mut version = Str::default();
        let mut token = String::new();
        loop {
            match source.list(&token).await {
                Ok(page) => {
                    yield WatcherEvent::InitPage { items: page.items, invalid: page.invalid };
                    token = page.continue_token;
                    if token.is_empty() {
                        version = page.resource_version;
                        yield WatcherEvent::InitDone;
                        break;
                    }
                }
                Err(error) => {
                    // The complete list, which follows, reports the error again.
                    tracing::debug!(%error, "Cannot read page of the initial list");
                    break;
                }
            }
        }
        let mut events = watch_after(source, backoff, version);
        while let Some(event) = events.next().await {
            yield event;
        }
    };
    Box::pin(events)
}

/// Watches a source from a version on; an empty one begins with a list.
fn watch_after<T: Resource>(
    source: Arc<dyn ListerWatcher<T>>,
    backoff: Backoff,
    mut version: Str,
) -> BoxStream<'static, WatcherEvent<T>> {
    let events = async_stream::stream! {
        // `version`: to watch from; empty when a list is needed.
        let mut failures = 0;
        let mut failing = false;
        loop {
            let error = if version.is_empty() {
                match list_all(&*source).await {
                    Ok(page) => {
                        version = page.resource_version;
                        yield WatcherEvent::Replaced { items: page.items, invalid: page.invalid };
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
                            yield WatcherEvent::Working;
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
                                version = Str::new(event.resource_version());
                            }
                            if let WatchEvent::Object(event) = event {
                                yield WatcherEvent::Object(event);
                            }
                        }
                        if heard || began.elapsed() > HEALTHY_WATCH {
                            failures = 0;
                            if ended.is_none() {
                                // Servers end watches regularly: watch again at once.
                                continue;
                            }
                        }
                    }
                }
            }
            failures += 1;
            if let Some(error) = ended {
                if must_list_again(&error) {
                    version = Str::default();
                    if failures == 1 {
                        // An expired version is not a failure of the server.
                        continue;
                    }
                }
                failing = true;
                yield WatcherEvent::Failing(Arc::new(error));
            }
            failures = pause(&*source, backoff, failures).await;
        }
    };
    Box::pin(events)
}

/// Waits for the backoff, or until the source has recovered. Returns how many failures count from then on.
async fn pause<T: Resource>(source: &dyn ListerWatcher<T>, backoff: Backoff, failures: u32) -> u32 {
    tokio::select! {
        () = tokio::time::sleep(backoff.after(failures)) => failures,
        () = source.recovered() => {
            // Every node of a cluster notices at the same time: do not all list at once.
            tokio::time::sleep(SPREAD.mul_f64(rand::random_range(0.0..1.0))).await;
            0
        }
    }
}

/// Whether the version to watch from is no longer valid.
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
    use skep_k8s_types::slim::Service;
    use tokio::sync::Notify;

    use super::*;
    use crate::client::WatchStream;
    use crate::event::Page;

    /// Lists in pages of one object; the second page of the first list may be missing.
    struct Paged {
        names: &'static [&'static str],
        breaks_off: std::sync::atomic::AtomicBool,
    }

    #[async_trait]
    impl ListerWatcher<Service> for Paged {
        async fn list(&self, token: &str) -> Result<Page<Service>, ApiError> {
            let at: usize = token.parse().unwrap_or(0);
            if at == 1 && self.breaks_off.swap(false, std::sync::atomic::Ordering::Relaxed) {
                return Err(ApiError::Disabled);
            }
            let mut service = Service::default();
            service.metadata.name = self.names[at].into();
            let is_last = at + 1 == self.names.len();
            Ok(Page {
                items: vec![Arc::new(service)],
                invalid: Vec::new(),
                resource_version: "7".into(),
                continue_token: if is_last {
                    String::new()
                } else {
                    (at + 1).to_string()
                },
            })
        }

        async fn watch(&self, version: &str) -> Result<WatchStream<Service>, ApiError> {
            assert_eq!(version, "7");
            let mut service = Service::default();
            service.metadata.name = "watched".into();
            let event = Ok(WatchEvent::Object(ObjectEvent::Applied(Arc::new(service))));
            Ok(futures::stream::iter([event])
                .chain(futures::stream::pending())
                .boxed())
        }
    }

    async fn reported(breaks_off: bool) -> Vec<String> {
        let source = Arc::new(Paged {
            names: &["a", "b"],
            breaks_off: breaks_off.into(),
        });
        let text = |event: WatcherEvent<Service>| match event {
            WatcherEvent::InitPage { items, .. } => format!("page {}", items[0].metadata.name),
            WatcherEvent::InitDone => "complete".to_owned(),
            WatcherEvent::Replaced { items, .. } => format!("all {}", items.len()),
            WatcherEvent::Object(ObjectEvent::Applied(object)) => object.metadata.name.to_string(),
            other => format!("{other:?}"),
        };
        let events = watcher_in_pages(source, Backoff::default()).map(text);
        events
            .take_while(|text| futures::future::ready(text != "watched"))
            .collect()
            .await
    }

    #[tokio::test]
    async fn the_first_list_is_reported_in_pages() {
        assert_eq!(reported(false).await, ["page a", "page b", "complete"]);
    }

    #[tokio::test]
    async fn a_first_list_that_breaks_off_is_reported_whole() {
        assert_eq!(reported(true).await, ["page a", "all 2"]);
    }

    /// Unreachable until it is notified.
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
        let mut events = watcher(
            source.clone(),
            Backoff {
                first: day,
                longest: day,
            },
        );
        assert!(matches!(events.next().await, Some(WatcherEvent::Failing(_))));

        let began = Instant::now();
        source.0.notify_one();
        assert!(matches!(events.next().await, Some(WatcherEvent::Failing(_))));
        assert!(began.elapsed() <= SPREAD, "{:?}", began.elapsed());

        events.next().await;
        assert!(began.elapsed() >= day / 2, "without a recovery it waits");
    }

    const HOUR: Duration = Duration::from_secs(3600);
    /// Waits long enough to distinguish a first failure from a fifth.
    const SLOW: Backoff = Backoff {
        first: HOUR,
        longest: HOUR.saturating_mul(1000),
    };

    /// How long until the next failure is reported.
    async fn until_failing(events: &mut BoxStream<'static, WatcherEvent<Service>>) -> Duration {
        let began = Instant::now();
        while !matches!(events.next().await, Some(WatcherEvent::Failing(_))) {}
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_back_gets_a_fresh_start() {
        let source = Arc::new(Away::default());
        let mut events = watcher(source.clone(), SLOW);
        for _ in 0..5 {
            until_failing(&mut events).await;
        }

        source.0.notify_one();

        assert!(until_failing(&mut events).await <= SPREAD);
        assert!(
            until_failing(&mut events).await <= 2 * HOUR,
            "failures before count no more"
        );
    }

    /// Watches: the result of each call, then errors.
    struct Watches(parking_lot::Mutex<Vec<Result<usize, ApiError>>>);

    #[async_trait]
    impl ListerWatcher<Service> for Watches {
        async fn list(&self, _: &str) -> Result<Page<Service>, ApiError> {
            Ok(Page {
                items: Vec::new(),
                invalid: Vec::new(),
                resource_version: "7".into(),
                continue_token: String::new(),
            })
        }

        async fn watch(&self, _: &str) -> Result<WatchStream<Service>, ApiError> {
            let next = self.0.lock().pop().unwrap_or(Err(ApiError::Disabled))?;
            let event = || {
                Ok(WatchEvent::Object(ObjectEvent::Applied(Arc::new(
                    Service::default(),
                ))))
            };
            let events: Vec<_> = std::iter::repeat_with(event).take(next).collect();
            let broken = futures::stream::iter([Err(ApiError::Disabled)]);
            Ok(futures::stream::iter(events).chain(broken).boxed())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_reported_something_makes_failures_before_it_count_no_more() {
        let mut watches = vec![Ok(1)];
        watches.extend((0..4).map(|_| Err(ApiError::Disabled)));
        let mut events = watcher(Arc::new(Watches(parking_lot::Mutex::new(watches))), SLOW);
        for _ in 0..5 {
            until_failing(&mut events).await;
        }

        assert!(until_failing(&mut events).await <= 2 * HOUR);
    }

    #[tokio::test]
    async fn a_server_that_has_forgotten_is_not_failing() {
        let gone = ApiError::Status(crate::error::Status::new(410, "Expired", "too old"));
        let source = Arc::new(Watches(parking_lot::Mutex::new(vec![Ok(1), Err(gone)])));

        let events: Vec<_> = watcher(source, SLOW).take(3).collect().await;

        let is_list = |event: &WatcherEvent<Service>| matches!(event, WatcherEvent::Replaced { .. });
        assert!(is_list(&events[0]) && is_list(&events[1]), "{events:?}");
        assert!(
            matches!(events[2], WatcherEvent::Object(ObjectEvent::Applied(_))),
            "{events:?}"
        );
    }
}
