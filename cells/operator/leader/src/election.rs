// SPDX-License-Identifier: Apache-2.0

//! The state machine: acquire, renew, release.
//!
//! A lease holds for its duration after this process *saw* it change: only the monotonic clock of this process counts,
//! so clocks that differ between nodes do no harm.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use serde_json::Value;
use skep_k8s_client::{ApiError, Client, Subresource, WriteOptions};
use skep_k8s_types::RawObject;
use tokio::time::{Instant, sleep, timeout};

use crate::changes::Changes;
use crate::lease::{LEASES, Record, now};

/// Settings of an [`Election`].
#[derive(Debug, Clone)]
pub struct Settings {
    pub namespace: String,
    pub name: String,
    pub identity: String,
    pub lease_duration: Duration,
    /// How long a failing renewal is retried.
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    /// How long a request may take.
    pub request_timeout: Duration,
}

impl Settings {
    /// Followers wait for up to this many times the retry period longer.
    pub(crate) const JITTER: f64 = 1.2;
}

#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// The API server rejected the request, or cannot be reached.
    #[error("lease `{name}`: cannot {verb} it")]
    Request {
        /// Namespace and name of the lease.
        name: String,
        verb: &'static str,
        #[source]
        cause: ApiError,
    },
    /// The API server did not answer in time.
    #[error("lease `{name}`: no answer within {}s to the request to {verb} it", after.as_secs_f64())]
    Timeout {
        /// Namespace and name of the lease.
        name: String,
        verb: &'static str,
        after: Duration,
    },
}

impl ElectionError {
    fn is(&self, test: impl Fn(&ApiError) -> bool) -> bool {
        matches!(self, Self::Request { cause, .. } if test(cause))
    }
}

/// Why a leader leads no longer. It must stop writing at once.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("`{holder}` has the lease")]
    Taken { holder: String },
    #[error("the lease could not be renewed for {}s", after.as_secs_f64())]
    Expired {
        after: Duration,
        /// Error of the last attempt, if it was one.
        #[source]
        cause: Option<ElectionError>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    Leads,
    Follows {
        /// Its identity; empty if it is not known.
        holder: String,
    },
}

/// The lease as it was last seen.
#[derive(Debug)]
struct Observed {
    lease: Value,
    record: Record,
    at: Instant,
}

impl Observed {
    fn until(&self) -> Instant {
        self.at + self.record.duration
    }
}

pub struct Election {
    client: Arc<dyn Client>,
    settings: Settings,
    observed: Option<Observed>,
    /// Start of the last successful renewal.
    renewed: Instant,
    /// A request that names this process is on its way, or was when it was dropped.
    is_unsure: bool,
}

impl Election {
    /// An election in which nothing is known yet.
    pub fn new(client: Arc<dyn Client>, settings: Settings) -> Self {
        Self {
            client,
            settings,
            observed: None,
            renewed: Instant::now(),
            is_unsure: false,
        }
    }

    /// The lease as it was last seen.
    pub fn record(&self) -> Option<&Record> {
        self.observed.as_ref().map(|observed| &observed.record)
    }

    /// Whether the lease, as it was last seen, is that of this process.
    pub fn leads(&self) -> bool {
        self.record()
            .is_some_and(|record| record.holder == self.settings.identity)
    }

    /// Waits until this process leads. `report` is called for every new leader and every error.
    pub async fn acquire(&mut self, mut report: impl FnMut(Result<&str, &ElectionError>)) {
        let (namespace, name) = (&self.settings.namespace, &self.settings.name);
        let mut changes = Changes::new(self.client.clone(), namespace, name);
        let mut known = None;
        loop {
            match self.attempt().await {
                Ok(Attempt::Leads) => return,
                Ok(Attempt::Follows { holder }) => {
                    if known.as_ref() != Some(&holder) {
                        report(Ok(&holder));
                        known = Some(holder);
                    }
                }
                Err(error) => report(Err(&error)),
            }
            self.wait(&mut changes).await;
        }
    }

    /// Waits until another attempt may succeed, but no longer than followers wait.
    async fn wait(&mut self, changes: &mut Changes) {
        let factor = 1.0 + rand::rng().random_range(0.0..Settings::JITTER);
        let poll = Instant::now() + self.settings.retry_period.mul_f64(factor);
        loop {
            let end = self.holder_until().map_or(poll, |end| end.min(poll));
            tokio::select! {
                biased;
                changed = changes.next() => {
                    if let Some(lease) = changed {
                        self.observe(lease, Instant::now());
                        if self.holder_until().is_some() {
                            continue;
                        }
                    }
                    return;
                }
                () = tokio::time::sleep_until(end) => return,
            }
        }
    }

    /// When the lease of another process ends; `None` if the lease is free or ours.
    fn holder_until(&self) -> Option<Instant> {
        let observed = self.observed.as_ref()?;
        let holder = &observed.record.holder;
        let is_theirs = !holder.is_empty() && *holder != self.settings.identity;
        (is_theirs && observed.until() > Instant::now()).then(|| observed.until())
    }

    /// Tries once to acquire or renew the lease.
    ///
    /// # Errors
    ///
    /// [`ElectionError`] of the request that failed. That another process was faster is none.
    pub async fn attempt(&mut self) -> Result<Attempt, ElectionError> {
        if self.leads() {
            match self.take().await {
                Err(error) if error.is(ApiError::is_conflict) || error.is(ApiError::is_not_found) => {}
                renewed => return renewed,
            }
        }
        match self.read().await {
            Ok(lease) => self.observe(lease, Instant::now()),
            Err(error) if error.is(ApiError::is_not_found) => self.observed = None,
            Err(error) => return Err(error),
        }
        if self.holder_until().is_some() {
            return Ok(self.follows());
        }
        match self.take().await {
            Err(error) if error.is(ApiError::is_conflict) || error.is(ApiError::is_already_exists) => {
                Ok(self.follows())
            }
            attempt => attempt,
        }
    }

