// SPDX-License-Identifier: Apache-2.0

//! Controllers of DaemonSets, Deployments, Jobs and CronJobs, and the scheduler: what the chart needs of them.
//!
//! Pods belong to their Deployment without a ReplicaSet between them. A change of the template replaces pods, as many at a time as
//! may be unavailable.

mod desired;
mod objects;
mod schedule;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hive::{Cell, Jobs};
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueMetrics;
use skep_k8s_client::{Client, DeleteOptions, Patch, Subresource, WriteOptions};
use skep_k8s_controller::{Change, Controller, Reconciler, RequestError, Store, Watches, Work, job, request};
use skep_k8s_types::{Kind, ObjectKey, Resource};

use desired::{Action, Desired};
use objects::{CronJob, DaemonSet, Deployment, Job, Node, Pod};

/// Time between two looks at CronJobs, and at pods that could not be scheduled.
const RESYNC: Duration = Duration::from_secs(10);

/// Pods of workloads, and their nodes. Requires: `Arc<dyn Client>`. Runs where no controller manager does.
pub fn cell() -> Cell {
    Cell::module("workloads", "Makes and schedules the pods of workloads").run(start)
}

fn start(client: Arc<dyn Client>, jobs: Jobs) -> Result<(), hive::SpawnError> {
    let queue = WorkqueueMetrics::default().queue("workloads");
    jobs.spawn(job("workloads", move || {
        let workloads = Workloads::new(client.clone());
        Controller::new(workloads, queue.clone())
            .watch_all::<DaemonSet>(&client)
            .watch_all::<Deployment>(&client)
            .watch_all::<Job>(&client)
            .watch_all::<CronJob>(&client)
            .watch_all::<Node>(&client)
            .watch_all::<Pod>(&client)
            .concurrency(1)
            .resync(RESYNC, Workloads::all)
    }))
}

/// What is reconciled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    DaemonSet,
    Deployment,
    Job,
    CronJob,
    /// A pod without a node.
    Pod,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key(What, ObjectKey);

impl std::fmt::Display for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?} {}", self.0, self.1)
    }
}

struct Workloads {
    client: Arc<dyn Client>,
    daemon_sets: Store<DaemonSet>,
    deployments: Store<Deployment>,
    jobs: Store<Job>,
    cron_jobs: Store<CronJob>,
    nodes: Store<Node>,
    pods: Store<Pod>,
    /// Pods that were made or deleted, until the watch reports it, by their owner: their number is not changed meanwhile.
    expected: BTreeMap<Key, Vec<(ObjectKey, bool)>>,
    /// When each CronJob last made a Job.
    ran: BTreeMap<ObjectKey, jiff::Timestamp>,
}

impl Workloads {
    fn new(client: Arc<dyn Client>) -> Self {
        Self {
            client,
            daemon_sets: Store::default(),
            deployments: Store::default(),
            jobs: Store::default(),
            cron_jobs: Store::default(),
            nodes: Store::default(),
            pods: Store::default(),
            expected: BTreeMap::new(),
            ran: BTreeMap::new(),
        }
    }

    fn all(&self) -> Vec<Key> {
        let keys = [
            (
                What::DaemonSet,
                self.daemon_sets.keys().cloned().collect::<Vec<_>>(),
            ),
            (What::Deployment, self.deployments.keys().cloned().collect()),
            (What::Job, self.jobs.keys().cloned().collect()),
            (What::CronJob, self.cron_jobs.keys().cloned().collect()),
            (What::Pod, self.unscheduled()),
        ];
        let keys = keys.into_iter();
        keys.flat_map(|(what, keys)| keys.into_iter().map(move |key| Key(what, key)))
            .collect()
    }

    fn unscheduled(&self) -> Vec<ObjectKey> {
        let pods = self
            .pods
            .keys()
            .filter(|key| self.pods.get(key).is_some_and(|pod| pod.is_unscheduled()));
        pods.cloned().collect()
    }

