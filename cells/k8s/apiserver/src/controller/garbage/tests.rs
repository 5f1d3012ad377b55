// SPDX-License-Identifier: Apache-2.0

use hive::Hive;
use serde_json::{Value, json};
use skep_k8s_memory::Gvr;
use skep_k8s_memory::testing::api_server;

use super::*;

fn maps() -> Gvr {
    Gvr::new("", "v1", "configmaps")
}

struct Cluster {
    api: Arc<ApiServer>,
    running: hive::Running,
}

impl Cluster {
    async fn start() -> Self {
        let api = Arc::new(api_server());
        let given = api.clone();
        let cells = [
            Cell::module("api", "Server").provide(move || given.clone()),
            garbage_collector_cell(),
        ];
        let running = hive::testing::start(Hive::new(cells)).await;
        Cluster { api, running }
    }

    /// A config map owned by `owners`; returns what is stored.
    #[track_caller]
    fn make(&self, name: &str, owners: &[&Value], blocks: bool) -> Arc<Value> {
        let references: Vec<Value> = owners.iter().map(|owner| reference(owner, blocks)).collect();
        let map = json!({ "metadata": { "name": name, "ownerReferences": references } });
        let made = self.api.create(&maps(), "default", map, &WriteOptions::default());
        made.unwrap().object
    }

    fn get(&self, name: &str) -> Option<Arc<Value>> {
        self.api.get(&maps(), "default", name).ok()
    }

    #[track_caller]
    fn delete(&self, name: &str, propagation: Propagation) {
        let options = DeleteOptions {
            propagation: Some(propagation),
            ..DeleteOptions::default()
        };
        self.api.delete(&maps(), "default", name, &options).unwrap();
    }

    async fn until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let waiting = async {
            while !done(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), waiting)
            .await
            .is_err()
        {
            panic!("not in time: {what}");
        }
    }

    async fn end(self) {
        self.running.stop().await.unwrap();
    }
}

fn reference(owner: &Value, blocks: bool) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_what_a_deleted_object_owns_down_to_the_last() {
    let cluster = Cluster::start().await;
    let top = cluster.make("top", &[], false);
    let middle = cluster.make("middle", &[&top], false);
    cluster.make("bottom", &[&middle], false);
    cluster.make("stranger", &[], false);

    cluster.delete("top", Propagation::Background);
    assert!(cluster.get("top").is_none(), "goes at once");
    cluster
        .until("the end of the chain", |c| c.get("bottom").is_none())
        .await;

    assert!(cluster.get("middle").is_none());
    assert!(cluster.get("stranger").is_some());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_objects_while_one_owner_is_left_and_makes_them_forget_the_others() {
    let cluster = Cluster::start().await;
    let (first, second) = (
        cluster.make("first", &[], false),
        cluster.make("second", &[], false),
    );
    cluster.make("shared", &[&first, &second], false);

    cluster.delete("first", Propagation::Background);
    let one_left = |c: &Cluster| {
        c.get("shared")
            .is_some_and(|o| o["metadata"]["ownerReferences"].as_array().unwrap().len() == 1)
    };
    cluster.until("one reference", one_left).await;
    assert_eq!(
        cluster.get("shared").unwrap()["metadata"]["ownerReferences"][0]["name"],
        "second"
    );

    cluster.delete("second", Propagation::Background);
    cluster.until("the end", |c| c.get("shared").is_none()).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_deleted_in_the_foreground_wait_for_those_that_block_them() {
    let cluster = Cluster::start().await;
    let owner = cluster.make("owner", &[], false);
    cluster.make("loose", &[&owner], false);
    let held = json!({ "metadata": {
        "name": "held", "finalizers": ["example.com/hold"], "ownerReferences": [reference(&owner, true)],
    } });
    cluster
        .api
        .create(&maps(), "default", held, &WriteOptions::default())
        .unwrap();

    cluster.delete("owner", Propagation::Foreground);
    let held_terminates = |c: &Cluster| c.get("held").is_some_and(|o| object::is_terminating(&o));
    cluster.until("the dependent terminating", held_terminates).await;
    let waiting = cluster.get("owner").expect("it waits");
    assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));

    let release = Patch::Merge(json!({ "metadata": { "finalizers": [] } }));
    cluster
        .api
        .patch(
            &maps(),
            "default",
            "held",
            Subresource::None,
            &release,
            &WriteOptions::default(),
        )
        .unwrap();
    cluster
        .until("the end of all", |c| {
            c.get("owner").is_none() && c.get("loose").is_none()
        })
        .await;
    assert!(cluster.get("held").is_none());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_stay_and_forget_their_owner() {
    let cluster = Cluster::start().await;
    let owner = cluster.make("owner", &[], false);
    cluster.make("child", &[&owner], true);

    cluster.delete("owner", Propagation::Orphan);
    cluster
        .until("the end of the owner", |c| c.get("owner").is_none())
        .await;

    let child = cluster.get("child").expect("orphans stay");
    assert!(owners(&child).is_empty(), "{child}");
    cluster.end().await;
}
