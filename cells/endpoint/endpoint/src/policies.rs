// SPDX-License-Identifier: Apache-2.0

//! Policy maps of endpoints: each is pinned as `cilium_policy_v2_<id>`. `skep_policies` leads to those that programs look
//! up: an endpoint whose policy allows everything says so in its flags, and its policy is not looked up. The kernel waits
//! for all programs that run when that map of maps is written, for 20 ms and more: starting a pod is not to wait for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    os::fd::AsRawFd as _,
    sync::Arc,
};

use parking_lot::Mutex;
use skep_bpf_maps::{
    MapSizes,
    endpoint::endpoint_flags,
    policy::{
        POLICIES, POLICY_PINS, POLICY_STATIC_BITS, PolicyEntry, PolicyKey, endpoint_of_pin, policy_pin,
    },
};
use skep_bpf_sys::{KernelMap, Map, MapError, MapStore, MemoryMap, RawMap, RawSpec};
use skep_datapath_maps::{Maps, transaction::WriteError};
use zerocopy::network_endian::U16;

/// Name of a policy map in the kernel.
const NAME: &str = "cilium_policy_v2";
/// Precedence of an entry of the highest tier that allows.
const ALLOW: u32 = 0xffff_ff01;

/// Flags of an endpoint whose policy is not looked up at all.
const BOTH: u8 = endpoint_flags::OPEN_INGRESS | endpoint_flags::OPEN_EGRESS;

type PolicyMap = Map<PolicyKey, PolicyEntry>;

/// The policy maps of all endpoints.
pub struct Policies {
    outer: Arc<dyn RawMap>,
    sizes: MapSizes,
    inner: Inner,
}

/// Where the maps of endpoints are.
enum Inner {
    Pinned(Arc<MapStore>),
    Memory(Mutex<BTreeMap<u16, Arc<MemoryMap>>>),
}

impl Policies {
    /// The policies beside the maps of the program: pinned, or in memory.
    pub fn new(maps: &Maps) -> Self {
        Self {
            outer: maps.outer(&POLICIES),
            sizes: maps.sizes(),
            inner: match maps.store() {
                Some(store) => Inner::Pinned(store.clone()),
                None => Inner::Memory(Mutex::default()),
            },
        }
    }

    /// With another map that leads to the policies, to make writes to it fail.
    #[cfg(test)]
    pub(crate) fn with_outer(self, outer: Arc<dyn RawMap>) -> Self {
        Self { outer, ..self }
    }

    /// The entries of a policy that allows everything in both directions.
    pub fn allow_all() -> [(PolicyKey, PolicyEntry); 2] {
        let entry = PolicyEntry {
            proxy_port: U16::ZERO,
            flags: 0,
            auth: 0,
            precedence: ALLOW,
            cookie: 0,
        };
        [0, 1].map(|direction| {
            let key = PolicyKey {
                prefix_len: POLICY_STATIC_BITS,
                identity: 0,
                direction,
                proto: 0,
                port: U16::ZERO,
            };
            (key, entry)
        })
    }

    /// Makes the policy of an endpoint these entries: adds and replaces, then deletes the rest, then lets programs find it
    /// if they look it up. Returns the flags that the endpoint is to have in `skep_endpoints`.
    ///
    /// # Errors
    ///
    /// [`WriteError`] names the map. What was written stays.
    pub fn write(&self, endpoint: u16, entries: &[(PolicyKey, PolicyEntry)]) -> Result<u8, WriteError> {
        let (raw, value) = self.open(endpoint).map_err(|error| WriteError::new(error, 0))?;
        let map = PolicyMap::from_raw(raw).map_err(|error| WriteError::new(error, 0))?;
        let failed = |error| WriteError::new(error, map.max_entries());
        let present: BTreeMap<PolicyKey, PolicyEntry> = map.entries().map_err(failed)?.into_iter().collect();
        for (key, entry) in entries {
            if present.get(key) != Some(entry) {
                map.update(key, entry).map_err(failed)?;
            }
        }
        for key in present.keys() {
            if !entries.iter().any(|(wanted, _)| wanted == key) {
                map.delete(key).map_err(failed)?;
            }
        }
        let open = open_directions(entries);
        if open != BOTH {
            self.lead_to(endpoint, value, map.info().id)?;
        }
        Ok(open)
    }

    /// Removes the policy of an endpoint; fine if there is none.
    ///
    /// # Errors
    ///
    /// [`MapError`] names the map.
    pub fn remove(&self, endpoint: u16) -> Result<(), MapError> {
        let key = u32::from(endpoint).to_ne_bytes();
        let failed = |source| MapError::Delete {
            map: POLICIES.name.to_owned(),
            key: endpoint.to_string(),
            source,
        };
        if self.outer.lookup(&key, &mut |_| ()).map_err(failed)?
            && let Some(failure) = self.outer.delete(&key).failures.pop()
        {
            return Err(failed(failure.error));
        }
        match &self.inner {
            Inner::Pinned(store) => store.unpin(&policy_pin(endpoint)).map(drop),
            Inner::Memory(maps) => {
                maps.lock().remove(&endpoint);
                Ok(())
            }
        }
    }

    /// Endpoints that have a policy, or something left of one.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] with what the kernel says.
    pub fn endpoints(&self) -> Result<BTreeSet<u16>, MapError> {
        let failed = |source| MapError::Walk {
            map: POLICIES.name.to_owned(),
            source,
        };
        let mut found = BTreeSet::new();
        let walked = self.outer.walk(&mut |key, _| {
            let id = key.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
            found.extend(id.and_then(|id| u16::try_from(id).ok()));
        });
        walked.map_err(failed)?;
        match &self.inner {
            Inner::Pinned(store) => {
                let pins = store.pins(POLICY_PINS).map_err(failed)?;
                let ids = pins.iter().filter_map(|name| endpoint_of_pin(name));
                found.extend(ids);
            }
            Inner::Memory(maps) => found.extend(maps.lock().keys()),
        }
        Ok(found)
    }

