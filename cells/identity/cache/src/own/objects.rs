// SPDX-License-Identifier: Apache-2.0

//! CiliumIdentities → table `identities`.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use skep_identity::{LabelError, Labels, NumericIdentity};
use skep_k8s_reflectors::{Rejected, Sink, State};
use skep_k8s_types::slim::{CiliumIdentity, CreatedMetadata, Labels as Pairs, Metadata, Str};
use skep_k8s_types::{Kind, ObjectKey, Resource};
use statedb::WriteTxn;

use super::{IdentityChange, Source};
use crate::table::ObjectFacts;

/// A CiliumIdentity with the time of its creation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct IdentityObject {
    metadata: CreatedMetadata,
    security_labels: Option<Pairs>,
}

impl Resource for IdentityObject {
    fn kind() -> Kind {
        CiliumIdentity::kind()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata.common
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata.common
    }
}

/// Why an object has no identity: fix or delete it. Its last valid state stays.
#[derive(Debug, thiserror::Error)]
enum InvalidIdentity {
    /// Its name is not a number.
    #[error("CiliumIdentity {0}: the name must be a decimal number without leading zeros")]
    Name(Str),
    #[error("CiliumIdentity {name}")]
    Label {
        name: Str,
        #[source]
        cause: LabelError,
    },
}

/// Writes the identities of objects.
pub(super) struct Objects {
    source: Source,
    ids: HashMap<ObjectKey, NumericIdentity>,
}

impl Objects {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            ids: HashMap::new(),
        }
    }
}

fn identity(object: &IdentityObject) -> Result<(NumericIdentity, Labels), InvalidIdentity> {
    let name = &object.metadata().name;
    let id = CiliumIdentity::id_of(name).ok_or_else(|| InvalidIdentity::Name(name.clone()))?;
    let pairs = object.security_labels.iter().flat_map(Pairs::iter);
    let labels = Labels::from_pairs(pairs).map_err(|cause| InvalidIdentity::Label {
        name: name.clone(),
        cause,
    })?;
    Ok((NumericIdentity::new(id), labels))
}

impl Sink<IdentityObject> for Objects {
    fn write(&mut self) -> WriteTxn {
        self.source.writer.write()
    }

    fn apply(
        &mut self,
        txn: &mut WriteTxn,
        key: &ObjectKey,
        state: State<'_, IdentityObject>,
    ) -> Result<Option<Rejected>, statedb::Error> {
        let State::Applied(object) = state else {
            if let Some(id) = self.ids.remove(key) {
                self.source.apply(txn, IdentityChange::Delete(id))?;
            }
            return Ok(None);
        };
        let (id, labels) = match identity(object) {
            Ok(identity) => identity,
            Err(error) => return Ok(Some(Rejected::new(&error))),
        };
        let facts = ObjectFacts {
            created: object.metadata.creation_timestamp,
            is_marked: object
                .metadata()
                .annotations
                .contains_key(CiliumIdentity::HEARTBEAT),
        };
        self.ids.insert(key.clone(), id);
        self.source
            .apply(txn, IdentityChange::Upsert(id, Arc::new(labels), facts))?;
        Ok(None)
    }

    fn objects(&self) -> Vec<ObjectKey> {
        self.ids.keys().cloned().collect()
    }

    fn listed(&mut self, txn: &mut WriteTxn) -> Result<(), statedb::Error> {
        self.source.apply(txn, IdentityChange::Synced)
    }

    fn summary(&self) -> String {
        format!("{} identities", self.ids.len())
    }
}