    fn workload(&self, key: &Key) -> Option<Arc<Value>> {
        let Key(what, key) = key;
        match what {
            What::DaemonSet => Some(self.daemon_sets.get(key)?.0.value.clone()),
            What::Deployment => Some(self.deployments.get(key)?.0.value.clone()),
            What::Job => Some(self.jobs.get(key)?.0.value.clone()),
            What::CronJob => Some(self.cron_jobs.get(key)?.0.value.clone()),
            What::Pod => Some(self.pods.get(key)?.0.value.clone()),
        }
    }

    fn kind(what: What) -> Kind {
        match what {
            What::DaemonSet => DaemonSet::kind(),
            What::Deployment => Deployment::kind(),
            What::Job => Job::kind(),
            What::CronJob => CronJob::kind(),
            What::Pod => Kind::POD,
        }
    }

    /// Whether all pods that were made or deleted for an owner are known.
    fn is_up_to_date(&mut self, key: &Key) -> bool {
        let Some(expected) = self.expected.get_mut(key) else {
            return true;
        };
        let pods = &self.pods;
        expected.retain(|(pod, is_there)| {
            let found = pods.get(pod);
            match is_there {
                true => found.is_none(),
                false => found.is_some_and(|pod| !pod.is_deleting()),
            }
        });
        expected.is_empty()
    }

    fn nodes(&self) -> Vec<Arc<Value>> {
        let nodes = self.nodes.keys().filter_map(|key| self.nodes.get(key));
        nodes.map(|node| node.0.value.clone()).collect()
    }

    fn pods(&self) -> Vec<Arc<Value>> {
        let pods = self.pods.keys().filter_map(|key| self.pods.get(key));
        pods.map(|pod| pod.0.value.clone()).collect()
    }

    fn desired(&mut self, key: &Key, object: &Arc<Value>) -> Desired {
        let pods = self.pods();
        match key.0 {
            What::DaemonSet => desired::daemon_set(object, &pods, &self.nodes()),
            What::Deployment => desired::deployment(object, &pods),
            What::Job => desired::job(object, &pods),
            What::CronJob => {
                let now = jiff::Timestamp::now();
                let last = self.ran.get(&key.1).copied();
                let (desired, is_run) = desired::cron_job(object, last, now);
                if is_run || last.is_none() {
                    self.ran.insert(key.1.clone(), now);
                }
                desired
            }
            What::Pod => match schedule::node_for(object, &pods, &self.nodes()) {
                Some(node) => Desired::bind(node),
                None => Desired::default(),
            },
        }
    }
}

impl Reconciler for Workloads {
    type Key = Key;
    type Output = ();
    type Error = RequestError;
    const KEYS: &'static str = "workloads";
    const FAILED: &'static str = "have not the pods that they want";

    fn reconcile(&mut self, key: &Key) -> Work<Self> {
        let nothing: Work<Self> = Box::pin(async { Ok(()) });
        let Some(object) = self.workload(key) else {
            self.expected.remove(key);
            return nothing;
        };
        if crate::object::is_deleting(&object) {
            return nothing;
        }
        let mut desired = self.desired(key, &object);
        if !self.is_up_to_date(key) {
            desired.actions.clear();
        }
        let namespace = key.1.namespace.clone();
        let expected = desired.actions.iter().filter_map(|action| {
            let (name, is_there) = action.pod()?;
            let pod = ObjectKey {
                namespace: namespace.clone(),
                name: name.into(),
            };
            Some((pod, is_there))
        });
        let expected: Vec<_> = expected.collect();
        if !expected.is_empty() {
            self.expected.insert(key.clone(), expected);
        }
        let (client, key) = (self.client.clone(), key.clone());
        Box::pin(async move { write(&*client, &key, &object, desired).await })
    }

    fn total(&self) -> usize {
        self.all().len()
    }

