// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::time::Duration;

use hive::config::Faults;

use crate::fixed::FixedIdentities;

#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Timeout of the allocation of an identity.
    #[config(default = "2m")]
    pub identity_allocation_timeout: Duration,
    /// Interval at which the keys of used identities are compared and written again.
    #[config(default = "5m")]
    pub identity_allocation_sync_interval: Duration,
    /// Fixed ids, 128 to 255, of pods by their label `io.cilium.fixed-identity`: `128=kv-store`.
    pub fixed_identity_mapping: BTreeMap<String, String>,
    /// Fixed ids of DNS servers and of the operator, which need no allocation.
    #[config(default = true)]
    pub enable_well_known_identities: bool,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if let Err(error) = FixedIdentities::new(&self.fixed_identity_mapping) {
            faults.add("fixed-identity-mapping", error.to_string());
        }
    }
}
