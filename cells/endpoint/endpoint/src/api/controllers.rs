// SPDX-License-Identifier: Apache-2.0

//! What is done for an endpoint again and again, as Cilium's controllers.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use async_trait::async_trait;
use hive::Member;
use skep_base_api::StatusProbe;
use skep_base_api_types::{
    ControllerConfiguration, ControllerRuns, ControllerStatus, Status, StatusResponse,
};
use statedb::reconciler::StatusKind;

use crate::{Endpoint, Endpoints};

/// Controllers of all endpoints, in part `controllers` of the status.
struct Probe(Endpoints);

pub(super) fn probe(endpoints: Endpoints) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Probe(endpoints)))
}

#[async_trait]
impl StatusProbe for Probe {
    fn name(&self) -> &'static str {
        "endpoint-controllers"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let snapshot = self.0.db().read();
        let table = self.0.table();
        let rows = table.all(&snapshot);
        response.controllers.extend(rows.flat_map(|row| controllers(row)));
        None
    }
}

struct Controller<'a> {
    name: String,
    retry_base: &'a str,
    interval: &'a str,
    /// Whether it ran, and its error.
    outcome: Option<Result<(), String>>,
}

pub(super) fn controllers(row: &Endpoint) -> Vec<ControllerStatus> {
    let id = row.id;
    let pod = format!("{}/{}", row.spec.namespace, row.spec.pod);
    let has_pod = !row.spec.pod.is_empty();
    let failure = (row.status.kind == StatusKind::Error).then(|| Err(row.status.error_text().to_owned()));
    let mut all = vec![Controller {
        name: format!("endpoint-{id}-regeneration-recovery"),
        retry_base: "2s",
        interval: "1s",
        outcome: failure,
    }];
    if !row.is_host {
        all.push(Controller {
            name: format!("resolve-identity-{id}"),
            retry_base: "",
            interval: "5m0s",
            outcome: row.identity.map(|_| Ok(())),
        });
    }
    if has_pod || row.is_host {
        let missing = || Err(format!("pod.core {:?} not found", row.spec.pod));
        all.push(Controller {
            name: format!("resolve-labels-{pod}"),
            retry_base: "",
            interval: "",
            outcome: Some(match row.pod.is_some() || row.is_host {
                true => Ok(()),
                false => missing(),
            }),
        });
    }
    if row.is_written {
        all.push(Controller {
            name: format!("sync-policymap-{id}"),
            retry_base: "",
            interval: "15m0s",
            outcome: Some(Ok(())),
        });
    }
    if has_pod {
        all.push(Controller {
            name: format!("sync-to-k8s-ciliumendpoint ({id})"),
            retry_base: "",
            interval: "10s",
            outcome: row.identity.map(|_| Ok(())),
        });
    }
    all.into_iter().map(|controller| controller.status(row)).collect()
}

impl Controller<'_> {
    fn status(self, row: &Endpoint) -> ControllerStatus {
        let at = row.log.last().map(|entry| entry.at);
        let status = match self.outcome {
            None => ControllerRuns::default(),
            Some(Ok(())) => ControllerRuns {
                last_success_timestamp: at,
                success_count: 1,
                ..ControllerRuns::default()
            },
            Some(Err(text)) => ControllerRuns {
                consecutive_failure_count: 1,
                failure_count: 1,
                last_failure_msg: text,
                last_failure_timestamp: at,
                ..ControllerRuns::default()
            },
        };
        ControllerStatus {
            configuration: Some(ControllerConfiguration {
                error_retry: true,
                error_retry_base: self.retry_base.to_owned(),
                interval: self.interval.to_owned(),
            }),
            uuid: uuid(row.id, &self.name),
            name: self.name,
            status,
        }
    }
}

/// The same for the same controller.
fn uuid(id: u16, name: &str) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, id, name).hash(&mut hasher);
        hasher.finish()
    };
    let (high, low) = (half(0), half(1));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff
    )
}
