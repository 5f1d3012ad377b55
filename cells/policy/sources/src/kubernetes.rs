// SPDX-License-Identifier: Apache-2.0

//! Objects of an API server → rows.

use std::{marker::PhantomData, sync::Arc};

use hive::Jobs;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::{ReflectError, Reflector};
use skep_k8s_types::{Kind, Resource, slim::Metadata};
use statedb::{Db, RwTable};

use crate::table::{Origin, PolicyRow};

/// A kind of objects that are kept as JSON.
pub(crate) trait PolicyKind: Send + Sync + 'static {
    const KIND: Kind;
    const NAME: &'static str;
    const ORIGIN: Origin;
}

macro_rules! kinds {
    ($($type:ident: $origin:ident, $group:literal, $version:literal, $plural:literal, $namespaced:literal;)*) => { $(
        pub(crate) struct $type;

        impl PolicyKind for $type {
            const KIND: Kind = Kind::new($group, $version, stringify!($type), $plural, $namespaced);
            const NAME: &'static str = stringify!($type);
            const ORIGIN: Origin = Origin::$origin;
        }
    )* };
}

kinds! {
    NetworkPolicy: Kubernetes, "networking.k8s.io", "v1", "networkpolicies", true;
    ClusterNetworkPolicy: Kubernetes, "policy.networking.k8s.io", "v1alpha2", "clusternetworkpolicies", false;
    CiliumNetworkPolicy: CustomResource, "cilium.io", "v2", "ciliumnetworkpolicies", true;
    CiliumClusterwideNetworkPolicy: CustomResource, "cilium.io", "v2", "ciliumclusterwidenetworkpolicies", false;
    CiliumCIDRGroup: CustomResource, "cilium.io", "v2", "ciliumcidrgroups", false;
}

/// An object as JSON.
pub(crate) struct Object<K> {
    metadata: Metadata,
    json: Arc<Value>,
    kind: PhantomData<K>,
}

impl<K> Default for Object<K> {
    fn default() -> Self {
        Self {
            metadata: Metadata::default(),
            json: Arc::default(),
            kind: PhantomData,
        }
    }
}

impl<K> Serialize for Object<K> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(to)
    }
}

impl<'de, K: PolicyKind> Deserialize<'de> for Object<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut json = Value::deserialize(from)?;
        let metadata = json.get("metadata").cloned().unwrap_or_default();
        let metadata = Option::<Metadata>::deserialize(metadata).map_err(serde::de::Error::custom)?;
        trim(&mut json, K::NAME);
        Ok(Self {
            metadata: metadata.unwrap_or_default(),
            json: Arc::new(json),
            kind: PhantomData,
        })
    }
}

/// Leaves what rules follow from. Items of lists have no kind.
pub(crate) fn trim(json: &mut Value, kind: &str) {
    let Some(object) = json.as_object_mut() else {
        return;
    };
    object.shift_remove("status");
    object.insert("kind".to_owned(), json!(kind));
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| {
            matches!(
                field.as_str(),
                "name" | "namespace" | "uid" | "labels" | "generation"
            )
        });
    }
}

impl<K: PolicyKind> Resource for Object<K> {
    fn kind() -> Kind {
        K::KIND
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }
}

/// Keeps the rows of a kind as the API server has its objects.
pub(crate) fn reflect<K: PolicyKind>(
    client: &Arc<dyn Client>,
    db: &Db,
    table: &RwTable<PolicyRow>,
    jobs: &Jobs,
) -> Result<(), ReflectError> {
    let source = Arc::new(Api::<Object<K>>::all(client.clone()));
    let row = |object: &Arc<Object<K>>| {
        Some(PolicyRow {
            origin: K::ORIGIN,
            kind: K::NAME,
            namespace: object.metadata.namespace.to_string(),
            name: object.metadata.name.to_string(),
            object: object.json.clone(),
        })
    };
    Reflector::new(K::NAME, table.clone(), source, row)
        .skip_same(|before, now| before == now)
        .owns(|row| row.kind == K::NAME)
        .optional_kind()
        .register(jobs, db)
}
