// SPDX-License-Identifier: Apache-2.0

//! Host ports of the pods of this node.

use std::collections::{BTreeMap, HashSet};

use skep_k8s_types::slim::Pod;
use skep_loadbalancer_model::types::ServiceName;
use skep_loadbalancer_model::{Writer, WriterError};
use statedb::{InitGuard, WriteTxn};

use crate::convert::{HOST_PORT_MARK, HostPortService, Rules, host_port_services};

/// Host ports that can't be served, by service.
#[derive(Debug, Default, thiserror::Error)]
#[error("{}", .0.iter().map(|(name, error)| format!("{name}: {error}")).collect::<Vec<_>>().join("\n"))]
pub(super) struct Refusals(BTreeMap<ServiceName, WriterError>);

/// Keeps host-port services in step with pods.
pub(super) struct HostPorts {
    writer: Writer,
    rules: Rules,
    /// Host ports that another service has, by service; tried again with each call of [`write`](Self::write).
    waiting: BTreeMap<ServiceName, HostPortService>,
    refusals: Refusals,
}

impl HostPorts {
    /// Writes through `writer` what `rules` make of pods.
    pub(super) fn new(writer: Writer, rules: Rules) -> Self {
        Self {
            writer,
            rules,
            waiting: BTreeMap::new(),
            refusals: Refusals::default(),
        }
    }

    /// Host ports that can't be served.
    pub(super) fn refusals(&self) -> Option<&Refusals> {
        (!self.refusals.0.is_empty()).then_some(&self.refusals)
    }

    /// Removes host ports of pods that are not in this list of all pods (`namespace/name`).
    pub(super) fn keep_only(&mut self, pods: &HashSet<String>) {
        let mut txn = self.writer.write();
        for name in self.writer.service_names_with_prefix(&txn, "") {
            let pod = name.as_str().split_once(HOST_PORT_MARK).map(|(pod, _)| pod);
            if pod.is_some_and(|pod| !pods.contains(pod)) {
                self.remove(&mut txn, &name);
            }
        }
        self.waiting.retain(|name, _| {
            name.as_str()
                .split_once(HOST_PORT_MARK)
                .is_some_and(|(pod, _)| pods.contains(pod))
        });
        txn.commit();
    }

    /// Writes the host ports of changed pods in one transaction; `None` for a pod that is gone.
    ///
    /// A pod's new frontends are written before those are deleted that it no longer asks for: a backend that both have
    /// is never without a frontend, and keeps its id. What conflicts is tried again at the end, when all pods have
    /// released their ports.
    pub(super) fn write<'a>(
        &mut self,
        pods: impl IntoIterator<Item = (&'a str, &'a str, Option<&'a Pod>)>,
        done: Option<&InitGuard>,
    ) {
        let mut txn = self.writer.write();
        let known = std::mem::take(&mut self.refusals.0);
        let mut refused = Vec::new();
        for (namespace, name, pod) in pods {
            let services = pod
                .map(|pod| host_port_services(pod, &self.rules))
                .unwrap_or_default();
            let keep: HashSet<ServiceName> = services
                .iter()
                .map(|service| service.service.name.clone())
                .collect();
            let prefix = ServiceName::new(namespace, &format!("{name}{HOST_PORT_MARK}"));
            self.waiting
                .retain(|name, _| !name.as_str().starts_with(prefix.as_str()));
            for service in services {
                if self.upsert(&mut txn, &service).is_err() {
                    refused.push(service);
                }
            }
            for gone in self.writer.service_names_with_prefix(&txn, prefix.as_str()) {
                if !keep.contains(&gone) {
                    self.remove(&mut txn, &gone);
                }
            }
        }
        refused.extend(std::mem::take(&mut self.waiting).into_values());
        for service in refused {
            if let Err(error) = self.upsert(&mut txn, &service) {
                let name = service.service.name.clone();
                if !known.contains_key(&name) {
                    tracing::warn!(service = %name, error = hive::error_chain(&error), "Cannot serve host port");
                }
                self.refusals.0.insert(name.clone(), error);
                self.waiting.insert(name, service);
            }
        }
        if let Some(guard) = done
            && let Err(error) = txn.initialized(guard)
        {
            tracing::error!(%error, "Cannot mark host ports as initialized");
        }
        txn.commit();
    }

    fn remove(&mut self, txn: &mut WriteTxn, name: &ServiceName) {
        let removed = self
            .writer
            .set_backends(txn, name, self.rules.source, 0, Vec::new())
            .and_then(|()| self.writer.delete_service_and_frontends(txn, name));
        if let Err(error) = removed {
            self.refusals.0.insert(name.clone(), error);
        }
    }

    fn upsert(&mut self, txn: &mut WriteTxn, wanted: &HostPortService) -> Result<(), WriterError> {
        let HostPortService {
            service,
            frontends,
            backends,
        } = wanted.clone();
        let name = service.name.clone();
        self.writer
            .upsert_service_and_frontends(txn, service, frontends)?;
        self.writer
            .set_backends(txn, &name, self.rules.source, 0, backends)
    }
}
