// SPDX-License-Identifier: Apache-2.0

//! The controller: pools and Services in, the status of both out. Its one key is the allocation: each pass allocates to all
//! Services at once.
//!
//! Services are not watched while there is no pool. Both lists are complete before the first allocation.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use hive::{Jobs, Params, SpawnError};
use jiff::Timestamp;
use serde_json::Value;
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_base_settings::ServiceIpamConfig;
use skep_k8s_client::{Api, Client, Patch, Subresource, WriteOptions};
use skep_k8s_controller::{
    Change, Controller, Failure, Reconciler, RequestError, Retry, Store, Watches, Work, job, request,
};
use skep_k8s_types::slim::Str;
use skep_k8s_types::{ObjectKey, Resource};
use tokio::time::Instant;

use crate::config::{Config, Families};
use crate::engine::{Engine, StatusWrite, Target};
use crate::metrics::LbIpamMetrics;
use crate::object::{PoolObject, ServiceObject};

const FIELD_MANAGER: &str = "cilium-operator-lb-ipam";

/// Requests at the same time.
const CONCURRENT_WRITES: usize = 8;

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
    let jobs = params.jobs.clone();
    jobs.spawn(job("lbipam", move || {
        let client = &params.client;
        let default = params.ipam.default_lb_service_ipam;
        let allocator = Allocator {
            engine: Engine::new(default, params.families.unwrap_or_default()),
            pools: Store::default(),
            services: Store::default(),
            wants_services: false,
            client: client.clone(),
            metrics: params.metrics.clone(),
            events: Vec::new(),
        };
        let services = Api::<ServiceObject>::all(client.clone());
        Controller::new(allocator, WorkqueueRecorder::default())
            .watch_all::<PoolObject>(client)
            .watch_while(Arc::new(services), |allocator| allocator.wants_services)
    }))
}

/// The one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pass;

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("allocation")
    }
}

/// Why a pass is not complete.
#[derive(Debug, thiserror::Error)]
enum PassError {
    /// The addresses of a Service that cannot be decoded are not known: each address may be in use.
    #[error("nothing is allocated: cannot read the addresses of Service {service}")]
    Unread {
        service: ObjectKey,
        #[source]
        cause: RequestError,
    },
    /// Check the role of the operator's service account.
    #[error("cannot write the status of {target}")]
    Write {
        target: Target,
        #[source]
        cause: RequestError,
    },
    #[error("addresses wait until another Service does not show them any more")]
    Deferred,
}

impl Failure for PassError {
    fn retry(&self) -> Retry {
        match self {
            Self::Unread { cause, .. } | Self::Write { cause, .. } => cause.retry(),
            Self::Deferred => Retry::Backoff,
        }
    }
}

/// What is known after the requests of a pass.
enum Answer {
    /// Addresses of a Service that cannot be decoded.
    Reserved(ObjectKey, Vec<IpAddr>),
    Pool(Arc<PoolObject>),
    Service(Arc<ServiceObject>),
}

type Answers = (Vec<Answer>, Result<(), PassError>);

struct Allocator {
    engine: Engine,
    pools: Store<PoolObject>,
    services: Store<ServiceObject>,
    /// Whether Services are watched.
    wants_services: bool,
    client: Arc<dyn Client>,
    metrics: Arc<LbIpamMetrics>,
    /// Events that the next pass handles: action, resource, when.
    events: Vec<(&'static str, &'static str, Instant)>,
}

impl Reconciler for Allocator {
    type Key = Pass;
    type Output = Answers;
    type Error = PassError;
    const KEYS: &'static str = "addresses";
    const FAILED: &'static str = "are not allocated";

    fn reconcile(&mut self, _: &Pass) -> Work<Self> {
        let (pools, services) = (&self.pools, &self.services);
        let is_invalid_pool = |name: &Str| {
            pools.is_invalid(&ObjectKey {
                name: name.clone(),
                ..ObjectKey::default()
            })
        };
        self.engine
            .retain_invalid(is_invalid_pool, |service| services.is_invalid(service));
        let client = self.client.clone();
        let unread: Vec<ObjectKey> = self.engine.unread_services().cloned().collect();
        if !unread.is_empty() {
            return Box::pin(async move {
                Ok(answers(unread.into_iter().map(|service| read(&*client, service))).await)
            });
        }
        let pass = self.engine.pass(Timestamp::now());
        self.metrics.update(&pass);
        let result = if pass.has_deferred {
            Err(PassError::Deferred)
        } else {
            Ok(())
        };
        if pass.writes.is_empty() && result.is_ok() && !self.engine.has_pools() {
            self.wants_services = false;
            self.engine.forget_services();
        }
        let (events, metrics) = (std::mem::take(&mut self.events), self.metrics.clone());
        Box::pin(async move {
            let is_done = pass.writes.is_empty();
            let writes = pass.writes.into_iter().map(|write| patch(&*client, write));
            let answers = answers(writes).await;
            for (action, resource, since) in events {
                let histogram = metrics.event_processing_time.with([action, resource]);
                histogram.observe(since.elapsed().as_secs_f64());
            }
            Ok(if is_done { (Vec::new(), result) } else { answers })
        })
    }

    fn finished(
        &mut self,
        _: &Pass,
        answers: Result<Answers, PassError>,
    ) -> Result<Option<Duration>, PassError> {
        let (answers, result) = answers?;
        let again = (!answers.is_empty()).then_some(Duration::ZERO);
        for answer in answers {
            match answer {
                Answer::Reserved(service, addresses) => self.engine.reserve(&service, addresses),
                Answer::Pool(pool) => {
                    if let Some(change) = self.pools.written(pool) {
                        self.pool_changed(&change);
                    }
                }
                Answer::Service(service) => {
                    if let Some(change) = self.services.written(service) {
                        self.service_changed(&change);
                    }
                }
            }
        }
        result.map(|()| again)
    }

