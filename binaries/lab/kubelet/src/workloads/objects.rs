// SPDX-License-Identifier: Apache-2.0

//! Objects that controllers watch, whole.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use skep_k8s_types::{Kind, ObjectKey, Resource, slim::Metadata};

use super::{Key, What};
use crate::object::{flag, is_deleting, list, text};

/// An object as the API server has it.
#[derive(Debug, Clone, Default)]
pub(super) struct Whole {
    metadata: Metadata,
    pub(super) value: Arc<Value>,
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let metadata = Metadata::deserialize(&value["metadata"]).map_err(serde::de::Error::custom)?;
        Ok(Self {
            metadata,
            value: Arc::new(value),
        })
    }
}

impl Serialize for Whole {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

macro_rules! whole {
    ($name:ident, $kind:expr) => {
        #[derive(Debug, Clone, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub(super) struct $name(pub(super) Whole);

        impl Resource for $name {
            fn kind() -> Kind {
                $kind
            }

            fn metadata(&self) -> &Metadata {
                &self.0.metadata
            }

            fn metadata_mut(&mut self) -> &mut Metadata {
                &mut self.0.metadata
            }
        }
    };
}

whole!(
    DaemonSet,
    Kind::new("apps", "v1", "DaemonSet", "daemonsets", true)
);
whole!(
    Deployment,
    Kind::new("apps", "v1", "Deployment", "deployments", true)
);
whole!(Job, Kind::new("batch", "v1", "Job", "jobs", true));
whole!(CronJob, Kind::new("batch", "v1", "CronJob", "cronjobs", true));
whole!(Node, Kind::new("", "v1", "Node", "nodes", false));
whole!(Pod, Kind::POD);

impl Pod {
    pub(super) fn is_deleting(&self) -> bool {
        is_deleting(&self.0.value)
    }

    pub(super) fn is_unscheduled(&self) -> bool {
        text(&self.0.value, "/spec/nodeName").is_empty() && !self.is_deleting()
    }

    /// The workload that it belongs to.
    pub(super) fn owner(&self) -> Option<Key> {
        let mut owners = list(&self.0.value, "/metadata/ownerReferences").iter();
        let owner = owners.find(|owner| flag(owner, "/controller"))?;
        let what = match text(owner, "/kind") {
            "DaemonSet" => What::DaemonSet,
            "Deployment" => What::Deployment,
            "Job" => What::Job,
            _ => return None,
        };
        let key = ObjectKey {
            namespace: text(&self.0.value, "/metadata/namespace").into(),
            name: text(owner, "/name").into(),
        };
        Some(Key(what, key))
    }
}
