// SPDX-License-Identifier: Apache-2.0

//! Admits requests by a rate and a number at once.
//!
//! Whoever is first in line waits for a place among the requests under way and for a token, and takes both together: a
//! request that is cancelled while it waits holds neither. Limits that change apply to those who wait, too.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::bucket::TokenBucket;
use crate::mean::Mean;
use crate::parameters::Parameters;
use crate::recorder::{LimiterUsage, Limits, Recorder};

/// A request waited for too long. Retry it later, or raise the limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limiter `{limiter}`: not admitted within {max_wait:?} (max-wait-duration)")]
pub struct NotAdmitted {
    pub limiter: String,
    /// How long a request may wait.
    pub max_wait: Duration,
}

/// Admits requests, in order of arrival.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::sync::Arc;
/// use skep_base_limiter::{Limiter, NoRecorder, Parameters};
///
/// let parameters = Parameters::default().with("parallel-requests:1,max-wait-duration:10ms").unwrap();
/// let limiter = Limiter::new("endpoint-create", parameters, Arc::new(NoRecorder));
///
/// let request = limiter.acquire().await.unwrap();
/// let error = limiter.acquire().await.unwrap_err();
/// assert_eq!(error.to_string(), "limiter `endpoint-create`: not admitted within 10ms (max-wait-duration)");
///
/// request.end(true);
/// assert!(limiter.acquire().await.is_ok());
/// # });
/// ```
#[derive(Debug)]
pub struct Limiter {
    name: String,
    parameters: Parameters,
    recorder: Arc<dyn Recorder>,
    /// Its permit belongs to the first in line.
    line: Semaphore,
    /// The same for those who need no token.
    line_for_places: Semaphore,
    /// Wakes the first in line when a request has ended or limits have changed.
    changed: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bucket: TokenBucket,
    /// Requests under way at most; 0 for no limit. A fraction counts at an adjustment only.
    parallel: f64,
    adjustment: Option<f64>,
    in_flight: u32,
    /// How many requests are still admitted without limits.
    initial: u32,
    waits: Mean,
    processing: Mean,
}

/// What the first in line waits for.
enum Wait {
    Place,
    Token(Duration),
}

/// Leave to process one request, which ends when this is dropped.
#[derive(Debug)]
pub struct Permit<'a> {
    limiter: &'a Limiter,
    /// Since when the request is processed; `None` while it is being admitted.
    since: Option<Instant>,
    waited: Duration,
}

