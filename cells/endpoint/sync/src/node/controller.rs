// SPDX-License-Identifier: Apache-2.0

//! Writes the CiliumNode and the annotations of the Node whenever they differ from what is known of the node.

use std::{fmt, sync::Arc, time::Duration};

use futures::{Stream, stream};
use regex::Regex;
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_endpoint_ipam::sources::OwnNode;
use skep_k8s_client::{Patch, Subresource, WriteOptions};
use skep_k8s_controller::{Controller, Failure, Reconciler, RequestError, Retry, Work, request};
use skep_k8s_types::{
    Resource,
    slim::{CiliumNode, Node},
};
use skep_node_local::LocalNode;
use statedb::Watch;

use super::{NodeParams, object::Facts};

/// Health names a CiliumNode that cannot be created; the kind may be registered later.
const REGISTRATION: Duration = Duration::from_secs(60);

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    CiliumNode,
    Annotations,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CiliumNode => "CiliumNode",
            Self::Annotations => "annotations of the Node",
        })
    }
}

/// Result of writing an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// The kind is not registered: CiliumNodes are not used, or the operator registers it soon.
    NoKind,
    /// There is none, and `auto-create-cilium-node-resource` is off.
    NotCreated,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum PublishError {
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Another agent of that name, or an operator, has created it at the same time.
    #[error("it has been created meanwhile")]
    Created,
}

impl Failure for PublishError {
    fn retry(&self) -> Retry {
        match self {
            Self::Request(error) => error.retry(),
            Self::Created => Retry::Conflict,
        }
    }
}

/// What is known of the node, and where it is written to.
struct Source {
    params: NodeParams,
    excluded: Vec<Regex>,
}

pub(super) struct Publisher {
    source: Arc<Source>,
    outcome: Outcome,
}

pub(super) fn controller(params: NodeParams) -> Controller<Publisher> {
    let changes = changes(params.clone());
    let (db, local, own) = (params.db.clone(), params.local.clone(), params.own.clone());
    let excluded = params.config.excluded_labels();
    let publisher = Publisher {
        source: Arc::new(Source { params, excluded }),
        outcome: Outcome::Done,
    };
    Controller::new(publisher, WorkqueueRecorder::default())
        .source(changes, |publisher, ()| publisher.keys())
        .wait_for(async move {
            local.wait_initialized(&db).await;
            own.wait_initialized(&db).await;
        })
}

/// Changes of what is known of the node, and of its CiliumNode.
fn changes(params: NodeParams) -> impl Stream<Item = ()> + Send + 'static {
    let addressed = params.ipam.node_addressed();
    stream::unfold(
        (params, addressed, None::<[Watch; 2]>),
        |(params, mut addressed, watches)| async move {
            if let Some([local, own]) = &watches {
                tokio::select! {
                    () = local.closed() => {}
                    () = own.closed() => {}
                    Ok(()) = addressed.changed() => {}
                }
            }
            let snapshot = params.db.read();
            let name = params.name.as_str();
            let (_, local) = params.local.get_watch(&snapshot, LocalNode::BY_NAME.key(name));
            let (_, own) = params.own.get_watch(&snapshot, OwnNode::BY_NAME.key(name));
            drop(snapshot);
            Some(((), (params, addressed, Some([local, own]))))
        },
    )
}

impl Publisher {
    fn keys(&self) -> Vec<Object> {
        let NodeParams { config, ipam, .. } = &self.source.params;
        let mut keys = vec![Object::CiliumNode];
        // Before that, annotations would be those of a part of the addresses.
        if config.annotate_k8s_node && *ipam.node_addressed().borrow() {
            keys.push(Object::Annotations);
        }
        keys
    }
}

