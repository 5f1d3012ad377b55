// SPDX-License-Identifier: Apache-2.0

//! What the API answers.

use std::sync::Arc;

use serde_json::{Value, json, to_value};
use skep_identity::{NumericIdentity, Reserved};
use statedb::Db;

use crate::api::Identities;
use crate::table::{self, IdentitySource, ObjectFacts, SecurityIdentity};
use crate::writer::Writer;

struct World {
    writer: Writer,
    api: Identities,
}

fn world() -> World {
    let db = Db::new();
    let table = table::with_reserved(&db).unwrap();
    World {
        api: Identities {
            db: db.clone(),
            table: table.reader(),
        },
        writer: Writer::new(db, table),
    }
}

fn row(id: u32, source: IdentitySource, labels: &str) -> SecurityIdentity {
    SecurityIdentity {
        id: NumericIdentity::new(id),
        source,
        cluster: "".into(),
        labels: Arc::new(labels.parse().unwrap()),
        object: ObjectFacts::default(),
    }
}

impl World {
    fn write(&self, row: SecurityIdentity) -> bool {
        let mut txn = self.writer.write();
        let is_written = self.writer.upsert(&mut txn, row).unwrap();
        txn.commit();
        is_written
    }

    fn delete(&self, source: IdentitySource, id: u32) {
        let mut txn = self.writer.write();
        self.writer
            .delete(&mut txn, source, NumericIdentity::new(id))
            .unwrap();
        txn.commit();
    }

    /// The answer to `GET /v1/identity/{id}`.
    fn get(&self, id: &str) -> Value {
        match self.api.by_id(id) {
            Ok(identity) => to_value(identity).unwrap(),
            Err(error) => error.to_string().into(),
        }
    }

    /// The numbers of the identities with some labels.
    fn with_labels(&self, labels: &[&str]) -> Result<Vec<u32>, String> {
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        let rows = self.api.with_labels(&labels).map_err(|error| error.to_string())?;
        Ok(rows.iter().map(|row| row.id.get()).collect())
    }
}

#[test]
fn reserved_identities_are_always_known() {
    let world = world();

    let ids: Vec<u32> = world.api.all().iter().map(|row| row.id.get()).collect();

    assert_eq!(ids, (1..=10).collect::<Vec<_>>());
    assert_eq!(world.get("1"), json!({"id": 1, "labels": ["reserved:host"]}));
    assert_eq!(
        world.get("7"),
        json!({"id": 7, "labels": ["reserved:kube-apiserver", "reserved:remote-node"]})
    );
    assert_eq!(world.with_labels(&["reserved:world"]), Ok(vec![2]));
    assert_eq!(Reserved::ALL.len(), ids.len());
}

#[test]
fn an_identity_is_found_by_its_number_and_by_all_its_labels() {
    let world = world();
    world.write(row(52_310, IdentitySource::Kubernetes, "k8s:app=cart;k8s:tier=;"));
    world.write(row(
        458_752,
        IdentitySource::ClusterMesh,
        "k8s:app=cart;k8s:tier=;",
    ));

    assert_eq!(
        world.get("52310"),
        json!({"id": 52_310, "labels": ["k8s:app=cart", "k8s:tier"]})
    );
    assert_eq!(
        world.with_labels(&["k8s:tier=", "k8s:app=cart"]),
        Ok(vec![52_310, 458_752])
    );
    assert_eq!(
        world.with_labels(&["k8s:app=cart"]),
        Err("no identity with the labels k8s:app=cart".to_owned())
    );
    assert_eq!(
        world.with_labels(&["k8s:=x"]),
        Err("parsing labels body from \"\" failed, because label `k8s:=x` has no key".to_owned())
    );
    assert_eq!(world.get("52311"), "no identity 52311");
    assert_eq!(world.get("x"), "`x` is not an identity");
    assert_eq!(world.get("0"), json!({"id": 0, "labels": ["reserved:unknown"]}));
}

#[test]
fn labels_are_sorted_by_key() {
    let world = world();
    world.write(row(300, IdentitySource::Kubernetes, "gen:b=1;k8s:a=2;k8s:c=;"));

    assert_eq!(world.get("300")["labels"], json!(["k8s:a=2", "gen:b=1", "k8s:c"]));
}

#[test]
fn an_identity_that_may_be_listed_later_is_not_reported_missing() {
    let world = world();
    let guard = world.writer.register_source("k8s").unwrap();
    assert_eq!(
        world.get("52310"),
        "no identity 52310 is known, and those of k8s have not been listed yet"
    );
    assert_eq!(world.get("1")["id"], 1);

    let mut txn = world.writer.write();
    world.writer.done(&mut txn, &guard).unwrap();
    txn.commit();

    assert_eq!(world.get("52310"), "no identity 52310");
}

#[test]
fn a_source_changes_only_what_is_its_own() {
    let world = world();
    assert!(!world.write(row(1, IdentitySource::KvStore, "k8s:app=evil;")));
    assert!(!world.write(row(200, IdentitySource::KvStore, "k8s:app=evil;")));
    assert!(world.write(row(458_752, IdentitySource::ClusterMesh, "k8s:app=web;")));
    assert!(!world.write(row(458_752, IdentitySource::KvStore, "k8s:app=evil;")));
    world.delete(IdentitySource::KvStore, 458_752);
    world.delete(IdentitySource::Kubernetes, 2);
    assert_eq!(world.get("458752")["labels"], json!(["k8s:app=web"]));
    assert_eq!(world.get("2")["id"], 2);

    world.delete(IdentitySource::ClusterMesh, 458_752);

    assert_eq!(world.get("458752"), "no identity 458752");
}