    /// The policy of an endpoint, made if missing, and the value of the outer map that leads to it.
    fn open(&self, endpoint: u16) -> Result<(Arc<dyn RawMap>, u32), MapError> {
        let Some(spec) = POLICIES.inner_spec(NAME, &self.sizes) else {
            return Err(MapError::Create {
                map: policy_pin(endpoint),
                max_entries: 0,
                flags: 0,
                source: std::io::ErrorKind::InvalidInput.into(),
            });
        };
        match &self.inner {
            Inner::Pinned(store) => {
                let map = store.provide_inner(&spec, &policy_pin(endpoint))?;
                let descriptor = descriptor(&map);
                Ok((Arc::new(map), descriptor))
            }
            Inner::Memory(maps) => {
                let map = in_memory(&mut maps.lock(), endpoint, &spec)?;
                Ok((map, endpoint.into()))
            }
        }
    }

    fn lead_to(&self, endpoint: u16, value: u32, id: u32) -> Result<(), WriteError> {
        let key = u32::from(endpoint).to_ne_bytes();
        let failed = |source| MapError::Update {
            map: POLICIES.name.to_owned(),
            key: endpoint.to_string(),
            source,
        };
        let max = self.outer.info().max_entries;
        let mut found = None;
        self.outer
            .lookup(&key, &mut |bytes| {
                found = bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
            })
            .map_err(|error| WriteError::new(failed(error), max))?;
        if found == Some(id) && id != 0 {
            return Ok(());
        }
        match self.outer.update(&key, &value.to_ne_bytes()).pop() {
            None => Ok(()),
            Some(failure) => Err(WriteError::new(failed(failure.error), max)),
        }
    }
}

/// Flags of the directions for which a policy has one entry, which allows everything.
fn open_directions(entries: &[(PolicyKey, PolicyEntry)]) -> u8 {
    let directions = [
        (0, endpoint_flags::OPEN_INGRESS),
        (1, endpoint_flags::OPEN_EGRESS),
    ];
    let is_open = |direction: u8| {
        let mut of_direction = entries.iter().filter(|(key, _)| key.direction & 1 == direction);
        let first = of_direction.next();
        let allows_all = |(key, entry): &(PolicyKey, PolicyEntry)| {
            let is_plain = entry.proxy_port == U16::ZERO && entry.auth_type() == 0 && !entry.is_deny();
            key.identity == 0 && key.bits() == 0 && is_plain
        };
        first.is_some_and(allows_all) && of_direction.next().is_none()
    };
    let open = directions
        .into_iter()
        .filter(|(direction, _)| is_open(*direction));
    open.fold(0, |flags, (_, flag)| flags | flag)
}

fn descriptor(map: &KernelMap) -> u32 {
    map.fd().map_or(0, |fd| fd.as_raw_fd() as u32)
}

fn in_memory(
    maps: &mut BTreeMap<u16, Arc<MemoryMap>>,
    endpoint: u16,
    spec: &RawSpec,
) -> Result<Arc<dyn RawMap>, MapError> {
    if let Some(map) = maps.get(&endpoint) {
        return Ok(map.clone());
    }
    let map = Arc::new(MemoryMap::create(spec)?);
    maps.insert(endpoint, map.clone());
    Ok(map)
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies")
            .field("outer", &self.outer)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use skep_bpf_maps::text::Text as _;

    use super::*;

    fn found(policies: &Policies, endpoint: u16) -> Vec<String> {
        let (raw, _) = policies.open(endpoint).unwrap();
        let entries = PolicyMap::from_raw(raw).unwrap().entries().unwrap();
        let mut texts: Vec<String> = entries.iter().map(|(key, _)| key.text()).collect();
        texts.sort();
        texts
    }

    fn is_looked_up(policies: &Policies, endpoint: u16) -> bool {
        let key = u32::from(endpoint).to_ne_bytes();
        policies.outer.lookup(&key, &mut |_| ()).unwrap()
    }

    #[test]
    fn a_policy_that_restricts_is_looked_up_and_one_that_allows_everything_is_not() {
        let policies = Policies::new(&Maps::in_memory([]).unwrap());
        let [ingress, egress] = Policies::allow_all();
        let from_one = (
            PolicyKey {
                identity: 3211,
                ..ingress.0
            },
            ingress.1,
        );

        assert_eq!(policies.write(7, &[ingress, egress]).unwrap(), BOTH);
        assert_eq!(found(&policies, 7), ["Egress: 0 ANY", "Ingress: 0 ANY"]);
        assert!(!is_looked_up(&policies, 7));
        let flags = policies.write(7, &[from_one, egress]).unwrap();
        assert_eq!(flags, endpoint_flags::OPEN_EGRESS);
        assert_eq!(found(&policies, 7), ["Egress: 0 ANY", "Ingress: 3211 ANY"]);
        assert!(is_looked_up(&policies, 7));
        assert_eq!(policies.write(8, &[]).unwrap(), 0, "no entry allows nothing");
        assert_eq!(
            policies.write(9, &[ingress, from_one]).unwrap(),
            0,
            "one entry of two"
        );
        let denied = PolicyEntry {
            flags: 1,
            ..ingress.1
        };
        assert_eq!(policies.write(10, &[(ingress.0, denied)]).unwrap(), 0);

        policies.remove(7).unwrap();
        assert!(!is_looked_up(&policies, 7));
        assert_eq!(policies.endpoints().unwrap(), BTreeSet::from([8, 9, 10]));
    }
}
