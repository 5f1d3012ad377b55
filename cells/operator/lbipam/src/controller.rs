// SPDX-License-Identifier: Apache-2.0

//! The job: watches pools and Services, allocates, writes the status of both.
//!
//! Nothing is watched but pools while there is none. Both lists are complete before the first allocation.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hive::{Health, Job, JobCtx, Jobs, Params, SpawnError};
use jiff::Timestamp;
use serde_json::Value;
use skep_base_settings::ServiceIpamConfig;
use skep_k8s_client::{
    Api, ApiError, Backoff, Client, ObjectEvent, Patch, Subresource, WatchState, WatcherEvent, WriteOptions,
    watcher,
};
use skep_k8s_types::{ObjectKey, RawObject, Resource};
use tokio::time::Instant;

use crate::config::{Config, Families};
use crate::engine::{Engine, StatusWrite, Target};
use crate::metrics::LbIpamMetrics;
use crate::object::{PoolObject, ServiceObject};

const FIELD_MANAGER: &str = "cilium-operator-lb-ipam";

/// Requests at the same time.
const CONCURRENT_WRITES: usize = 8;

/// Passes without a pause, while writes make progress or meet conflicts.
const PASSES: usize = 8;

/// Wait after a failed write; doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

#[derive(Params)]
pub(crate) struct ControllerParams {
    config: hive::Cfg<Config>,
    ipam: hive::Cfg<ServiceIpamConfig>,
    families: Option<Families>,
    client: Arc<dyn Client>,
    metrics: Arc<LbIpamMetrics>,
    jobs: Jobs,
}

pub(crate) fn start(params: ControllerParams) -> Result<(), SpawnError> {
    if !params.config.enable_lb_ipam || !params.client.is_enabled() {
        return Ok(());
    }
    let ControllerParams {
        ipam,
        families,
        client,
        metrics,
        jobs,
        ..
    } = params;
    let default = ipam.default_lb_service_ipam;
    jobs.spawn(Job::once("lbipam", move |cx: JobCtx| {
        let mut controller = Controller {
            engine: Engine::new(default, families.unwrap_or_default()),
            client: client.clone(),
            metrics: metrics.clone(),
            health: cx.health.clone(),
            services: None,
            is_dirty: false,
            pools_watch: WatchState::default(),
            services_watch: WatchState::default(),
            failures: 0,
            unread: None,
            events: Vec::new(),
        };
        async move {
            // A leader that is no longer one writes nothing more.
            cx.until_cancelled(controller.run()).await;
        }
    }))
}

type Events<T> = BoxStream<'static, WatcherEvent<T>>;

enum Event {
    Pool(WatcherEvent<PoolObject>),
    Service(WatcherEvent<ServiceObject>),
    Retry,
}

struct Controller {
    engine: Engine,
    client: Arc<dyn Client>,
    metrics: Arc<LbIpamMetrics>,
    health: Health,
    /// Events of services; none while there is no pool.
    services: Option<Events<ServiceObject>>,
    is_dirty: bool,
    pools_watch: WatchState,
    services_watch: WatchState,
    /// Rounds in a row that failed.
    failures: u32,
    unread: Option<Unread>,
    /// Events that the next pass handles: action, resource, when.
    events: Vec<(&'static str, &'static str, Instant)>,
}

enum Outcome {
    /// Written, or read again after a conflict: the new state.
    Pool(Arc<PoolObject>),
    Service(Arc<ServiceObject>),
    Gone,
}

/// The addresses of a service that cannot be decoded are not known.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the addresses of Service {service}")]
struct Unread {
    service: ObjectKey,
    #[source]
    cause: ApiError,
}

/// What is not as it should be, for health.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Faults(String);