impl Source {
    /// Calls `with` with what is known of the node, if it is registered.
    fn facts<T>(&self, with: impl FnOnce(&Facts<'_>) -> T) -> Option<T> {
        let NodeParams {
            config,
            ipam_config,
            families,
            name,
            ipam,
            db,
            local,
            addresses,
            ..
        } = &self.params;
        let is_complete = *ipam.node_addressed().borrow();
        let snapshot = db.read();
        let local = local.get(&snapshot, LocalNode::BY_NAME.key(name.as_str()))?;
        Some(with(&Facts {
            config,
            mode: ipam_config.mode,
            families,
            excluded: &self.excluded,
            local,
            own: addresses.all(&snapshot).map(|row| (**row).clone()).collect(),
            is_complete,
        }))
    }

    async fn write_annotations(&self) -> Result<Outcome, PublishError> {
        let missing = self
            .facts(|facts| facts.missing_annotations())
            .unwrap_or_default();
        if !missing.is_empty() {
            let patch = Patch::Merge(json!({ "metadata": { "annotations": missing } }));
            let (kind, options) = (Node::kind(), WriteOptions::default());
            let (client, name) = (&self.params.client, self.params.name.as_str());
            // Agents have the right to patch the status of nodes, which takes annotations too.
            request(client.patch(&kind, "", name, Subresource::Status, &patch, &options)).await?;
        }
        Ok(Outcome::Done)
    }

    async fn write_cilium_node(&self) -> Result<Outcome, PublishError> {
        let (kind, options) = (CiliumNode::kind(), WriteOptions::default());
        let (client, name) = (&self.params.client, self.params.name.as_str());
        let apply = |object: &mut Value| self.facts(|facts| facts.apply(object)).is_some();
        match request(client.get(&kind, "", name)).await {
            Ok(read) => {
                let read = read.to_value().map_err(RequestError::from)?;
                let mut object = (*read).clone();
                if apply(&mut object) && object != *read {
                    request(client.update(&kind, "", Subresource::None, object, &options)).await?;
                }
                return Ok(Outcome::Done);
            }
            Err(error) if !error.is_not_found() => return Err(error.into()),
            Err(_) if !self.params.config.auto_create_cilium_node_resource => return Ok(Outcome::NotCreated),
            Err(_) => {}
        }
        let mut object = json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": { "name": name },
        });
        if !apply(&mut object) {
            return Ok(Outcome::Done);
        }
        match request(client.create(&kind, "", object, &options)).await {
            Ok(_) => {
                tracing::info!(name, "Created the CiliumNode of this node");
                Ok(Outcome::Done)
            }
            Err(error) if error.is_not_found() => Ok(Outcome::NoKind),
            Err(RequestError::Api(error)) if error.is_already_exists() => Err(PublishError::Created),
            Err(error) => Err(error.into()),
        }
    }
}

impl Reconciler for Publisher {
    type Key = Object;
    type Output = Outcome;
    type Error = PublishError;
    const KEYS: &'static str = "objects of the node";
    const FAILED: &'static str = "are not written";

    fn reconcile(&mut self, key: &Object) -> Work<Self> {
        let (source, key) = (self.source.clone(), *key);
        Box::pin(async move {
            match key {
                Object::CiliumNode => source.write_cilium_node().await,
                Object::Annotations => source.write_annotations().await,
            }
        })
    }

    fn finished(
        &mut self,
        key: &Object,
        result: Result<Outcome, PublishError>,
    ) -> Result<Option<Duration>, PublishError> {
        let outcome = result?;
        if *key == Object::CiliumNode {
            self.outcome = outcome;
        }
        Ok((outcome == Outcome::NoKind).then_some(REGISTRATION))
    }

    fn total(&self) -> usize {
        self.keys().len()
    }

    fn summary(&self, failed: usize) -> String {
        match (failed, self.outcome) {
            (0, Outcome::Done) => "The CiliumNode is up to date".to_owned(),
            (0, Outcome::NoKind) => "CiliumNodes are not registered".to_owned(),
            (0, Outcome::NotCreated) => "Waiting for the CiliumNode".to_owned(),
            _ => "Objects of the node are not written".to_owned(),
        }
    }
}
