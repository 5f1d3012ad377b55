// SPDX-License-Identifier: Apache-2.0

//! Settings of the election.

use std::time::Duration;

use hive::config::Faults;

use crate::election::Settings;

/// Name of the lease, the same as that of Cilium's operator.
const LEASE: &str = "cilium-operator-resource-lock";

/// How replicas elect the one that leads.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Namespace of the program. Default: `default`.
    pub k8s_namespace: String,
    /// Duration that non-leaders wait before acquiring an expired lease.
    #[config(default = "15s")]
    pub leader_election_lease_duration: Duration,
    /// Deadline for the leader to renew its lease before it stops leading.
    #[config(default = "10s")]
    pub leader_election_renew_deadline: Duration,
    /// Interval of attempts to acquire or renew the lease.
    #[config(default = "2s")]
    pub leader_election_retry_period: Duration,
    /// Timeout of requests on the lease; 0: half of the renew deadline, at least one second.
    #[config(default = "0s")]
    pub leader_election_resource_lock_timeout: Duration,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if self.leader_election_lease_duration < Duration::from_secs(1) {
            faults.add("leader-election-lease-duration", "must be at least 1s");
        }
        if self.leader_election_renew_deadline >= self.leader_election_lease_duration {
            faults.add(
                "leader-election-renew-deadline",
                "must be shorter than leader-election-lease-duration",
            );
        }
        if self.leader_election_retry_period.is_zero() {
            faults.add("leader-election-retry-period", "must be longer than nothing");
        }
        if self.leader_election_retry_period.mul_f64(Settings::JITTER) >= self.leader_election_renew_deadline
        {
            faults.add(
                "leader-election-retry-period",
                "must be shorter than leader-election-renew-deadline divided by 1.2",
            );
        }
    }

    /// The namespace that the program runs in.
    pub fn namespace(&self) -> &str {
        match self.k8s_namespace.as_str() {
            "" => "default",
            namespace => namespace,
        }
    }

    /// Settings of an election in which this process is `identity`.
    pub fn settings(&self, identity: String) -> Settings {
        let timeout = match self.leader_election_resource_lock_timeout {
            Duration::ZERO => (self.leader_election_renew_deadline / 2).max(Duration::from_secs(1)),
            timeout => timeout,
        };
        Settings {
            namespace: self.namespace().to_owned(),
            name: LEASE.to_owned(),
            identity,
            lease_duration: self.leader_election_lease_duration,
            renew_deadline: self.leader_election_renew_deadline,
            retry_period: self.leader_election_retry_period,
            request_timeout: timeout,
        }
    }
}
