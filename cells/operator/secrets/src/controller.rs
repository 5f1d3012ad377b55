// SPDX-License-Identifier: Apache-2.0

//! The controller: policies and Secrets in, copies out. A key is the name of a copy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_k8s_client::Client;
use skep_k8s_controller::{Change, Controller, Reconciler, Store, Watches, Work};
use skep_k8s_crds::policy::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, Rule};

use crate::world::{PolicyKind, World};
use crate::writer::{CopyError, Secret, Writer};

/// Time between two comparisons of all copies, at most.
const RESYNC: Duration = Duration::from_secs(60 * 60);

pub(crate) struct Copies {
    writer: Arc<Writer>,
    policies: Store<CiliumNetworkPolicy>,
    clusterwide: Store<CiliumClusterwideNetworkPolicy>,
    secrets: Store<Secret>,
    world: World,
}

pub(crate) fn controller(
    client: &Arc<dyn Client>,
    namespace: &str,
    queue: WorkqueueRecorder,
) -> Controller<Copies> {
    let copies = Copies {
        writer: Arc::new(Writer::new(client.clone(), namespace)),
        policies: Store::default(),
        clusterwide: Store::default(),
        secrets: Store::default(),
        world: World::new(namespace),
    };
    Controller::new(copies, queue)
        .watch_all::<CiliumNetworkPolicy>(client)
        .watch_all::<CiliumClusterwideNetworkPolicy>(client)
        .watch_all::<Secret>(client)
        .resync(RESYNC, |copies| {
            copies.world.copies().map(str::to_owned).collect()
        })
}

impl Reconciler for Copies {
    type Key = String;
    type Output = ();
    type Error = CopyError;
    const KEYS: &'static str = "Secrets";
    const FAILED: &'static str = "are not copied";

    fn reconcile(&mut self, copy: &String) -> Work<Self> {
        let (writer, copy) = (self.writer.clone(), copy.clone());
        let original = self.world.original(&copy).cloned();
        // Without all that policies name, no copy is deleted.
        let deletes = !self.policies.has_gaps() && !self.clusterwide.has_gaps();
        Box::pin(async move { writer.reconcile(&copy, original.as_ref(), deletes).await })
    }

    fn total(&self) -> usize {
        self.world.copies().count()
    }

    fn faults(&self) -> Vec<String> {
        self.world.faults()
    }
}

impl Copies {
    fn policy<'a, T>(
        &mut self,
        kind: PolicyKind,
        change: &'a Change<T>,
        rules: impl FnOnce(&'a T) -> Vec<&'a Rule>,
    ) -> Vec<String> {
        let changed: BTreeSet<String> = match &change.new {
            Some(policy) => self.world.set_policy(kind, change.key.clone(), rules(policy)),
            None => self.world.remove_policy(kind, &change.key),
        };
        changed.into_iter().collect()
    }
}

impl Watches<CiliumNetworkPolicy> for Copies {
    fn store(&mut self) -> &mut Store<CiliumNetworkPolicy> {
        &mut self.policies
    }

    fn affected(&mut self, change: &Change<CiliumNetworkPolicy>) -> Vec<String> {
        self.policy(PolicyKind::Namespaced, change, |policy| {
            policy.spec.iter().chain(policy.specs.iter().flatten()).collect()
        })
    }
}

impl Watches<CiliumClusterwideNetworkPolicy> for Copies {
    fn store(&mut self) -> &mut Store<CiliumClusterwideNetworkPolicy> {
        &mut self.clusterwide
    }

    fn affected(&mut self, change: &Change<CiliumClusterwideNetworkPolicy>) -> Vec<String> {
        self.policy(PolicyKind::Clusterwide, change, |policy| {
            policy.spec.iter().chain(policy.specs.iter().flatten()).collect()
        })
    }
}

impl Watches<Secret> for Copies {
    fn store(&mut self) -> &mut Store<Secret> {
        &mut self.secrets
    }

    fn affected(&mut self, change: &Change<Secret>) -> Vec<String> {
        let key = &change.key;
        match self.world.copy_of(key) {
            Some(copy) if self.world.original(&copy) == Some(key) => vec![copy],
            Some(_) => Vec::new(),
            None => {
                let is_copy = change.old.iter().chain(&change.new).any(|secret| secret.is_copy);
                let name = key.name.to_string();
                let is_named = self.world.original(&name).is_some();
                if is_copy || is_named {
                    vec![name]
                } else {
                    Vec::new()
                }
            }
        }
    }
}
