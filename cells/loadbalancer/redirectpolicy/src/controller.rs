// SPDX-License-Identifier: Apache-2.0

//! Job `controller`: makes policies real through the load balancer's writer.
//!
//! Looks again only when a policy, a pod of this node, or a frontend that a policy is about has changed, 100 ms after it
//! heard of that. What is as it should be is not written.
//!
//! The first to ask for an address has it, so services go first: those of the first list always, and the pause lets past
//! one that was made together with a policy.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use compact_str::CompactString;
use hive::{Health, JobCtx};
use parking_lot::Mutex;
use skep_k8s_reflectors::tables::LocalPod;
use skep_loadbalancer_model::{
    FRONTENDS_BY_ADDRESS, FRONTENDS_BY_SERVICE, FrontendKind, KUBERNETES_SERVICES, L3n4Addr, ServiceName,
    Source, Writer, WriterError,
};
use statedb::{Db, InitGuard, RwTable, Snapshot, Table, WatchSet, WriteTxn};

use tokio::sync::Notify;

use crate::cookies::Sources;
use crate::desired::{Redirect, Selected, redirect, select};
use crate::metrics::PolicyMetrics;
use crate::table::SKIP_BY_POD;
use crate::{Policy, PolicyError, SkipRedirects, Target};

/// How long a change rests before it is looked at.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Controller {
    pub(crate) db: Db,
    pub(crate) writer: Writer,
    pub(crate) policies: Table<Policy>,
    pub(crate) pods: Table<LocalPod>,
    pub(crate) skips: RwTable<SkipRedirects>,
    /// Whether IPv4 and IPv6 addresses are used.
    pub(crate) families: (bool, bool),
    /// Whether the kernel has cookies of network namespaces, which skipping requires.
    pub(crate) can_skip: bool,
    pub(crate) initializer: InitGuard,
    pub(crate) rejected: Rejected,
    /// Who knows the cookies of pods.
    pub(crate) cookies: Arc<Sources>,
    pub(crate) metrics: Arc<PolicyMetrics>,
    pub(crate) state: Mutex<State>,
}

/// Policies without effect, by name, with the reason. Shared with the reflector, which fills it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rejected {
    reasons: Arc<Mutex<BTreeMap<String, String>>>,
    changed: Arc<Notify>,
}

/// Policies without effect, or not with all of it: one a line, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
struct Problems(Vec<String>);

impl Rejected {
    pub(crate) fn set(&self, policy: String, error: &PolicyError) {
        let mut text = error.to_string();
        if let Some(cause) = std::error::Error::source(error) {
            text = format!("{text}: {cause}");
        }
        self.reasons.lock().insert(policy, text);
        self.changed.notify_one();
    }

    pub(crate) fn clear(&self, policy: &str) {
        if self.reasons.lock().remove(policy).is_some() {
            self.changed.notify_one();
        }
    }

    fn problems(&self) -> Vec<String> {
        let rejected = self.reasons.lock();
        rejected
            .iter()
            .map(|(policy, error)| format!("{policy}: {error}"))
            .collect()
    }
}

/// What a look at all policies came to.
pub(crate) struct Looked {
    policies: usize,
    /// Policies that cannot leave the traffic of their own pods alone, with the reason.
    redirecting: BTreeMap<ServiceName, &'static str>,
}

/// Why `skipRedirectFromBackend` has no effect: nothing knows the network namespaces of pods.
const NO_ENDPOINTS: &str =
    "skipRedirectFromBackend has no effect without endpoints, which know the network namespaces of pods";
/// Why `skipRedirectFromBackend` has no effect: the kernel cannot tell network namespaces apart.
const NO_COOKIES: &str =
    "skipRedirectFromBackend has no effect on a kernel without network namespace cookies (before Linux 5.14)";

#[derive(Default)]
pub(crate) struct State {
    applied: BTreeMap<ServiceName, ServiceName>,
    /// Addresses not taken because another service has them, and what was said about it.
    conflicts: BTreeSet<(L3n4Addr, ServiceName)>,
    /// The first look at complete inputs has been taken.
    complete: bool,
}