    fn follows(&self) -> Attempt {
        let holder = self.record().map(|record| record.holder.clone());
        Attempt::Follows {
            holder: holder.unwrap_or_default(),
        }
    }

    /// Takes in a state of the lease.
    fn observe(&mut self, lease: Value, at: Instant) {
        let record = Record::read(&lease);
        match &mut self.observed {
            Some(observed) if observed.record == record => observed.lease = lease,
            observed => *observed = Some(Observed { lease, record, at }),
        }
    }

    /// Writes a record that names this process, on top of what was observed.
    async fn take(&mut self) -> Result<Attempt, ElectionError> {
        let started = Instant::now();
        let renewed = now();
        let (acquired, transitions) = match self.record() {
            Some(record) if record.holder == self.settings.identity => {
                (record.acquired.clone(), record.transitions)
            }
            Some(record) => (renewed.clone(), record.transitions.saturating_add(1)),
            None => (renewed.clone(), 0),
        };
        let record = Record {
            holder: self.settings.identity.clone(),
            duration: self.settings.lease_duration,
            acquired,
            renewed,
            transitions,
        };
        self.is_unsure = true;
        let written = self.write(&record).await?;
        self.is_unsure = false;
        // From the start of the request on: the others count from when they see the new record.
        self.observe(written, started);
        self.renewed = started;
        Ok(Attempt::Leads)
    }

    /// Renews the lease until it is lost. `report` is called for failed renewals, and for the first that succeeds after them.
    pub async fn renew(&mut self, mut report: impl FnMut(Result<(), &ElectionError>)) -> Lost {
        let Settings {
            retry_period,
            renew_deadline,
            lease_duration,
            ..
        } = self.settings;
        loop {
            sleep(retry_period).await;
            // A renewal is due one period after the last one, and has the deadline from then on.
            let within = (retry_period + renew_deadline).min(lease_duration);
            let mut cause = None;
            loop {
                let deadline = self.renewed + within;
                match tokio::time::timeout_at(deadline, self.attempt()).await {
                    Ok(Ok(Attempt::Leads)) => {
                        if cause.is_some() {
                            report(Ok(()));
                        }
                        break;
                    }
                    // Another process holds it, or it has changed: read it before trying again.
                    Ok(Ok(Attempt::Follows { holder })) if self.holder_until().is_some() => {
                        return Lost::Taken { holder };
                    }
                    Ok(Ok(Attempt::Follows { .. })) => {}
                    Ok(Err(error)) => {
                        report(Err(&error));
                        cause = Some(error);
                    }
                    Err(_) => {}
                }
                let next = Instant::now() + retry_period;
                if next >= deadline {
                    tokio::time::sleep_until(deadline).await;
                    let after = self.renewed.elapsed();
                    return Lost::Expired { after, cause };
                }
                tokio::time::sleep_until(next).await;
            }
        }
    }

    /// Releases the lease, so that another process acquires it at once. Does nothing if this one does not lead.
    ///
    /// # Errors
    ///
    /// [`ElectionError`]: the others then wait until the lease ends.
    pub async fn release(&mut self) -> Result<(), ElectionError> {
        if self.is_unsure && !self.leads() {
            match self.read().await {
                Ok(lease) => self.observe(lease, Instant::now()),
                Err(error) if error.is(ApiError::is_not_found) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let Some(record) = self.record().filter(|_| self.leads()) else {
            return Ok(());
        };
        let at = now();
        let record = Record {
            holder: String::new(),
            duration: Duration::from_secs(1),
            acquired: at.clone(),
            renewed: at,
            transitions: record.transitions,
        };
        let written = match self.write(&record).await {
            // A renewal whose answer was lost, or another writer: read it again, once.
            Err(error) if error.is(ApiError::is_conflict) => {
                let lease = self.read().await?;
                self.observe(lease, Instant::now());
                if !self.leads() {
                    return Ok(());
                }
                self.write(&record).await?
            }
            written => written?,
        };
        self.observe(written, Instant::now());
        Ok(())
    }

    async fn read(&self) -> Result<Value, ElectionError> {
        let Settings { namespace, name, .. } = &self.settings;
        self.within("read", self.client.get(&LEASES, namespace, name))
            .await
    }

    /// Creates the lease if there was none, else updates the state that was observed.
    async fn write(&self, record: &Record) -> Result<Value, ElectionError> {
        let Settings { namespace, name, .. } = &self.settings;
        let options = WriteOptions::default();
        let stored = self.observed.as_ref().map(|observed| &observed.lease);
        let lease = record.write(stored, namespace, name);
        match stored {
            None => {
                let created = self.client.create(&LEASES, namespace, lease, &options);
                self.within("create", created).await
            }
            Some(_) => {
                let updated = self
                    .client
                    .update(&LEASES, namespace, Subresource::None, lease, &options);
                self.within("update", updated).await
            }
        }
    }

    /// Waits for an answer, with a deadline.
    async fn within(
        &self,
        verb: &'static str,
        request: impl Future<Output = Result<RawObject, ApiError>>,
    ) -> Result<Value, ElectionError> {
        let Settings { namespace, name, .. } = &self.settings;
        let name = format!("{namespace}/{name}");
        let after = self.settings.request_timeout;
        let answer = match timeout(after, request).await {
            Ok(answer) => answer,
            Err(_) => return Err(ElectionError::Timeout { name, verb, after }),
        };
        let value = answer.and_then(|object| Ok((*object.to_value()?).clone()));
        value.map_err(|cause| ElectionError::Request { name, verb, cause })
    }
}