    fn total(&self) -> usize {
        self.services.keys().len()
    }

    fn summary(&self, _: usize) -> String {
        if self.wants_services {
            "Allocating"
        } else {
            "No pools"
        }
        .to_owned()
    }

    fn faults(&self) -> Vec<String> {
        let pools = self.engine.invalid_pools();
        pools
            .map(|(name, error)| format!("pool {name}: {error}"))
            .collect()
    }
}

impl Allocator {
    fn pool_changed(&mut self, change: &Change<PoolObject>) {
        match &change.new {
            Some(pool) => self.engine.upsert_pool(pool.clone()),
            None => self.engine.delete_pool(&change.key.name),
        }
        self.wants_services |= self.engine.has_pools();
    }

    fn service_changed(&mut self, change: &Change<ServiceObject>) {
        match &change.new {
            Some(service) => self.engine.upsert_service(service.clone()),
            None => self.engine.delete_service(&change.key),
        }
    }

    fn note<T>(&mut self, resource: &'static str, new: Option<&T>) -> Vec<Pass> {
        let action = if new.is_some() { "upsert" } else { "delete" };
        self.events.push((action, resource, Instant::now()));
        vec![Pass]
    }
}

impl Watches<PoolObject> for Allocator {
    fn store(&mut self) -> &mut Store<PoolObject> {
        &mut self.pools
    }

    fn affected(&mut self, change: &Change<PoolObject>) -> Vec<Pass> {
        self.pool_changed(change);
        self.note("pool", change.new.as_ref())
    }

    fn invalid(&mut self, key: &ObjectKey) -> Vec<Pass> {
        if let Some(error) = self.pools.watch().invalid().get(key) {
            self.engine.unreadable_pool(error);
        }
        self.wants_services = true;
        self.note("pool", Some(key))
    }
}

impl Watches<ServiceObject> for Allocator {
    fn store(&mut self) -> &mut Store<ServiceObject> {
        &mut self.services
    }

    fn affected(&mut self, change: &Change<ServiceObject>) -> Vec<Pass> {
        self.service_changed(change);
        self.note("service", change.new.as_ref())
    }

    fn invalid(&mut self, key: &ObjectKey) -> Vec<Pass> {
        self.engine.unreadable_service(key);
        self.note("service", Some(key))
    }
}

/// Makes requests, some at the same time; returns all answers, and the first error.
async fn answers<F>(requests: impl Iterator<Item = F>) -> Answers
where
    F: Future<Output = Result<Option<Answer>, PassError>>,
{
    let results: Vec<_> = stream::iter(requests)
        .buffer_unordered(CONCURRENT_WRITES)
        .collect()
        .await;
    let (mut answers, mut result) = (Vec::new(), Ok(()));
    for answer in results {
        match answer {
            Ok(answer) => answers.extend(answer),
            Err(error) if result.is_ok() => result = Err(error),
            Err(error) => tracing::warn!(error = hive::error_chain(&error), "A further request failed"),
        }
    }
    (answers, result)
}

/// Reads the addresses in the status of a Service that cannot be decoded as a whole; none if it is deleted.
async fn read(client: &dyn Client, service: ObjectKey) -> Result<Option<Answer>, PassError> {
    let kind = ServiceObject::kind();
    let object = request(client.get(&kind, &service.namespace, &service.name)).await;
    let object = match object.and_then(|object| Ok(object.to_value()?)) {
        Err(error) if error.is_not_found() => return Ok(Some(Answer::Reserved(service, Vec::new()))),
        Err(cause) => return Err(PassError::Unread { service, cause }),
        Ok(object) => object,
    };
    let ingress = object
        .pointer("/status/loadBalancer/ingress")
        .and_then(Value::as_array);
    let address = |entry: &Value| entry.get("ip")?.as_str()?.parse().ok();
    let addresses = ingress.into_iter().flatten().filter_map(address).collect();
    Ok(Some(Answer::Reserved(service, addresses)))
}

/// Writes a status; returns the new state of the object, also after a conflict, unless it is deleted.
async fn patch(client: &dyn Client, write: StatusWrite) -> Result<Option<Answer>, PassError> {
    let options = WriteOptions {
        field_manager: FIELD_MANAGER.to_owned(),
        ..WriteOptions::default()
    };
    let StatusWrite { target, patch } = write;
    let (kind, namespace, name) = match &target {
        Target::Pool(name) => (PoolObject::kind(), "", name),
        Target::Service(key) => (ServiceObject::kind(), key.namespace.as_str(), &key.name),
    };
    let patch = Patch::Json(patch);
    let answer = async {
        let patched = client.patch(&kind, namespace, name, Subresource::Status, &patch, &options);
        let object = match request(patched).await {
            Err(error) if error.retry() == Retry::Conflict => {
                request(client.get(&kind, namespace, name)).await?
            }
            patched => patched?,
        };
        Ok(match &target {
            Target::Pool(_) => Answer::Pool(object.decode()?),
            Target::Service(_) => Answer::Service(object.decode()?),
        })
    };
    match answer.await {
        Ok(answer) => Ok(Some(answer)),
        Err(RequestError::Api(error)) if error.is_not_found() => Ok(None),
        Err(cause) => Err(PassError::Write { target, cause }),
    }
}