impl Limiter {
    /// A limiter; errors, metrics and logs call it `name`.
    pub fn new(name: impl Into<String>, parameters: Parameters, recorder: Arc<dyn Recorder>) -> Self {
        let burst = f64::from(parameters.burst.max(1));
        let limiter = Self {
            name: name.into(),
            state: Mutex::new(State {
                bucket: TokenBucket::new(parameters.rate, burst),
                parallel: parameters.parallel.into(),
                adjustment: None,
                in_flight: 0,
                initial: parameters.skip_initial,
                waits: Mean::over(parameters.mean_over as usize),
                processing: Mean::over(parameters.mean_over as usize),
            }),
            parameters,
            recorder,
            line: Semaphore::new(1),
            line_for_places: Semaphore::new(1),
            changed: Notify::new(),
        };
        limiter.recorder.made(&limiter.name, &limiter.parameters);
        limiter.record_limits(&limiter.state.lock());
        limiter
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the rate from now on, in requests a second; 0 for no limit. The burst stays.
    pub fn set_rate(&self, rate: f64) {
        let mut state = self.state.lock();
        let burst = state.bucket.burst();
        state.bucket.set(rate, burst, Instant::now());
        self.record_limits(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until a request may be processed.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`] after `max-wait-duration`.
    pub async fn acquire(&self) -> Result<Permit<'_>, NotAdmitted> {
        let arrived = Instant::now();
        let max_wait = self.parameters.max_wait;
        let admitted = match (self.admit_initial(), max_wait) {
            (Some(permit), _) => Ok(permit),
            (None, Duration::ZERO) => Ok(self.wait().await),
            (None, max_wait) => timeout(max_wait, self.wait()).await,
        };
        let Ok(permit) = admitted else {
            self.recorder.processed(&self.name, false);
            return Err(NotAdmitted {
                limiter: self.name.clone(),
                max_wait,
            });
        };
        Ok(permit.begin(arrived))
    }

    /// Waits for a place among the requests under way, without a token: for what is part of a request.
    pub async fn place(&self) -> Permit<'_> {
        let arrived = Instant::now();
        self.enter(&self.line_for_places, false).await.begin(arrived)
    }

    fn admit_initial(&self) -> Option<Permit<'_>> {
        let mut state = self.state.lock();
        state.initial = state.initial.checked_sub(1)?;
        state.in_flight += 1;
        Some(Permit::of(self))
    }

    async fn wait(&self) -> Permit<'_> {
        if !self.parameters.min_wait.is_zero() {
            sleep(self.parameters.min_wait).await;
        }
        self.enter(&self.line, true).await
    }

    async fn enter(&self, line: &Semaphore, needs_token: bool) -> Permit<'_> {
        // It is never closed.
        let _first = line.acquire().await.ok();
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on a change is not missed.
            changed.as_mut().enable();
            let entered = self.state.lock().enter(Instant::now(), needs_token);
            match entered {
                Ok(()) => return Permit::of(self),
                Err(Wait::Place) => changed.await,
                Err(Wait::Token(time)) => tokio::select! {
                    () = sleep(time) => {}
                    () = changed => {}
                },
            }
        }
    }

    fn ended(&self, processed: Option<Duration>) {
        let mut state = self.state.lock();
        state.in_flight -= 1;
        if let Some(took) = processed {
            state.processing.add(took);
            if self.parameters.auto_adjust {
                state.adjust(&self.parameters, Instant::now());
                self.record_limits(&state);
            }
        }
        self.record_usage(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    // Both with the lock: what is later is not overwritten.
    fn record_limits(&self, state: &State) {
        self.recorder.limits(&self.name, &state.limits());
    }

    fn record_usage(&self, state: &State) {
        let usage = LimiterUsage {
            in_flight: state.in_flight,
            mean_wait: state.waits.get(),
            mean_processing: state.processing.get(),
        };
        self.recorder.usage(&self.name, &usage);
    }
}

impl State {
    fn limits(&self) -> Limits {
        Limits {
            rate: self.bucket.rate(),
            burst: self.bucket.burst(),
            in_flight: (self.parallel > 0.0).then(|| self.places()),
            adjustment: self.adjustment,
        }
    }

    /// Requests under way at most, where there is a limit: one at least.
    fn places(&self) -> u32 {
        // Far below what a number holds: at most the number of a setting times the largest factor.
        self.parallel.round().max(1.0) as u32
    }

    fn enter(&mut self, now: Instant, needs_token: bool) -> Result<(), Wait> {
        if self.parallel > 0.0 && self.in_flight >= self.places() {
            return Err(Wait::Place);
        }
        if needs_token {
            let wait = self.bucket.wait(now);
            if !wait.is_zero() {
                return Err(Wait::Token(wait));
            }
            self.bucket.take();
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Adjusts the limits so that requests take as long as estimated: more of them if they take less.
    fn adjust(&mut self, parameters: &Parameters, now: Instant) {
        let max = parameters.max_adjustment;
        let mean = self.processing.get().as_secs_f64();
        let factor = (parameters.estimated_processing.as_secs_f64() / mean).clamp(1.0 / max, max);
        self.adjustment = Some(factor);
        // These follow slower than the rate.
        let follow = |current: f64, base: u32| {
            let new = f64::from(base) * factor;
            current + (new - current) * parameters.delayed_adjustment
        };
        let burst = follow(self.bucket.burst(), parameters.burst.max(1)).max(1.0);
        self.bucket.set(parameters.rate * factor, burst, now);
        if parameters.parallel > 0 {
            let most = match parameters.max_parallel {
                0 => f64::INFINITY,
                most => most.into(),
            };
            self.parallel = follow(self.parallel, parameters.parallel)
                .max(parameters.min_parallel.into())
                .min(most);
        }
    }
}

impl<'a> Permit<'a> {
    fn of(limiter: &'a Limiter) -> Self {
        Self {
            limiter,
            since: None,
            waited: Duration::ZERO,
        }
    }

    /// From now on the request is processed.
    fn begin(mut self, arrived: Instant) -> Self {
        let now = Instant::now();
        self.since = Some(now);
        self.waited = now - arrived;
        let mut state = self.limiter.state.lock();
        state.waits.add(self.waited);
        self.limiter.record_usage(&state);
        drop(state);
        self
    }

    /// The request has ended and is answered: it counts as processed.
    pub fn end(self, is_success: bool) {
        let limiter = self.limiter;
        limiter.recorder.processed(&limiter.name, is_success);
        if limiter.parameters.log {
            let processed = self.since.map(|since| since.elapsed()).unwrap_or_default();
            let limits = limiter.state.lock().limits();
            tracing::info!(
                limiter = limiter.name,
                is_success,
                waited = ?self.waited,
                ?processed,
                rate = limits.rate,
                burst = limits.burst,
                parallel = limits.in_flight,
                "Request processed"
            );
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.limiter.ended(self.since.map(|since| since.elapsed()));
    }
}
