// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use std::time::Duration;

use skep_base_metrics::{CounterVec, Gauge, GaugeVec, HistogramVec, Metrics};
use skep_identity::Labels;
use skep_policy_model::{Policies, Selector};
use skep_policy_sources::Origin;

/// Rules, their changes, and the time that these take.
#[derive(Debug, Metrics)]
pub(crate) struct PolicyMetrics {
    /// Number of rules.
    #[metric(name = "policy")]
    rules: Gauge,
    /// Highest revision of the rules.
    #[metric(name = "policy_max_revision")]
    max_revision: Gauge,
    /// Changes of policies by source, operation and outcome.
    #[metric(name = "policy_change_total", labels = ["source", "operation", "outcome"])]
    change_total: CounterVec,
    /// Time from a change of a policy to the maps of all endpoints, in seconds.
    #[metric(name = "policy_implementation_delay", labels = ["source"], buckets = [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0])]
    implementation_delay: HistogramVec,
    /// Time from a new identity to the policies of all endpoints, in seconds.
    #[metric(name = "policy_incremental_update_duration", labels = ["scope"], buckets = [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0])]
    incremental_update_duration: HistogramVec,
    /// Redirects of policies to proxies that are missing.
    #[metric(name = "policy_missing_proxy_redirects")]
    missing_proxy_redirects: Gauge,
    /// Number of selectors of peers.
    #[metric(name = "policy_selector_cache_selectors", labels = ["type"])]
    selector_cache_selectors: GaugeVec,
    /// Number of identities that selectors of peers are matched against.
    #[metric(name = "policy_selector_cache_identities", labels = ["type"])]
    selector_cache_identities: GaugeVec,
    /// Time of operations on the selectors of peers, and of waits for them, in seconds.
    #[metric(name = "policy_selector_cache_operation_duration_seconds", labels = ["operation", "scope", "type"], buckets = [0.0005, 0.001, 0.005, 0.025, 0.05, 0.1, 0.2, 0.4])]
    selector_cache_operations: HistogramVec,
    /// Highest number of identities that a selector of a class selects: of names, of the world, of the cluster, others.
    #[metric(name = "policy_selector_match_count_max", labels = ["class"])]
    selector_match_count_max: GaugeVec,
}

/// Classes of selectors, by what they are about.
const CLASSES: [&str; 4] = ["cluster", "fqdn", "other", "world"];

fn class(selector: &Selector) -> &'static str {
    if selector.names().is_some() {
        return "fqdn";
    }
    let text = selector.as_str();
    let is_in_namespace = text.contains(Labels::NAMESPACE);
    match text {
        _ if text.contains("reserved:world") => "world",
        _ if text.contains(Labels::CLUSTER) && !is_in_namespace => "cluster",
        _ => "other",
    }
}

impl PolicyMetrics {
    /// All series of changes exist from the start, at zero.
    pub(crate) fn init(&self) {
        let origins = [Origin::Kubernetes, Origin::CustomResource, Origin::Directory];
        for source in origins.map(Origin::as_str) {
            for operation in ["update", "delete"] {
                for outcome in ["success", "failure"] {
                    self.change_total.with([source, operation, outcome]).add(0.0);
                }
            }
        }
    }

    pub(crate) fn changed(&self, origin: Origin, is_gone: bool, is_valid: bool) {
        let operation = if is_gone { "delete" } else { "update" };
        // Cilium counts failures in a series of this name.
        let outcome = if is_valid { "success" } else { "fail" };
        self.change_total
            .with([origin.as_str(), operation, outcome])
            .inc();
    }

    pub(crate) fn implemented(&self, origin: Origin, delay: Duration) {
        self.implementation_delay
            .with([origin.as_str()])
            .observe(delay.as_secs_f64());
    }

    /// Identities were taken in, after a wait for the lock.
    pub(crate) fn identities_updated(&self, waited: Duration, took: Duration) {
        for (scope, time) in [("lock", waited), ("operation", took)] {
            self.selector_cache_operations
                .with(["identity_updates", scope, "peer"])
                .observe(time.as_secs_f64());
        }
    }

    pub(crate) fn updated(&self, duration: Duration) {
        self.incremental_update_duration
            .with(["global"])
            .observe(duration.as_secs_f64());
    }

    pub(crate) fn count(&self, policies: &Policies, missing_redirects: usize) {
        self.rules.set(policies.rules().count() as f64);
        self.max_revision.set(policies.revision() as f64);
        self.missing_proxy_redirects.set(missing_redirects as f64);
        let peers = policies.peers();
        let mut most = CLASSES.map(|_| 0);
        for (_, cached) in peers.iter() {
            let class = class(&cached.selector);
            for (name, most) in CLASSES.iter().zip(&mut most) {
                if *name == class {
                    *most = cached.selection.len().max(*most);
                }
            }
        }
        for (class, most) in CLASSES.iter().zip(most) {
            self.selector_match_count_max.with([*class]).set(most as f64);
        }
        self.selector_cache_selectors
            .with(["peer"])
            .set(peers.iter().count() as f64);
        self.selector_cache_identities
            .with(["peer"])
            .set(peers.identities().count() as f64);
    }
}