    fn finished(
        &mut self,
        key: &Key,
        result: Result<(), RequestError>,
    ) -> Result<Option<Duration>, RequestError> {
        if result.is_err() {
            self.expected.remove(key);
        }
        result.map(|()| None)
    }
}

async fn write(client: &dyn Client, key: &Key, object: &Value, desired: Desired) -> Result<(), RequestError> {
    let (Key(what, ObjectKey { namespace, name }), options) = (key, WriteOptions::default());
    for action in desired.actions {
        let done = match action {
            Action::Create(kind, made) => request(client.create(&kind, namespace, made, &options))
                .await
                .map(drop),
            Action::Delete(pod) => {
                let options = DeleteOptions::default();
                request(client.delete(&Kind::POD, namespace, &pod, &options)).await
            }
            Action::Bind(node) => {
                let binding = json!({
                    "apiVersion": "v1", "kind": "Binding", "metadata": {"name": &**name},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": node},
                });
                request(client.create(&Kind::BINDING, namespace, binding, &options))
                    .await
                    .map(drop)
            }
        };
        match done {
            Err(RequestError::Api(err)) if err.is_not_found() || err.is_already_exists() => {}
            other => other?,
        }
    }
    if let Some(status) = desired.status
        && !is_part(&status, &object["status"])
    {
        let patch = Patch::Merge(json!({"status": status}));
        let kind = Workloads::kind(*what);
        let written = client.patch(&kind, namespace, name, Subresource::Status, &patch, &options);
        match request(written).await {
            Err(err) if err.is_not_found() => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// Whether `status` says nothing that is not in `written`.
fn is_part(status: &Value, written: &Value) -> bool {
    match status {
        Value::Object(fields) => fields.iter().all(|(key, value)| match value {
            Value::Null => written[key].is_null(),
            value => is_part(value, &written[key]),
        }),
        other => other == written,
    }
}

macro_rules! watches {
    ($type:ident, $store:ident, $what:ident) => {
        impl Watches<$type> for Workloads {
            fn store(&mut self) -> &mut Store<$type> {
                &mut self.$store
            }

            fn affected(&mut self, change: &Change<$type>) -> Vec<Key> {
                vec![Key(What::$what, change.key.clone())]
            }
        }
    };
}

watches!(DaemonSet, daemon_sets, DaemonSet);
watches!(Deployment, deployments, Deployment);
watches!(Job, jobs, Job);
watches!(CronJob, cron_jobs, CronJob);

impl Watches<Node> for Workloads {
    fn store(&mut self) -> &mut Store<Node> {
        &mut self.nodes
    }

    fn affected(&mut self, change: &Change<Node>) -> Vec<Key> {
        // What decides about its pods; the rest is status and heartbeats.
        let place = |node: &Option<Arc<Node>>| {
            let node = &node.as_ref()?.0.value;
            Some((
                node["metadata"]["labels"].clone(),
                node["spec"]["unschedulable"] == true,
            ))
        };
        if place(&change.old) == place(&change.new) {
            return Vec::new();
        }
        let unscheduled = self.unscheduled().into_iter().map(|key| Key(What::Pod, key));
        self.all().into_iter().chain(unscheduled).collect()
    }
}

impl Watches<Pod> for Workloads {
    fn store(&mut self) -> &mut Store<Pod> {
        &mut self.pods
    }

    fn affected(&mut self, change: &Change<Pod>) -> Vec<Key> {
        let pod = change.new.as_ref().or(change.old.as_ref());
        let mut keys: Vec<Key> = pod.and_then(|pod| pod.owner()).into_iter().collect();
        if change.new.as_ref().is_some_and(|pod| pod.is_unscheduled()) {
            keys.push(Key(What::Pod, change.key.clone()));
        }
        if change.new.is_none() {
            // Its node has room again.
            keys.extend(self.unscheduled().into_iter().map(|key| Key(What::Pod, key)));
        }
        keys
    }
}

#[cfg(test)]
mod tests;
