// SPDX-License-Identifier: Apache-2.0

//! Ports of an address.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use compact_str::CompactString;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ServicePort;

/// Ports by their names, sorted; an unnamed one has the empty name. Clones share memory: mostly all backends of a service have the same ports.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Ports(Arc<[(CompactString, ServicePort)]>);

impl Deref for Ports {
    type Target = [(CompactString, ServicePort)];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(name, port)| (name, port)))
            .finish()
    }
}

/// The last port of a name counts.
impl FromIterator<(CompactString, ServicePort)> for Ports {
    fn from_iter<T: IntoIterator<Item = (CompactString, ServicePort)>>(ports: T) -> Self {
        let by_name: BTreeMap<_, _> = ports.into_iter().collect();
        Self(by_name.into_iter().collect())
    }
}

impl<const N: usize> From<[(CompactString, ServicePort); N]> for Ports {
    fn from(ports: [(CompactString, ServicePort); N]) -> Self {
        ports.into_iter().collect()
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(name, port)| (name, port)))
    }
}

/// Ports that are `null` are skipped.
impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ports = BTreeMap::<CompactString, Option<ServicePort>>::deserialize(deserializer)?;
        let ports = ports.into_iter().filter_map(|(name, port)| Some((name, port?)));
        Ok(ports.collect())
    }
}
