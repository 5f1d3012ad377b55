// SPDX-License-Identifier: Apache-2.0

//! Labels that have no reserved identity.

use skep_identity::Labels;
use skep_identity_cache::{LocalIdentities, SecurityIdentity};
use statedb::Table;

use super::*;
use crate::local::LabelIdentities;

struct Node {
    writer: Writer,
    db: Db,
    identities: Table<SecurityIdentity>,
}

fn node(map: Option<IpcacheMap>) -> Node {
    let db = Db::new();
    let (identities, table) = LocalIdentities::with_table(&db).unwrap();
    let writer = Writer::with_table(&db).unwrap();
    let labels = LabelIdentities::new(writer.table(), identities, map.map(Arc::new), true);
    Node {
        writer: writer.with_identities(labels),
        db,
        identities: table,
    }
}

fn labels(name: &str, text: &str) -> Claim {
    let labels: Labels = text.parse().unwrap();
    Claim::labels(owner(Source::Generated, name), labels)
}

impl Node {
    fn upsert(&self, text: &str, claim: Claim) {
        let mut txn = self.writer.write();
        self.writer.upsert(&mut txn, prefix(text), claim).unwrap();
        txn.commit();
    }

    fn delete(&self, text: &str, owner: &Owner) {
        let mut txn = self.writer.write();
        assert!(self.writer.delete(&mut txn, prefix(text), owner).unwrap());
        txn.commit();
    }

    fn id(&self, text: &str) -> Option<u32> {
        let snapshot = self.db.read();
        let table = self.writer.table();
        let row = table.get(&snapshot, IpcacheEntry::BY_PREFIX.key(&prefix(text)))?;
        Some(row.resolve()?.identity.get())
    }

    /// The labels of the identity of a prefix.
    fn labels(&self, text: &str) -> String {
        let id = self.id(text).unwrap();
        let snapshot = self.db.read();
        let row = self.identities.get(&snapshot, SecurityIdentity::BY_ID.key(&id));
        row.unwrap().label_texts().join(" ")
    }
}

#[test]
fn an_api_server_outside_of_the_cluster_has_an_identity_of_this_node() {
    let node = node(None);
    let api = label(Source::KubeApiserver, "api", Reserved::KubeApiserver);

    node.upsert("172.30.1.9", api.clone());
    assert_eq!(
        node.labels("172.30.1.9"),
        "reserved:kube-apiserver reserved:world-ipv4"
    );
    node.upsert("172.30.1.9", number(Source::CustomResource, "pod", 52_311));
    assert_eq!(node.id("172.30.1.9"), Some(52_311));
    node.delete("172.30.1.9", &owner(Source::CustomResource, "pod"));
    node.upsert(
        "172.30.1.9",
        label(Source::CustomResource, "n2", Reserved::RemoteNode),
    );

    assert_eq!(node.id("172.30.1.9"), Some(7));
}

#[test]
fn prefixes_inherit_the_labels_of_networks_around_them() {
    let node = node(None);
    node.upsert("10.1.1.1", labels("dns", "fqdn:example.com;"));
    node.upsert("10.0.0.0/8", labels("cnp", "cidr:10.0.0.0/8;cidrgroup:lan=;"));
    assert_eq!(
        node.labels("10.1.1.1"),
        "cidr:10.0.0.0/8 fqdn:example.com cidrgroup:lan reserved:world-ipv4"
    );

    node.upsert("10.1.0.0/16", labels("cnp", "cidr:10.1.0.0/16;"));
    let narrow = "cidr:10.1.0.0/16 fqdn:example.com cidrgroup:lan reserved:world-ipv4";
    assert_eq!(node.labels("10.1.1.1"), narrow);
    assert_eq!(
        node.labels("10.1.0.0/16"),
        narrow.replace("fqdn:example.com ", "")
    );
    assert_eq!(node.id("10.2.0.0/16"), None);

    node.delete("10.0.0.0/8", &owner(Source::Generated, "cnp"));
    assert_eq!(
        node.labels("10.1.1.1"),
        "cidr:10.1.0.0/16 fqdn:example.com reserved:world-ipv4"
    );
}

#[test]
fn nodes_have_no_labels_of_networks_and_those_with_labels_have_identities() {
    let node = node(None);
    node.upsert("10.0.0.0/8", labels("cnp", "cidr:10.0.0.0/8;"));
    node.upsert(
        "10.0.0.2",
        label(Source::CustomResource, "n2", Reserved::RemoteNode),
    );
    node.upsert("10.0.0.2", labels("cnp", "cidr:10.0.0.2/32;reserved:world-ipv4;"));
    assert_eq!(node.id("10.0.0.2"), Some(6));

    node.upsert("10.0.0.2", labels("labels", "node:zone=a;"));

    assert_eq!(node.id("10.0.0.2"), Some(0x0200_0001));
    assert_eq!(node.labels("10.0.0.2"), "reserved:remote-node node:zone=a");
}

#[test]
fn prefixes_get_the_ids_that_their_entries_had_before_a_restart() {
    let map = IpcacheMap::in_memory(&IPCACHE.spec(&MapSizes::default())).unwrap();
    for (text, id) in [
        ("10.0.0.0/8", 0x0100_0007),
        ("10.9.0.0/16", 0x0100_0001),
        ("10.0.0.2", 6),
    ] {
        map.update(&prefix(text).map_key(), &IpcacheValue::new(id))
            .unwrap();
    }
    let node = node(Some(map));
    let guard = node.writer.register_source("test").unwrap();

    node.upsert("10.2.0.0/16", labels("cnp", "cidr:10.2.0.0/16;"));
    node.upsert("10.0.0.0/8", labels("cnp", "cidr:10.0.0.0/8;"));
    let ids = ["10.0.0.0/8", "10.2.0.0/16"].map(|text| node.id(text));
    assert_eq!(ids[0], Some(0x0100_0007));
    assert!(ids[1] > Some(0x0100_0001), "{ids:?}");

    let mut txn = node.writer.write();
    guard.done(&mut txn).unwrap();
    txn.commit();
    node.upsert("10.9.0.0/16", labels("cnp", "cidr:10.9.0.0/16;"));
    assert_ne!(node.id("10.9.0.0/16"), Some(0x0100_0001), "it was not claimed");
}