impl Controller {
    pub(crate) async fn run(&self, cx: &JobCtx) {
        cx.health.ok("Waiting for policies, pods and services");
        self.wait_for_inputs().await;
        loop {
            let mut watches = WatchSet::new();
            let looked = self.look(&mut watches);
            self.report(&cx.health, &looked);
            tokio::select! {
                _ = watches.wait(Duration::ZERO) => {}
                () = self.rejected.changed.notified() => {}
                () = self.cookies.changed.notified() => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn report(&self, health: &Health, looked: &Looked) {
        let mut problems = self.rejected.problems();
        if problems.is_empty() && looked.redirecting.is_empty() {
            return health.ok(format!("{} policies", looked.policies));
        }
        let message = if looked.redirecting.is_empty() {
            "Invalid policies"
        } else {
            "Policies without effect, or not with all of it"
        };
        let redirecting = looked.redirecting.iter();
        problems.extend(redirecting.map(|(policy, reason)| format!("{policy}: {reason}")));
        health.degraded(message, &Problems(problems));
    }

    /// Whether what the tables ask for is everything.
    pub(crate) fn is_complete(&self) -> bool {
        self.state.lock().complete
    }

    /// Waits for policies and pods, and for the services of Kubernetes: an address that one of them has is not to be
    /// taken from it because its list came late.
    async fn wait_for_inputs(&self) {
        self.policies.wait_initialized(&self.db).await;
        self.pods.wait_initialized(&self.db).await;
        let frontends = self.writer.frontends();
        loop {
            let snapshot = self.db.read();
            let (_, watch) = frontends.initialized_watch(&snapshot);
            let pending = frontends.pending_initializers(&snapshot);
            if !pending.iter().any(|source| source == KUBERNETES_SERVICES) {
                return;
            }
            watch.closed().await;
        }
    }

    /// Makes real what policies ask for now; `watches` tell when to look again.
    pub(crate) fn look(&self, watches: &mut WatchSet) -> Looked {
        let start = Instant::now();
        let snapshot = self.db.read();
        let (policies, watch) = self.policies.all_watch(&snapshot);
        let policies: Vec<_> = policies.cloned().collect();
        watches.add(watch);
        // Rows may be inserted by others, with nothing but a cookie.
        watches.add(self.skips.table_watch(&snapshot));
        if !policies.is_empty() {
            watches.add(self.pods.table_watch(&snapshot));
        }
        for policy in &policies {
            self.watch_frontends(policy, &snapshot, watches);
        }

        let mut state = self.state.lock();
        let mut txn = self.writer.write();
        let mut round = Round {
            controller: self,
            txn: &mut txn,
            state: &mut state,
            redirected: HashMap::new(),
            skips: BTreeMap::new(),
            redirecting: BTreeMap::new(),
        };
        round.drop_gone(&policies.iter().map(|policy| &policy.name).collect());
        for policy in &policies {
            round.apply(policy, &snapshot);
        }
        let Round {
            skips,
            mut redirecting,
            ..
        } = round;
        state.complete = true;
        if let Err(error) = txn.initialized(&self.initializer) {
            tracing::error!(%error, "Cannot mark redirect policies as initialized");
        }
        txn.commit();
        let without_cookie = self.write_skips(skips);
        if !self.cookies.any() {
            redirecting.extend(without_cookie.into_iter().map(|policy| (policy, NO_ENDPOINTS)));
        }
        self.metrics.look.observe_duration(start.elapsed());
        Looked {
            policies: policies.len(),
            redirecting,
        }
    }

    fn watch_frontends(&self, policy: &Policy, snapshot: &Snapshot, watches: &mut WatchSet) {
        let frontends = self.writer.frontends();
        match &policy.target {
            Target::Service(service) => {
                watches.add(
                    frontends
                        .list_watch(snapshot, FRONTENDS_BY_SERVICE.key(service))
                        .1,
                );
            }
            Target::Address(_) => {
                for (address, _) in policy.addresses() {
                    watches.add(
                        frontends
                            .get_watch(snapshot, FRONTENDS_BY_ADDRESS.key(&address))
                            .1,
                    );
                }
            }
        }
    }

    /// Brings `desired-skiplbmap` up to date; cookies stay. Returns the policies with a pod whose cookie is unknown.
    fn write_skips(&self, wanted: BTreeMap<CompactString, Skips>) -> BTreeSet<ServiceName> {
        let mut without_cookie = BTreeSet::new();
        let mut txn = self.db.write(&[&self.skips]);
        let rows: Vec<_> = self.skips.all(&txn).cloned().collect();
        let mut stale: BTreeMap<CompactString, _> =
            rows.into_iter().map(|row| (row.pod.clone(), row)).collect();
        let mut changes = Vec::new();
        for (pod, (policies, frontends)) in wanted {
            let row = stale.remove(&pod);
            let same = row
                .as_ref()
                .is_some_and(|row| row.policies == policies && row.frontends == frontends);
            let cookie = row.and_then(|row| row.cookie);
            if cookie.is_none() {
                without_cookie.extend(policies.iter().cloned());
            }
            if !same {
                let row = SkipRedirects {
                    pod,
                    policies,
                    frontends,
                    cookie,
                    ..SkipRedirects::default()
                };
                changes.push(row.unwritten());
            }
        }
        let mut result = Ok(());
        for (_, row) in stale {
            let is_empty = row.policies.is_empty() && row.frontends.is_empty();
            match row.cookie {
                None => {
                    result = result.and(
                        self.skips
                            .delete_by(&mut txn, SKIP_BY_POD.key(&row.pod))
                            .map(drop),
                    )
                }
                Some(_) if is_empty => {}
                Some(cookie) => {
                    let row = SkipRedirects {
                        pod: row.pod.clone(),
                        cookie: Some(cookie),
                        ..SkipRedirects::default()
                    };
                    changes.push(row.unwritten());
                }
            }
        }
        for row in changes {
            result = result.and(self.skips.insert(&mut txn, row).map(drop));
        }
        match result {
            Ok(()) => drop(txn.commit()),
            Err(error) => tracing::error!(%error, "Cannot write skip-redirect entries"),
        }
        without_cookie
    }
}

/// Policies and frontends of a pod.
type Skips = (BTreeSet<ServiceName>, BTreeSet<L3n4Addr>);

/// One look at all policies, in one transaction.
struct Round<'a> {
    controller: &'a Controller,
    txn: &'a mut WriteTxn,
    state: &'a mut State,
    /// Who redirects a frontend: of several policies the first by name.
    redirected: HashMap<L3n4Addr, ServiceName>,
    skips: BTreeMap<CompactString, Skips>,
    redirecting: BTreeMap<ServiceName, &'static str>,
}

impl Round<'_> {
    fn drop_gone(&mut self, present: &HashSet<&ServiceName>) {
        let gone = |(policy, _): &(&ServiceName, &ServiceName)| !present.contains(policy);
        let gone: Vec<ServiceName> = self
            .state
            .applied
            .iter()
            .filter(gone)
            .map(|(policy, _)| policy.clone())
            .collect();
        for policy in gone {
            self.withdraw(&policy);
        }
    }

    fn apply(&mut self, policy: &Policy, snapshot: &Snapshot) {
        let pods = self.controller.pods.all(snapshot).map(|row| &*row.pod);
        let writer = self.controller.writer.clone();
        let (ipv4, ipv6) = self.controller.families;
        let allows = |ip: IpAddr| if ip.is_ipv4() { ipv4 } else { ipv6 };
        let Selected { backends, pods } = select(policy, pods, allows);
        // If no pod takes the traffic it goes where it went without the policy; only the pseudo-service stays.
        let has_pods = !pods.is_empty();
        let Redirect {
            service,
            mut frontends,
            backends,
        } = redirect(policy, backends, allows);
        let pseudo = service.name.clone();
        if self
            .state
            .applied
            .insert(policy.name.clone(), pseudo.clone())
            .is_none()
        {
            self.controller.metrics.came().inc();
        }
        frontends.retain(|frontend| has_pods && !self.is_taken(&frontend.address, &pseudo));
        let mut redirected: BTreeSet<L3n4Addr> = frontends.iter().map(|frontend| frontend.address).collect();
        note(
            &policy.name,
            writer.upsert_service_and_frontends(self.txn, service, frontends),
        );
        note(
            &policy.name,
            writer.set_backends(self.txn, &pseudo, Source::Kubernetes, 0, backends),
        );
        if let Some(service) = policy.service() {
            redirected.extend(self.redirect_service(policy, service, &pseudo, has_pods));
        }
        self.note_skips(policy, &pods, &redirected);
    }

    /// Whether another service has the address. Said once.
    fn is_taken(&mut self, address: &L3n4Addr, pseudo: &ServiceName) -> bool {
        let frontends = self.controller.writer.frontends();
        let frontend = frontends.get(&*self.txn, FRONTENDS_BY_ADDRESS.key(address));
        let owner = frontend
            .map(|frontend| frontend.service_name().clone())
            .filter(|owner| owner != pseudo);
        let conflict = (*address, pseudo.clone());
        match owner {
            None => {
                self.state.conflicts.remove(&conflict);
                false
            }
            Some(owner) => {
                if self.state.conflicts.insert(conflict) {
                    tracing::error!(%address, %owner, policy = %pseudo, "Not redirecting address of a service");
                }
                true
            }
        }
    }

    /// Redirects the frontends of a service that the policy is about, if there are pods, and releases the others. Returns
    /// the redirected ones.
    fn redirect_service(
        &mut self,
        policy: &Policy,
        service: &ServiceName,
        pseudo: &ServiceName,
        has_pods: bool,
    ) -> Vec<L3n4Addr> {
        let frontends = self.controller.writer.frontends();
        let frontends: Vec<_> = frontends
            .list(&*self.txn, FRONTENDS_BY_SERVICE.key(service))
            .cloned()
            .collect();
        let mut redirected = Vec::new();
        for frontend in frontends
            .iter()
            .filter(|frontend| frontend.service_name() == service)
        {
            let address = *frontend.address();
            let wanted = has_pods
                && frontend.params.kind == FrontendKind::ClusterIp
                && policy.redirects(&address, &frontend.params.port_name)
                && *self.redirected.entry(address).or_insert_with(|| pseudo.clone()) == *pseudo;
            if wanted {
                redirected.push(address);
            }
            let is_ours = frontend.redirect_to.as_ref() == Some(pseudo);
            if wanted != is_ours {
                note(
                    &policy.name,
                    self.controller
                        .writer
                        .set_redirect_to(self.txn, &address, wanted.then_some(pseudo)),
                );
            }
        }
        redirected
    }

    fn withdraw(&mut self, policy: &ServiceName) {
        let Some(pseudo) = self.state.applied.remove(policy) else {
            return;
        };
        self.controller.metrics.went().inc();
        let writer = &self.controller.writer;
        let frontends = writer.frontends();
        let redirected: Vec<_> = frontends
            .list(&*self.txn, FRONTENDS_BY_SERVICE.key(&pseudo))
            .filter(|frontend| frontend.redirect_to.as_ref() == Some(&pseudo))
            .map(|frontend| *frontend.address())
            .collect();
        for address in redirected {
            note(policy, writer.set_redirect_to(self.txn, &address, None));
        }
        note(
            policy,
            writer.set_backends(self.txn, &pseudo, Source::Kubernetes, 0, Vec::new()),
        );
        note(
            policy,
            writer.delete_service_and_frontends(self.txn, &pseudo).map(drop),
        );
        self.state.conflicts.retain(|(_, owner)| *owner != pseudo);
    }

    fn note_skips(
        &mut self,
        policy: &Policy,
        pods: &BTreeSet<CompactString>,
        redirected: &BTreeSet<L3n4Addr>,
    ) {
        if !policy.skips_own_traffic {
            return;
        }
        if !self.controller.can_skip {
            self.redirecting.insert(policy.name.clone(), NO_COOKIES);
            return;
        }
        for pod in pods {
            let (policies, frontends) = self.skips.entry(pod.clone()).or_default();
            policies.insert(policy.name.clone());
            frontends.extend(redirected);
        }
    }
}

/// Says that an operation was refused. It is tried again with the next change.
fn note(policy: &ServiceName, result: Result<(), WriterError>) {
    if let Err(error) = result {
        tracing::error!(%policy, error = hive::error_chain(&error), "Cannot apply redirect policy");
    }
}
