// SPDX-License-Identifier: Apache-2.0

//! Bindings: what a scheduler creates to give a pod to a node.

use std::sync::Arc;

use serde_json::{Value, json};

use super::options::WriteOptions;
use super::{ApiServer, Written};
use crate::error::{ApiError, Fault};
use crate::gvr::Gvr;
use crate::object;

impl ApiServer {
    /// Binds the pod `name` to the node that `binding` names; returns the answer for the scheduler.
    pub fn bind(
        &self,
        namespace: &str,
        name: &str,
        binding: &Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let gvr = Gvr::new("", "v1", "pods");
        let pods = self.kind(&gvr)?;
        let node = object::text(binding, &["target", "name"]);
        let kind = object::text(binding, &["target", "kind"]);
        let fault = if node.is_empty() {
            Some(Fault::required("target.name", ""))
        } else if !matches!(kind, "" | "Node") {
            Some(Fault::not_supported(
                "target.kind",
                &kind.into(),
                &["Node", "<empty>"],
            ))
        } else {
            None
        };
        if let Some(fault) = fault {
            return Err(ApiError::invalid("", "Binding", name, &[fault]));
        }
        let sent = object::name(binding);
        if !sent.is_empty() && sent != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({sent}) does not match the name on the URL ({name})"
            )));
        }
        let refused = |detail: String| {
            let gvr = Gvr::new("", "v1", "pods/binding");
            Err(ApiError::conflict(&gvr, name, &detail))
        };
        self.tracker().attempt(!options.dry_run, |tx| {
            let old = tx
                .get(self.domain(&pods), &pods.stored(), namespace, name)
                .ok_or_else(|| ApiError::not_found(&gvr, name))?;
            let uid = object::uid(binding);
            if !uid.is_empty() && uid != object::uid(&old) {
                return refused(format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    object::uid(&old)
                ));
            }
            if object::is_terminating(&old) {
                return refused(format!(
                    "pod {name} is being deleted, cannot be assigned to a host"
                ));
            }
            let taken = object::text(&old, &["spec", "nodeName"]);
            if !taken.is_empty() {
                return refused(format!("pod {name} is already assigned to node \"{taken}\""));
            }
            let mut pod = (*old).clone();
            object::map_mut(&mut pod, "spec").insert("nodeName".to_owned(), node.into());
            mark_scheduled(&mut pod);
            Ok(tx.put(self.domain(&pods), &pods, pod))
        })?;
        Ok(Written {
            object: Arc::new(json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
            })),
            created: true,
            warnings: Vec::new(),
        })
    }
}

fn mark_scheduled(pod: &mut Value) {
    let mut conditions = object::items(pod, &["status", "conditions"]).to_vec();
    conditions.retain(|condition| object::text(condition, &["type"]) != "PodScheduled");
    conditions.push(json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": object::now(),
    }));
    object::map_mut(pod, "status").insert("conditions".to_owned(), conditions.into());
}
