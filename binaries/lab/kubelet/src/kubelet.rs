// SPDX-License-Identifier: Apache-2.0

//! Watches the pods of a node; each has a worker.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt;
use serde_json::Value;
use skep_k8s_client::{ApiError, Change, Client, ListOptions, RawEvent, WatchOptions};
use skep_k8s_types::Kind;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    cri::Cri,
    node::Node,
    object::text,
    worker::{Shared, Worker},
};

/// Time after which a pod is looked at again without a change of it.
const LOOK: Duration = Duration::from_millis(500);
/// Delay before a failed list or watch is retried.
const RETRY: Duration = Duration::from_millis(500);

type Pods = HashMap<String, watch::Sender<Arc<Value>>>;

/// Runs the pods that are bound to a node, until the future is dropped.
pub async fn run(client: Arc<dyn Client>, cri: Cri, node: Node) {
    let shared = Arc::new(Shared { client, cri, node });
    let (mut pods, mut workers) = (Pods::new(), JoinSet::new());
    loop {
        if let Err(err) = follow(&shared, &mut pods, &mut workers).await {
            tracing::warn!(error = %err, node = shared.node.name, "Cannot watch pods");
        }
        sleep(RETRY).await;
    }
}

async fn follow(shared: &Arc<Shared>, pods: &mut Pods, workers: &mut JoinSet<()>) -> Result<(), ApiError> {
    let kind = Kind::POD;
    let list = shared.client.list(&kind, "", &ListOptions::default()).await?;
    let mut seen = Vec::new();
    for item in &list.items {
        let pod = item.to_value()?;
        seen.push(text(&pod, "/metadata/uid").to_owned());
        tell(shared, pods, workers, pod);
    }
    pods.retain(|uid, _| seen.contains(uid));
    let options = WatchOptions {
        resource_version: list.resource_version,
        bookmarks: true,
        ..WatchOptions::default()
    };
    let mut events = shared.client.watch(&kind, "", &options).await?;
    while let Some(event) = events.next().await {
        while workers.try_join_next().is_some() {}
        let RawEvent::Object(change, object) = event? else {
            continue;
        };
        let pod = object.to_value()?;
        match change {
            // Its worker ends what runs.
            Change::Deleted => drop(pods.remove(text(&pod, "/metadata/uid"))),
            Change::Added | Change::Modified => tell(shared, pods, workers, pod),
        }
    }
    Ok(())
}

fn tell(shared: &Arc<Shared>, pods: &mut Pods, workers: &mut JoinSet<()>, pod: Arc<Value>) {
    if text(&pod, "/spec/nodeName") != shared.node.name {
        return;
    }
    let uid = text(&pod, "/metadata/uid").to_owned();
    if let Some(known) = pods.get(&uid) {
        known.send_replace(pod);
        return;
    }
    let (sender, states) = watch::channel(pod.clone());
    pods.insert(uid, sender);
    workers.spawn(work(Worker::new(shared.clone(), pod), states));
}

async fn work(mut worker: Worker, mut states: watch::Receiver<Arc<Value>>) {
    loop {
        if worker.step().await {
            return;
        }
        match timeout(LOOK, states.changed()).await {
            Err(_) => {}
            Ok(Ok(())) => worker.learn(states.borrow_and_update().clone()),
            // Deleted at once: there is no waiter any more.
            Ok(Err(_)) => {
                worker.end_forgotten().await;
                return;
            }
        }
    }
}
