// SPDX-License-Identifier: Apache-2.0

//! Row of `identities`.

use std::fmt;
use std::sync::Arc;

use compact_str::CompactString;
use jiff::Timestamp;
use serde_json::{Value, json};
use skep_identity::{Label, Labels, NumericIdentity, Reserved};
use statedb::row::BoxError;
use statedb::{Db, Index, Row, RwTable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentitySource {
    Reserved,
    /// A CiliumIdentity of the own cluster.
    Kubernetes,
    /// The key-value store of the own cluster.
    KvStore,
    ClusterMesh,
    /// This node: networks, DNS names.
    Local,
}

impl fmt::Display for IdentitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reserved => "reserved",
            Self::Kubernetes => "k8s",
            Self::KvStore => "kvstore",
            Self::ClusterMesh => "clustermesh",
            Self::Local => "local",
        })
    }
}

/// What a CiliumIdentity says besides labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectFacts {
    pub created: Option<Timestamp>,
    /// Whether the operator found it unused, and is going to delete it.
    pub is_marked: bool,
}

/// Row of `identities`: a security identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityIdentity {
    pub id: NumericIdentity,
    pub source: IdentitySource,
    /// The remote cluster that allocated it; empty for the own cluster and for reserved identities.
    pub cluster: CompactString,
    pub labels: Arc<Labels>,
    pub object: ObjectFacts,
}

impl SecurityIdentity {
    pub const BY_ID: Index<Self, u32> = Index::new("id", |row, keys| keys.add(&row.id.get()));
    /// By labels: identities of one set of labels, in several clusters.
    pub const BY_LABELS: Index<Self, str> =
        Index::new("labels", |row, keys| keys.add(&row.labels.to_string()));

    /// An identity that is the same in every cluster.
    pub(crate) fn reserved(id: NumericIdentity, labels: Labels) -> Self {
        Self {
            id,
            source: IdentitySource::Reserved,
            cluster: CompactString::default(),
            labels: Arc::new(labels),
            object: ObjectFacts::default(),
        }
    }

    /// Labels as the API has them: `source:key=value` each, without `=` if the value is empty.
    pub fn label_texts(&self) -> Vec<String> {
        self.labels.iter().map(Label::to_string).collect()
    }
}

impl Row for SecurityIdentity {
    fn header() -> &'static [&'static str] {
        &["ID", "Source", "Cluster", "Labels"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.source.to_string(),
            self.cluster.to_string(),
            self.labels.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "ID": self.id.get(), "Source": self.source.to_string(), "Cluster": self.cluster.as_str(),
            "Labels": self.labels.to_string(),
        }))
    }
}

/// The table, with the reserved identities.
pub(crate) fn with_reserved(db: &Db) -> Result<RwTable<SecurityIdentity>, statedb::Error> {
    let table = RwTable::builder("identities")
        .primary(SecurityIdentity::BY_ID)
        .index(SecurityIdentity::BY_LABELS)
        .build(db)?;
    let mut txn = db.write(&[&table]);
    for reserved in Reserved::ALL {
        // The number is that of a node that runs the API server.
        let node = (reserved == Reserved::KubeApiserver).then_some(Reserved::RemoteNode);
        let labels: Labels = [Some(reserved), node]
            .into_iter()
            .flatten()
            .map(Label::from)
            .collect();
        table.insert(&mut txn, SecurityIdentity::reserved(reserved.identity(), labels))?;
    }
    txn.commit();
    Ok(table)
}