impl Controller {
    async fn run(&mut self) {
        let api = Api::<PoolObject>::all(self.client.clone());
        let mut pools = watcher(Arc::new(api), Backoff::default());
        let mut retry = None;
        loop {
            let event = self.next(&mut pools, retry).await;
            self.handle(event).await;
            // One pass for all that has happened.
            while let Some(event) = self.next(&mut pools, None).now_or_never() {
                self.handle(event).await;
            }
            if self.engine.has_pools() && self.pools_watch.is_listed() && self.services.is_none() {
                let api = Api::<ServiceObject>::all(self.client.clone());
                self.services = Some(watcher(Arc::new(api), Backoff::default()));
            }
            if self.is_dirty && self.pools_watch.is_listed() && self.services_watch.is_listed() {
                self.unread = self.read_addresses().await.err();
                retry = match self.unread {
                    None => self.reconcile().await,
                    Some(_) => Some(self.next_attempt()),
                };
            }
            self.report();
        }
    }

    async fn next(&mut self, pools: &mut Events<PoolObject>, retry: Option<Instant>) -> Event {
        let services = self.services.as_mut();
        let service = async {
            match services {
                Some(services) => services.next().await,
                None => std::future::pending().await,
            }
        };
        let timer = async {
            match retry {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // Watchers never end.
        tokio::select! {
            Some(event) = pools.next() => Event::Pool(event),
            Some(event) = service => Event::Service(event),
            () = timer => Event::Retry,
        }
    }

    async fn handle(&mut self, event: Event) {
        let now = Instant::now();
        let mut count = |action, resource| self.events.push((action, resource, now));
        match &event {
            Event::Pool(event) => self.pools_watch.note(event),
            Event::Service(event) => self.services_watch.note(event),
            Event::Retry => {}
        }
        match event {
            Event::Retry => self.is_dirty = true,
            Event::Pool(WatcherEvent::Replaced { items, invalid }) => {
                items.iter().for_each(|_| count("upsert", "pool"));
                self.engine.replace_pools(items, invalid);
                self.is_dirty = true;
            }
            Event::Pool(WatcherEvent::Object(event)) => {
                count(action(&event), "pool");
                self.engine.apply_pool(event);
                self.is_dirty = true;
            }
            Event::Service(WatcherEvent::Replaced { items, invalid }) => {
                items.iter().for_each(|_| count("upsert", "service"));
                self.engine.replace_services(items, invalid);
                self.is_dirty = true;
            }
            Event::Service(WatcherEvent::Object(event)) => {
                count(action(&event), "service");
                self.engine.apply_service(event);
                self.is_dirty = true;
            }
            Event::Pool(_) | Event::Service(_) => {}
        }
    }

    /// Reads the addresses of services that cannot be decoded. While one cannot be read, each address may be in use.
    async fn read_addresses(&mut self) -> Result<(), Unread> {
        let unread: Vec<ObjectKey> = self.engine.unread_services().cloned().collect();
        for service in unread {
            match addresses_of(&*self.client, &service).await {
                Ok(addresses) => self.engine.reserve(&service, addresses),
                Err(cause) => return Err(Unread { service, cause }),
            }
        }
        Ok(())
    }

    /// Allocates and writes until everything is written; returns when to try again.
    async fn reconcile(&mut self) -> Option<Instant> {
        self.is_dirty = false;
        let mut is_complete = false;
        for _ in 0..PASSES {
            let pass = self.engine.pass(Timestamp::now());
            self.metrics.update(&pass);
            if pass.writes.is_empty() {
                is_complete = !pass.has_deferred;
                break;
            }
            if !self.write(pass.writes).await {
                break;
            }
        }
        for (action, resource, since) in self.events.drain(..) {
            let histogram = self.metrics.event_processing_time.with([action, resource]);
            histogram.observe(since.elapsed().as_secs_f64());
        }
        if is_complete {
            self.failures = 0;
            if !self.engine.has_pools() {
                self.services = None;
                self.services_watch = WatchState::default();
                self.engine.forget_services();
            }
            return None;
        }
        Some(self.next_attempt())
    }

    /// When to try again after one more failure.
    fn next_attempt(&mut self) -> Instant {
        let wait = FIRST_RETRY
            .saturating_mul(1 << self.failures.min(6))
            .min(LONGEST_RETRY);
        self.failures = self.failures.saturating_add(1);
        Instant::now() + wait
    }

    /// Writes; returns whether all went well, conflicts included.
    async fn write(&mut self, writes: Vec<StatusWrite>) -> bool {
        let client = &self.client;
        let attempts = stream::iter(writes).map(|write| async move {
            let outcome = patch(&**client, &write).await;
            (write.target, outcome)
        });
        let outcomes: Vec<_> = attempts.buffer_unordered(CONCURRENT_WRITES).collect().await;
        let mut is_fine = true;
        for (target, outcome) in outcomes {
            match (target, outcome) {
                (_, Ok(Outcome::Pool(pool))) => self.engine.refresh_pool(pool),
                (_, Ok(Outcome::Service(service))) => self.engine.refresh_service(service),
                (Target::Service(key), Ok(Outcome::Gone)) => self.engine.delete_service(&key),
                (Target::Pool(name), Ok(Outcome::Gone)) => {
                    let key = ObjectKey {
                        name,
                        ..ObjectKey::default()
                    };
                    self.engine.apply_pool(ObjectEvent::Deleted(key, None));
                }
                (target, Err(error)) => {
                    is_fine = false;
                    match target {
                        Target::Service(key) => {
                            tracing::warn!(service = %key, %error, "Cannot write status of Service");
                        }
                        Target::Pool(name) => {
                            tracing::warn!(pool = %name, %error, "Cannot write status of pool");
                        }
                    }
                }
            }
        }
        is_fine
    }

    fn report(&self) {
        let mut faults = Vec::new();
        let failing = self.pools_watch.failing().or(self.services_watch.failing());
        if let Some(error) = failing {
            faults.push(format!("Kubernetes API server: {error}"));
        }
        if let Some(unread) = &self.unread {
            faults.push(format!("nothing is allocated: {}", hive::error_chain(unread)));
        } else if self.failures > 0 {
            faults.push("status not written, retrying".to_owned());
        }
        let pools = self.engine.invalid_pools();
        faults.extend(pools.map(|(name, error)| format!("pool {name}: {error}")));
        let services = self.engine.unreadable_services();
        faults.extend(services.map(ToString::to_string));
        if !faults.is_empty() {
            faults.truncate(10);
            self.health.degraded("Allocating", &Faults(faults.join("; ")));
        } else if self.services.is_some() {
            self.health.ok("Allocating");
        } else {
            self.health.ok("No pools");
        }
    }
}

fn action<T>(event: &ObjectEvent<T>) -> &'static str {
    match event {
        ObjectEvent::Deleted(..) => "delete",
        ObjectEvent::Applied(_) | ObjectEvent::Invalid(_) => "upsert",
    }
}

/// The addresses in the status of a service that cannot be decoded as a whole; none if it is gone.
async fn addresses_of(client: &dyn Client, service: &ObjectKey) -> Result<Vec<IpAddr>, ApiError> {
    let kind = ServiceObject::kind();
    let object = match client.get(&kind, &service.namespace, &service.name).await {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        object => object?.to_value()?,
    };
    let ingress = object
        .pointer("/status/loadBalancer/ingress")
        .and_then(Value::as_array);
    let address = |entry: &Value| entry.get("ip")?.as_str()?.parse().ok();
    Ok(ingress.into_iter().flatten().filter_map(address).collect())
}

async fn patch(client: &dyn Client, write: &StatusWrite) -> Result<Outcome, ApiError> {
    let options = WriteOptions {
        field_manager: FIELD_MANAGER.to_owned(),
        ..WriteOptions::default()
    };
    let (kind, namespace, name) = match &write.target {
        Target::Pool(name) => (PoolObject::kind(), "", name),
        Target::Service(key) => (ServiceObject::kind(), key.namespace.as_str(), &key.name),
    };
    let patch = Patch::Json(write.patch.clone());
    let written = client
        .patch(&kind, namespace, name, Subresource::Status, &patch, &options)
        .await;
    let object = match written {
        Err(error) if error.is_conflict() => client.get(&kind, namespace, name).await,
        written => written,
    };
    match object {
        Ok(object) => outcome(&write.target, &object),
        Err(error) if error.is_not_found() => Ok(Outcome::Gone),
        Err(error) => Err(error),
    }
}

fn outcome(target: &Target, object: &RawObject) -> Result<Outcome, ApiError> {
    Ok(match target {
        Target::Pool(_) => Outcome::Pool(object.decode()?),
        Target::Service(_) => Outcome::Service(object.decode()?),
    })
}
