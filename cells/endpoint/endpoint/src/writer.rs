// SPDX-License-Identifier: Apache-2.0

//! The one owner of writes to table `endpoints`.

mod own;
mod wait;

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use skep_identity::{Labels, NumericIdentity, Reserved};
use skep_identity_allocator::Held;
use skep_policy_maps::{EndpointPolicy, PolicyMaps};
use statedb::{
    Db, InitGuard, Obj, ReadTxn, RwTable, Table, WriteTxn,
    reconciler::{Status, StatusKind},
};

use tokio::sync::watch;

use crate::{
    Endpoint, EndpointLabels, EndpointOptions, EndpointSpec, EndpointState, Identifier, Phase,
    RegenerationReason, StatusLog,
    metadata::Metadata,
    state_dir::{Saved, StateDir},
};

pub use wait::WaitError;

/// Largest id of an endpoint; 65535 is reserved. Directories and requests may name it.
const ID_MAX: u16 = 65_534;
/// Largest id that is allocated, as in Cilium.
const ALLOCATED_MAX: u16 = 4095;

/// Why an endpoint is not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("endpoint ID {0} already exists")]
    Id(u16),
    #[error("endpoint for CNI attachment ID {0} already exists")]
    Attachment(String),
    /// Another endpoint has the address.
    #[error("IP {}:{address} is already in use", family(.address))]
    Address { address: IpAddr },
    /// Programs of another endpoint are at the interface.
    #[error("interface {interface} is in use by endpoint {owner} ({state})")]
    Interface {
        interface: String,
        owner: u16,
        state: EndpointState,
    },
    /// A file in the state directory has the id.
    #[error(
        "endpoint {id} has a file in the state directory that could not be read; correct it or remove it"
    )]
    File { id: u16 },
    /// The id is outside the range.
    #[error("{id} is no id of an endpoint: they are 1 to {ID_MAX}")]
    OutOfRange { id: u16 },
    #[error("all ids of endpoints are in use")]
    Exhausted,
    /// It has none of what makes an endpoint.
    #[error("an endpoint needs {what}")]
    Missing { what: &'static str },
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

#[derive(Clone, hive::Value)]
pub struct Endpoints {
    db: Db,
    table: RwTable<Endpoint>,
    files: StateDir,
    policies: PolicyMaps,
    /// Uses of identities. They are not in rows: snapshots keep rows for longer.
    held: Arc<Mutex<HashMap<u16, Held>>>,
    /// Options of new endpoints.
    options: Arc<Mutex<Arc<EndpointOptions>>>,
    /// Restored endpoints keep their options.
    keeps_options: bool,
    /// The endpoint of the node has a policy.
    has_host_firewall: bool,
    /// Whether endpoints may be created.
    fence: Arc<watch::Sender<bool>>,
}

impl Endpoints {
    pub(crate) fn new(db: Db, table: RwTable<Endpoint>, files: StateDir, policies: PolicyMaps) -> Self {
        Self {
            db,
            table,
            files,
            policies,
            held: Arc::default(),
            options: Arc::default(),
            keeps_options: false,
            has_host_firewall: false,
            fence: Arc::new(watch::Sender::new(false)),
        }
    }

    /// With these options of new endpoints, and of restored ones unless they keep theirs.
    pub(crate) fn with_options(mut self, options: EndpointOptions, keeps: bool) -> Self {
        self.options = Arc::new(Mutex::new(Arc::new(options)));
        self.keeps_options = keeps;
        self
    }

    /// The options of new endpoints.
    pub(crate) fn default_options(&self) -> Arc<EndpointOptions> {
        self.options.lock().clone()
    }

    /// With a policy of the endpoint of the node, if `is_on`.
    pub(crate) fn with_host_firewall(mut self, is_on: bool) -> Self {
        self.has_host_firewall = is_on;
        self
    }

    pub(crate) fn policies(&self) -> &PolicyMaps {
        &self.policies
    }

    /// The table, to read and watch.
    pub fn table(&self) -> Table<Endpoint> {
        self.table.reader()
    }

    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Adds an endpoint, and returns it. With `id`, it gets this one; without identity it waits for one.
    ///
    /// # Errors
    ///
    /// [`CreateError`]; nothing has changed then.
    pub fn create(
        &self,
        spec: EndpointSpec,
        id: Option<u16>,
        identity: Option<NumericIdentity>,
    ) -> Result<Obj<Endpoint>, CreateError> {
        let reserved = identity.and_then(reserved);
        let labels = EndpointLabels {
            identity: match reserved.filter(|_| spec.labels.is_empty()) {
                Some(label) => label.into(),
                None => Arc::new(spec.labels.clone()),
            },
            ..EndpointLabels::default()
        };
        let metadata = Metadata {
            pod: None,
            labels: Arc::new(labels),
        };
        self.add(spec, metadata, id, identity, Phase::Live)
    }

    /// Adds an endpoint whose labels are known, in a phase: [`Phase::Live`] or [`Phase::NeverBuilt`].
    pub(crate) fn add(
        &self,
        spec: EndpointSpec,
        metadata: Metadata,
        id: Option<u16>,
        identity: Option<NumericIdentity>,
        phase: Phase,
    ) -> Result<Obj<Endpoint>, CreateError> {
        let mut txn = self.db.write(&[&self.table]);
        self.check_spec(&txn, &spec)?;
        let id = match id {
            Some(id) => self.reserve(&txn, id)?,
            None => self.free_id(&txn)?,
        };
        let log = StatusLog::default();
        if phase == Phase::Live {
            log.ok(EndpointState::WaitingForIdentity, "Endpoint creation");
        }
        let mut row = Endpoint {
            id,
            phase,
            spec: Arc::new(spec),
            pod: metadata.pod,
            identity_labels: identity
                .map(|id| labels_of(id, &metadata.labels))
                .unwrap_or_default(),
            labels: metadata.labels,
            identity,
            options: self.default_options(),
            log,
            ..Endpoint::default()
        };
        if identity.is_some() {
            row.regenerate(
                RegenerationReason::EndpointInit,
                "Initial build on endpoint creation",
            );
        }
        let row = self.table.insert_get(&mut txn, row)?;
        txn.commit();
        let built = identity.filter(|_| phase == Phase::Live);
        self.policies.request(built.map(|identity| (id, identity)))?;
        Ok(row)
    }

    /// Checks that an endpoint can be created.
    ///
    /// # Errors
    ///
    /// [`CreateError`]
    pub(crate) fn check(&self, spec: &EndpointSpec, id: Option<u16>) -> Result<(), CreateError> {
        let snapshot = self.db.read();
        if let Some(id) = id {
            self.reserve(&snapshot, id)?;
        }
        self.check_spec(&snapshot, spec)
    }

    fn check_spec(&self, txn: &impl ReadTxn, spec: &EndpointSpec) -> Result<(), CreateError> {
        let missing = |what| Err(CreateError::Missing { what });
        if spec.interface.is_empty() || spec.ifindex == 0 {
            return missing("the name and the index of its interface on the node");
        }
        self.check_free(txn, spec, None)
    }

    /// Checks that no other endpoint has the attachment, the addresses, or programs at the interface.
    fn check_free(
        &self,
        txn: &impl ReadTxn,
        spec: &EndpointSpec,
        own: Option<u16>,
    ) -> Result<(), CreateError> {
        let has = |query| {
            self.table
                .get(txn, query)
                .is_some_and(|other| Some(other.id) != own)
        };
        if let Some(attachment) = spec.attachment()
            && has(Endpoint::BY_ATTACHMENT.key(attachment.as_str()))
        {
            return Err(CreateError::Attachment(attachment));
        }
        if let Some(address) = spec
            .addresses()
            .find(|address| has(Endpoint::BY_ADDRESS.key(address)))
        {
            return Err(CreateError::Address { address });
        }
        let others = self
            .table
            .list(txn, Endpoint::BY_INTERFACE.key(spec.interface.as_str()));
        match others
            .into_iter()
            .find(|other| other.is_attached() && Some(other.id) != own)
        {
            None => Ok(()),
            Some(other) => Err(CreateError::Interface {
                interface: spec.interface.clone(),
                owner: other.id,
                state: other.state(),
            }),
        }
    }

    fn reserve(&self, txn: &impl ReadTxn, id: u16) -> Result<u16, CreateError> {
        if id == 0 || id > ID_MAX {
            return Err(CreateError::OutOfRange { id });
        }
        if self.table.get(txn, Endpoint::BY_ID.key(&id)).is_some() {
            return Err(CreateError::Id(id));
        }
        match self.files.has(id) {
            true => Err(CreateError::File { id }),
            false => Ok(id),
        }
    }

    /// An id that no endpoint and no file has, from a random place on: ids of the past are not used again at once.
    fn free_id(&self, txn: &impl ReadTxn) -> Result<u16, CreateError> {
        let start = fastrand::u16(1..=ALLOCATED_MAX);
        let mut ids = (start..=ALLOCATED_MAX).chain(1..start);
        let is_free =
            |id: &u16| self.table.get(txn, Endpoint::BY_ID.key(id)).is_none() && !self.files.has(*id);
        ids.find(is_free).ok_or(CreateError::Exhausted)
    }

    /// Sets the identity of an endpoint; false if there is no such endpoint, or it is being deleted.
    pub fn set_identity(&self, id: u16, identity: NumericIdentity) -> Result<bool, statedb::Error> {
        let is_live = self.change(id, |row| {
            let is_live = row.is_live();
            if is_live && row.identity != Some(identity) {
                row.identity_labels = labels_of(identity, &row.labels);
                change_identity(row, identity);
            }
            is_live
        })?;
        if is_live {
            self.policies.request([(id, identity)])?;
        }
        Ok(is_live)
    }

    /// An endpoint has the identity of its labels, and holds it; false if it has other labels by now.
    pub(crate) fn hold(&self, id: u16, labels: &Labels, held: Held) -> Result<bool, statedb::Error> {
        let identity = held.id();
        let mut is_new = false;
        // Released when nothing is locked any more.
        let mut released = None;
        let is_held = self.change(id, |row| {
            if !row.is_live() || *row.labels.security() != *labels {
                return false;
            }
            is_new = row.identity != Some(identity) && row.phase != Phase::NeverBuilt;
            let is_saved = row.identity_labels == *held.labels();
            row.identity_labels = held.labels().clone();
            // While no deletion can begin.
            released = self.held.lock().insert(id, held);
            match (is_new, is_saved) {
                (true, _) => change_identity(row, identity),
                (false, _) if row.phase == Phase::NeverBuilt => change_identity(row, identity),
                // Its file.
                (false, false) => row.status = Status::pending(),
                (false, true) => {}
            }
            true
        })?;
        drop(released);
        if is_new {
            self.policies.request([(id, identity)])?;
        }
        Ok(is_held)
    }

    /// Whether an endpoint holds the identity of these labels.
    pub(crate) fn holds(&self, id: u16, labels: &Labels) -> bool {
        self.held
            .lock()
            .get(&id)
            .is_some_and(|held| **held.labels() == *labels)
    }

    /// Takes over what Kubernetes knows of an endpoint.
    pub(crate) fn set_metadata(&self, id: u16, metadata: Metadata) -> Result<bool, statedb::Error> {
        self.change(id, |row| {
            if row.is_live() {
                if row.labels != metadata.labels {
                    // Its file; programs follow with the identity.
                    row.status = Status::pending();
                }
                (row.pod, row.labels) = (metadata.pod, metadata.labels);
            }
            row.is_live()
        })
    }

    /// Changes what `change` has of an endpoint; false if it has all that. `labels` are those of the request.
    pub(crate) fn update(
        &self,
        id: u16,
        change: &EndpointSpec,
        labels: impl FnOnce(&EndpointSpec) -> EndpointLabels,
    ) -> Result<bool, CreateError> {
        let mut txn = self.db.write(&[&self.table]);
        let Some(found) = self.table.get(&txn, Endpoint::BY_ID.key(&id)).cloned() else {
            return Ok(false);
        };
        let spec = found.spec.changed(change);
        if !found.is_live() || spec == *found.spec {
            return Ok(false);
        }
        self.check_free(&txn, &spec, Some(id))?;
        let mut row = (*found).clone();
        let before = (
            &row.spec.interface,
            row.spec.ifindex,
            row.spec.ipv4,
            row.spec.ipv6,
        );
        if before != (&spec.interface, spec.ifindex, spec.ipv4, spec.ipv6) && row.former.is_none() {
            row.former = Some(row.spec.clone());
        }
        if row.pod.is_none() && spec.labels != row.spec.labels {
            let of_users = row.labels.clone();
            row.labels = Arc::new(EndpointLabels {
                custom: of_users.custom.clone(),
                disabled: of_users.disabled.clone(),
                ..labels(&spec)
            });
        }
        row.spec = Arc::new(spec);
        row.regenerate(
            RegenerationReason::EndpointUpdate,
            "updated endpoint configuration",
        );
        self.table.insert(&mut txn, row)?;
        txn.commit();
        Ok(true)
    }

    /// Changes the labels that users have given to an endpoint; false if there is no such endpoint.
    pub fn set_user_labels(
        &self,
        id: u16,
        change: impl FnOnce(&mut EndpointLabels),
    ) -> Result<bool, statedb::Error> {
        self.change(id, |row| {
            let mut labels = (*row.labels).clone();
            change(&mut labels);
            if labels != *row.labels {
                row.labels = Arc::new(labels);
                row.status = Status::pending();
            }
            row.is_live()
        })
    }

    /// Changes options of the agent, for all endpoints and new ones; names that endpoints do not have are left out. Returns
    /// whether the host endpoint is one of them.
    pub fn override_options(&self, changes: &BTreeMap<String, String>) -> Result<bool, statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let mut options = self.options.lock();
        *options = Arc::new(options.overridden(changes));
        drop(options);
        let rows: Vec<_> = self
            .table
            .all(&txn)
            .filter(|row| row.is_live())
            .cloned()
            .collect();
        let mut has_host = false;
        for found in rows {
            has_host |= found.is_host;
            let options = found.options.overridden(changes);
            if options == *found.options {
                continue;
            }
            let mut row = (*found).clone();
            row.options = Arc::new(options);
            row.regenerate(
                RegenerationReason::DaemonConfigUpdate,
                "agent options changed via API",
            );
            self.table.insert(&mut txn, row)?;
        }
        txn.commit();
        Ok(has_host)
    }

    /// Changes the options of an endpoint; false if there is no such endpoint.
    pub fn set_options(&self, id: u16, options: EndpointOptions) -> Result<bool, statedb::Error> {
        self.change(id, |row| {
            if *row.options != options {
                row.options = Arc::new(options);
                row.regenerate(
                    RegenerationReason::EndpointUpdate,
                    "endpoint options changed via API",
                );
            }
            row.is_live()
        })
    }

    /// Remembers the CiliumEndpoint of an endpoint; false if there is no such endpoint.
    pub fn set_cilium_endpoint_uid(&self, id: u16, uid: &str) -> Result<bool, statedb::Error> {
        self.change(id, |row| {
            if row.cilium_endpoint_uid != uid {
                row.cilium_endpoint_uid = uid.into();
                row.status = Status::pending();
            }
            true
        })
    }

    /// Takes over what is realized of the policies of endpoints: those that programs must know of are due. Returns those of
    /// which there is none, because it was deleted while its policy was requested.
    pub(crate) fn set_policies(
        &self,
        policies: impl IntoIterator<Item = Obj<EndpointPolicy>>,
    ) -> Result<Vec<u16>, statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let (mut is_changed, mut gone) = (false, Vec::new());
        for policy in policies {
            let endpoint = self.table.get(&txn, Endpoint::BY_ID.key(&policy.endpoint));
            let mut row = match endpoint {
                Some(row) if row.is_live() && row.identity == Some(policy.identity) => (**row).clone(),
                None => {
                    gone.push(policy.endpoint);
                    continue;
                }
                Some(_) => continue,
            };
            let before = row.policy;
            match policy.current() {
                Some(realized) if before != Some(realized) => {
                    row.policy = Some(realized);
                    match before {
                        None => row.status = Status::pending(),
                        Some(before)
                            if (before.open, before.enforced) != (realized.open, realized.enforced) =>
                        {
                            row.regenerate(RegenerationReason::PolicyUpdate, "policy rules updated");
                        }
                        Some(_) => {}
                    }
                }
                None if policy.status.kind == StatusKind::Error
                    && (before.is_some() || row.status.kind != StatusKind::Error) =>
                {
                    row.policy = None;
                    let text = policy.status.error_text();
                    row.status = Status::pending().into_error(policy.status.updated_at, text);
                }
                _ => continue,
            }
            self.table.insert(&mut txn, row)?;
            is_changed = true;
        }
        if is_changed {
            txn.commit();
        }
        Ok(gone)
    }

    /// Begins the deletion of an endpoint; false if there is none. Its id, interface and addresses are in use until
    /// nothing of it is left, see [`wait_gone`](Self::wait_gone).
    pub fn disconnect(&self, id: u16) -> Result<bool, statedb::Error> {
        self.disconnect_with(id, false)
    }

    /// As [`disconnect`](Self::disconnect); its addresses may stay allocated.
    pub(crate) fn disconnect_with(&self, id: u16, keeps_addresses: bool) -> Result<bool, statedb::Error> {
        let mut released = None;
        let is_there = self.change(id, |row| {
            if row.is_live() && !row.is_host {
                row.log.ok(EndpointState::Disconnecting, "Deleting endpoint");
                row.phase = Phase::Disconnecting;
                row.status = Status::pending();
                row.keeps_addresses |= keeps_addresses;
                released = self.held.lock().remove(&id);
            }
            true
        });
        drop(released);
        is_there
    }

    fn change(&self, id: u16, change: impl FnOnce(&mut Endpoint) -> bool) -> Result<bool, statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let Some(found) = self.table.get(&txn, Endpoint::BY_ID.key(&id)).cloned() else {
            return Ok(false);
        };
        let mut row = (*found).clone();
        let result = change(&mut row);
        if row != *found {
            self.table.insert(&mut txn, row)?;
            txn.commit();
        }
        Ok(result)
    }

    /// Endpoints of which nothing is left but the row.
    #[cfg(test)]
    pub(crate) fn disconnected(&self) -> Vec<Obj<Endpoint>> {
        let snapshot = self.db.read();
        let rows = self.table.all(&snapshot);
        rows.filter(|row| row.phase == Phase::Disconnected)
            .cloned()
            .collect()
    }

    pub(crate) fn remove(&self, gone: &[Obj<Endpoint>]) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        for row in gone {
            self.table.delete_by(&mut txn, Endpoint::BY_ID.key(&row.id))?;
        }
        txn.commit();
        Ok(())
    }

    /// Adds the endpoints of the run before, those whose interface is gone as disconnecting, and completes the table.
    /// Returns those that another one keeps from being added, with why.
    pub(crate) fn restore(
        &self,
        guard: &InitGuard,
        saved: Vec<(Saved, bool)>,
    ) -> Result<Vec<(u16, CreateError)>, statedb::Error> {
        let (mut refused, mut identities) = (Vec::new(), Vec::new());
        let mut txn = self.db.write(&[&self.table]);
        for (saved, is_there) in saved {
            let id = saved.id;
            if let Err(error) = self.check_free(&txn, &saved.spec, None) {
                refused.push((id, error));
                continue;
            }
            let log = StatusLog::default();
            log.ok(EndpointState::Restoring, "Endpoint restoring");
            log.ok(
                EndpointState::Restoring,
                "Restoring endpoint from previous cilium instance",
            );
            let (identity, identity_labels) = match saved.identity {
                Some(identity) => (identity, Arc::new(saved.identity_labels)),
                None => (NumericIdentity::INIT, Reserved::Init.into()),
            };
            let is_host = identity == NumericIdentity::HOST;
            let row = Endpoint {
                id,
                spec: Arc::new(saved.spec),
                labels: Arc::new(saved.labels),
                identity: Some(identity),
                identity_labels,
                is_host,
                options: match self.keeps_options {
                    true => Arc::new(saved.options.audited_as(&self.default_options())),
                    false => self.default_options(),
                },
                cilium_endpoint_uid: saved.cilium_endpoint_uid,
                phase: if is_there || is_host {
                    Phase::Restored
                } else {
                    Phase::Disconnecting
                },
                // Those of an endpoint that is gone are not allocated again.
                keeps_addresses: !is_there
                    || matches!(identity, NumericIdentity::HEALTH | NumericIdentity::INGRESS),
                reason: RegenerationReason::EndpointRestore,
                log,
                status: Status::pending(),
                ..Endpoint::default()
            };
            self.table.insert(&mut txn, row)?;
            if !is_host || self.has_host_firewall {
                identities.push((id, identity));
            }
        }
        txn.initialized(guard)?;
        txn.commit();
        // Also of those that are deleted: their policies are released as all are.
        self.policies.request(identities)?;
        Ok(refused)
    }

    pub(crate) fn await_restore(&self) -> Result<InitGuard, statedb::Error> {
        let mut txn: WriteTxn = self.db.write(&[&self.table]);
        let guard = self.table.register_initializer(&mut txn, "restore")?;
        txn.commit();
        Ok(guard)
    }

    /// Whether the endpoints of the run before are in the table.
    pub fn is_restored(&self) -> bool {
        self.table.reader().is_initialized(&self.db.read())
    }

    /// Waits until the endpoints of the run before are in the table.
    pub async fn restored(&self) {
        self.table.reader().wait_initialized(&self.db).await;
    }

    /// Endpoints may be created: the addresses of those of the run before are allocated again, and queued deletions done.
    pub(crate) fn open_fence(&self) {
        self.fence.send_replace(true);
    }

    pub(crate) fn is_accepting(&self) -> bool {
        *self.fence.borrow()
    }

    /// Waits until endpoints may be created.
    pub async fn accepting(&self) {
        // The sender is in `self`.
        _ = self.fence.subscribe().wait_for(|is_open| *is_open).await;
    }

    /// The endpoints of this name: several if it names a container or pod with several interfaces.
    pub fn find(&self, txn: &impl ReadTxn, name: &Identifier) -> Vec<Obj<Endpoint>> {
        let rows = name.query().map(|query| self.table.list(txn, query));
        rows.into_iter().flatten().cloned().collect()
    }

    pub fn get(&self, txn: &impl ReadTxn, id: u16) -> Option<Obj<Endpoint>> {
        self.table.get(txn, Endpoint::BY_ID.key(&id)).cloned()
    }
}

fn family(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "ipv4",
        IpAddr::V6(_) => "ipv6",
    }
}

/// Labels of an identity that was given to an endpoint.
fn labels_of(identity: NumericIdentity, labels: &EndpointLabels) -> Arc<Labels> {
    reserved(identity).map_or_else(|| labels.security(), Into::into)
}

fn reserved(identity: NumericIdentity) -> Option<Reserved> {
    Reserved::ALL
        .into_iter()
        .find(|label| label.identity() == identity)
}

fn change_identity(row: &mut Endpoint, identity: NumericIdentity) {
    row.identity = Some(identity);
    row.policy = None;
    if row.phase == Phase::NeverBuilt {
        let cause = "Initial build on endpoint creation";
        return row.regenerate(RegenerationReason::EndpointInit, cause);
    }
    row.log.ok(EndpointState::Ready, "Set identity for this endpoint");
    row.regenerate(RegenerationReason::LabelsUpdate, "updated security labels");
}

impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoints")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
