// SPDX-License-Identifier: Apache-2.0

//! Events expire.

use std::time::Duration;

use serde_json::{Value, json};
use skep_k8s_memory::testing::api_server;
use skep_k8s_memory::{ApiServer, ListOptions, Patch, Subresource, WatchKind, WriteOptions};
use tokio::time::advance;

use super::support::{core, create, names};

const HOUR: Duration = Duration::from_secs(60 * 60);

fn event(name: &str) -> Value {
    let about = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default" });
    json!({ "metadata": { "name": name }, "involvedObject": about, "reason": "Started" })
}

fn events(api: &ApiServer) -> Vec<String> {
    names(api, "events", "default")
}

#[tokio::test(start_paused = true)]
async fn events_go_an_hour_after_they_were_written_last() {
    let api = api_server();
    for name in ["old", "repeated"] {
        create(&api, "events", event(name)).unwrap();
    }
    let mut watch = api.watch(&core("events"), None, &ListOptions::default()).unwrap();
    advance(HOUR / 2).await;
    let patch = Patch::Merge(json!({ "count": 2 }));
    let options = WriteOptions::default();
    api.patch(
        &core("events"),
        "default",
        "repeated",
        Subresource::None,
        &patch,
        &options,
    )
    .unwrap();
    advance(HOUR / 2 - Duration::from_secs(1)).await;
    api.expire_events();
    assert_eq!(events(&api), ["old", "repeated"]);

    advance(Duration::from_secs(2)).await;
    api.expire_events();

    assert_eq!(events(&api), ["repeated"]);
    let deleted = loop {
        let event = watch.next().await.unwrap();
        if event.kind == WatchKind::Deleted {
            break event;
        }
    };
    assert_eq!(deleted.object["metadata"]["name"], "old");
    // A new one takes the old one's place without anybody asking.
    advance(HOUR).await;
    create(&api, "events", event("new")).unwrap();
    assert_eq!(events(&api), ["new"]);
}
