// SPDX-License-Identifier: Apache-2.0

//! The endpoints of all objects, and their claims.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use skep_ipcache::{Claim, Owner, ResourceId, Source, Writer};
use skep_k8s_types::ObjectKey;
use smallvec::SmallVec;
use statedb::WriteTxn;

use crate::convert::Endpoint;

/// Kind of the resources that claim for endpoints.
const KIND: &str = "cep";

/// Which addresses are this node's, and which address families are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) local: Vec<IpAddr>,
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
}

impl View {
    fn claims(&self, key: &ObjectKey, endpoint: &Endpoint) -> SmallVec<[(IpAddr, Claim); 2]> {
        let claim = Claim::identity(owner(key), endpoint.identity).pod(endpoint.pod.clone());
        let claim = match self.local.contains(&endpoint.node) {
            true => claim,
            false => claim.tunnel_peer(endpoint.node).encrypt_key(endpoint.key),
        };
        let is_on = |address: &&IpAddr| if address.is_ipv4() { self.ipv4 } else { self.ipv6 };
        let addresses = endpoint.addresses.iter().filter(is_on);
        addresses.map(|address| (*address, claim.clone())).collect()
    }
}

/// Owner of the claims for the endpoint of a name.
pub fn owner(key: &ObjectKey) -> Owner {
    Owner::new(
        Source::CustomResource,
        ResourceId::new(KIND, &key.namespace, &key.name),
    )
}

/// Name of the endpoint that an owner claims for; none for other owners.
pub fn key_of_owner(owner: &Owner) -> Option<ObjectKey> {
    let object = owner.resource.as_str().strip_prefix(KIND)?.strip_prefix('/')?;
    let (namespace, name) = object.split_once('/')?;
    (owner.source == Source::CustomResource).then(|| ObjectKey {
        namespace: namespace.into(),
        name: name.into(),
    })
}

/// An endpoint as one object has it.
struct Described {
    object: Arc<ObjectKey>,
    endpoint: Endpoint,
}

/// The endpoints of all objects. The object that changed an endpoint last says what it is.
pub(crate) struct Endpoints {
    ipcache: Writer,
    view: View,
    endpoints: HashMap<ObjectKey, SmallVec<[Described; 1]>>,
    objects: HashMap<Arc<ObjectKey>, Box<[ObjectKey]>>,
}

impl Endpoints {
    pub(crate) fn new(ipcache: Writer) -> Self {
        Self {
            ipcache,
            view: View::default(),
            endpoints: HashMap::new(),
            objects: HashMap::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// The objects that have endpoints.
    pub(crate) fn objects(&self) -> Vec<ObjectKey> {
        self.objects.keys().map(|object| (**object).clone()).collect()
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// Claims anew where the view has changed.
    pub(crate) fn set_view(&mut self, txn: &mut WriteTxn, view: View) -> Result<(), statedb::Error> {
        for (key, described) in &self.endpoints {
            let Some(last) = described.last() else { continue };
            let before = self.view.claims(key, &last.endpoint);
            replace(&self.ipcache, txn, key, before, view.claims(key, &last.endpoint))?;
        }
        self.view = view;
        Ok(())
    }

    /// Makes the endpoints of an object these: `Some` is a new state, `None` keeps the last one.
    pub(crate) fn set(
        &mut self,
        txn: &mut WriteTxn,
        object: ObjectKey,
        now: Vec<(ObjectKey, Option<Endpoint>)>,
    ) -> Result<(), statedb::Error> {
        let known = self.objects.remove_entry(&object);
        let (object, before) = known.unwrap_or_else(|| (Arc::new(object), Box::default()));
        let mut keys: HashSet<ObjectKey> = HashSet::with_capacity(now.len());
        for (key, endpoint) in now {
            match endpoint {
                Some(endpoint) => self.describe(txn, &key, &object, Some(endpoint))?,
                None if !before.contains(&key) => continue,
                None => {}
            }
            keys.insert(key);
        }
        for key in before.iter().filter(|key| !keys.contains(*key)) {
            self.describe(txn, key, &object, None)?;
        }
        if !keys.is_empty() {
            self.objects.insert(object, keys.into_iter().collect());
        }
        Ok(())
    }

    /// An object has an endpoint, or none of this name.
    fn describe(
        &mut self,
        txn: &mut WriteTxn,
        key: &ObjectKey,
        object: &Arc<ObjectKey>,
        endpoint: Option<Endpoint>,
    ) -> Result<(), statedb::Error> {
        let described = self.endpoints.entry(key.clone()).or_default();
        let claims = |described: &[Described]| {
            let last = described.last();
            last.map(|last| self.view.claims(key, &last.endpoint))
                .unwrap_or_default()
        };
        let before = claims(described);
        let at = described.iter().position(|described| described.object == *object);
        if let (Some(at), Some(endpoint)) = (at, &endpoint)
            && described[at].endpoint == *endpoint
        {
            return Ok(());
        }
        if let Some(at) = at {
            described.remove(at);
        }
        if let Some(endpoint) = endpoint {
            described.push(Described {
                object: object.clone(),
                endpoint,
            });
        }
        let now = claims(described);
        if described.is_empty() {
            self.endpoints.remove(key);
        }
        replace(&self.ipcache, txn, key, before, now)
    }
}

/// New claims first: an address is never without one in between.
fn replace(
    ipcache: &Writer,
    txn: &mut WriteTxn,
    key: &ObjectKey,
    before: SmallVec<[(IpAddr, Claim); 2]>,
    now: SmallVec<[(IpAddr, Claim); 2]>,
) -> Result<(), statedb::Error> {
    let kept: SmallVec<[IpAddr; 2]> = now.iter().map(|(address, _)| *address).collect();
    for (address, claim) in now {
        ipcache.upsert(txn, address.into(), claim)?;
    }
    for (address, _) in before {
        if !kept.contains(&address) {
            ipcache.delete(txn, address.into(), &owner(key))?;
        }
    }
    Ok(())
}
