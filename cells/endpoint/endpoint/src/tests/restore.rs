// SPDX-License-Identifier: Apache-2.0

//! Endpoints survive the agent.

use std::sync::Arc;

use skep_bpf_maps::endpoint::{LxcKey, LxcValue, lxc_flags};

use super::world::{ENDPOINT_ROUTES, World, spec};
use crate::{EndpointState, Phase, collect::Collector, state_dir::StateError};

#[tokio::test]
async fn endpoints_are_as_before_and_their_entries_are_not_touched() {
    let world = World::new();
    world.plug(7);
    let agent = world.start();
    let before = agent.ready(7).await;
    agent.end().await;
    let entries = world.maps.lxc.entries().unwrap();

    // The hook is asked for again, which changes nothing. No write reaches a map.
    world.budget.set(1);
    let agent = world.start();
    let after = agent.endpoints.wait_ready(before.id).await.unwrap();

    assert_eq!((&after.spec, after.identity), (&before.spec, before.identity));
    assert_eq!(after.phase, Phase::Restored);
    assert_eq!(world.maps.lxc.entries().unwrap(), entries);
    world.assert_nothing_dangles();
}

#[tokio::test]
async fn an_endpoint_whose_interface_is_gone_is_deleted() {
    let world = World::new();
    (7..=9).for_each(|number| world.plug(number));
    let agent = world.start();
    let (kept, gone) = (agent.ready(7).await.id, agent.ready(8).await.id);
    let other = agent.ready(9).await.id;
    agent.end().await;
    world.unplug(8);
    // An interface of the same name, but another one.
    let folder = world.folder.path().join(format!("state/{other}"));
    let text = std::fs::read_to_string(folder.join("ep_config.json")).unwrap();
    std::fs::write(
        folder.join("ep_config.json"),
        text.replace("\"IfIndex\":109", "\"IfIndex\":44"),
    )
    .unwrap();

    let agent = world.start();
    agent.endpoints.wait_ready(kept).await.unwrap();
    agent.settle().await;
    agent.remove_disconnected().await;

    assert_eq!(world.files().ids().unwrap(), [kept]);
    assert!(agent.get(gone).is_none() && agent.get(other).is_none());
    assert_eq!(world.delivered().len(), 2);
}

#[tokio::test]
async fn corrupt_files_are_reported_and_moved_aside_and_others_restored() {
    let world = World::new();
    world.plug(7);
    world.plug(8);
    let agent = world.start();
    let (id, other) = (agent.ready(7).await.id, agent.ready(8).await.id);
    agent.end().await;
    let state = world.folder.path().join("state");
    let file = state.join(format!("{id}/ep_config.json"));
    std::fs::write(&file, "{\"ID\": ").unwrap();

    let agent = world.boot();
    let errors = agent.restore();
    agent.endpoints.wait_ready(other).await.unwrap();
    agent.prune().await;

    assert!(matches!(&errors[..], [StateError::Json { path, .. }] if *path == file));
    let aside = state.join(format!("{id}_corrupt/ep_config.json"));
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "{\"ID\": ");
    assert_eq!(world.files().ids().unwrap(), [other]);
    assert_eq!(world.is_delivered("10.0.1.7"), None);
    assert_eq!(world.is_delivered("10.0.1.8"), Some(other));
    world.assert_nothing_dangles();
}

#[test]
fn of_interrupted_builds_the_last_whole_directory_counts() {
    let world = World::new();
    let state = world.folder.path().join("state");
    let write = |folder: &str, id: u16| {
        std::fs::create_dir_all(state.join(folder)).unwrap();
        let text = format!(r#"{{"ID": {id}, "IfName": "{folder}", "IfIndex": 4}}"#);
        std::fs::write(state.join(folder).join("ep_config.json"), text).unwrap();
    };
    for (folder, id) in [("5", 5), ("5_next", 5), ("6_next", 6), ("7_next_fail", 7)] {
        write(folder, id);
    }
    std::fs::create_dir(state.join("8_next")).unwrap();
    // An agent was killed while it wrote the file.
    std::fs::create_dir(state.join("9")).unwrap();
    std::fs::write(state.join("9/ep_config.json.tmp"), "{").unwrap();
    std::fs::create_dir(state.join("templates")).unwrap();

    let (found, errors) = world.files().read_all().unwrap();

    assert!(errors.is_empty(), "{errors:?}");
    let found: Vec<_> = found
        .iter()
        .map(|saved| (saved.id, saved.spec.interface.as_str()))
        .collect();
    assert_eq!(found, [(5, "5"), (6, "6_next"), (7, "7_next_fail")]);
    let mut names: Vec<_> = std::fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["5", "6", "7", "templates"]);
}

#[tokio::test]
async fn entries_of_endpoints_that_are_gone_are_removed_when_all_are_restored() {
    let world = World::new();
    let value = |endpoint, flags| LxcValue {
        endpoint,
        flags,
        ..LxcValue::default()
    };
    let key = |text: &str| LxcKey::new(text.parse().unwrap());
    world.maps.lxc.update(&key("10.0.1.9"), &value(9, 0)).unwrap();
    world
        .maps
        .lxc
        .update(&key("10.0.1.1"), &value(0, lxc_flags::HOST))
        .unwrap();
    world.maps.policies.open(9).unwrap();

    let agent = world.boot();
    agent.settle().await;
    assert_eq!(world.delivered().len(), 2, "not before the restore");
    assert!(agent.restore().is_empty());
    agent.prune().await;

    assert_eq!(world.delivered().into_keys().collect::<Vec<_>>(), ["10.0.1.1"]);
    assert!(world.maps.policies.instances().unwrap().is_empty());
}

#[tokio::test]
async fn an_interface_that_two_looks_miss_ends_its_endpoint() {
    let world = World::new();
    (7..=8).for_each(|number| world.plug(number));
    let agent = world.start();
    let (kept, gone) = (agent.ready(7).await.id, agent.ready(8).await.id);
    let collector = Collector::new(agent.endpoints.clone(), world.interfaces.clone());
    let state = |id| agent.get(id).map(|row| row.state());

    world.unplug(8);
    collector.look().unwrap();
    assert_eq!(state(gone), Some(EndpointState::Ready));
    collector.look().unwrap();

    assert_eq!(state(kept), Some(EndpointState::Ready));
    assert_ne!(state(gone), Some(EndpointState::Ready));
}

#[test]
fn a_file_of_cilium_is_read() {
    let world = World::new();
    let folder = world.folder.path().join("state/417");
    std::fs::create_dir_all(&folder).unwrap();
    let text = r#"{
        "ID": 417, "dockerID": "6f1c", "ContainerNetnsPath": "/var/run/cilium/netns/cni-1", "IfName": "lxc7d0b1b2f3c4a",
        "IfIndex": 42, "ParentIfIndex": 0, "ContainerIfName": "eth0", "DisableLegacyIdentifiers": false,
        "OpLabels": {"Custom": {}, "OrchestrationIdentity": {"app": {"key": "app", "value": "cart", "source": "k8s"}},
            "Disabled": {}, "OrchestrationInfo": {}},
        "LXCMAC": "6a:0b:00:11:22:33", "IPv6": "", "IPv4": "10.0.1.23", "NodeMAC": "f2:33:00:11:22:33",
        "SecLabel": {"id": 52310, "labels": {"app": {"key": "app", "value": "cart", "source": "k8s"}}},
        "Options": {"map": {}}, "K8sPodName": "cart-0", "K8sNamespace": "shop", "K8sUID": "2b9e",
        "DatapathConfiguration": {}, "Properties": {"property-skip-masquerade-v4": true}, "NetnsCookie": 4211}"#;
    std::fs::write(folder.join("ep_config.json"), text).unwrap();

    let (found, errors) = world.files().read_all().unwrap();

    assert!(errors.is_empty(), "{errors:?}");
    let [saved] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (saved.id, saved.identity.map(|identity| identity.get())),
        (417, Some(52_310))
    );
    assert_eq!(saved.labels.identity.to_string(), "k8s:app=cart;");
    assert!(saved.spec.labels.is_empty(), "they are the pod's");
    assert_eq!(
        (saved.spec.netns_cookie, saved.spec.skip_masquerade4),
        (4211, true)
    );
    assert_eq!(saved.spec.pod_name().unwrap(), "shop/cart-0");
}

#[test]
fn what_is_written_is_read_again() {
    let world = World::new();
    let row = crate::Endpoint {
        id: 7,
        spec: Arc::new(spec(7)),
        ..crate::Endpoint::default()
    };

    let effective = ENDPOINT_ROUTES.effective(row.spec.datapath);
    world.files().save(&row, effective).unwrap();

    let (found, _) = world.files().read_all().unwrap();
    assert_eq!((&found[0].spec, found[0].identity), (&*row.spec, None));
    assert_eq!(found[0].effective, effective);
}

/// Directories of six pods, of the host and of the health responder.
#[test]
fn directories_of_cilium_are_read_and_written_as_they_are() {
    let world = World::new();
    let recorded: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../../testdata/states.json")).unwrap();
    let path = |id: &serde_json::Value| world.folder.path().join(format!("state/{id}/ep_config.json"));
    for state in &recorded {
        let path = path(&state["ID"]);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, state.to_string()).unwrap();
    }

    let (found, errors) = world.files().read_all().unwrap();

    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(found.len(), recorded.len());
    for saved in found {
        let state = recorded.iter().find(|state| state["ID"] == saved.id).unwrap();
        let mut row = crate::Endpoint {
            id: saved.id,
            spec: Arc::new(saved.spec),
            labels: Arc::new(saved.labels),
            identity: saved.identity,
            identity_labels: Arc::new(saved.identity_labels),
            options: Arc::new(saved.options),
            ..crate::Endpoint::default()
        };
        // So that it is written.
        world.files().save(&row, saved.effective).unwrap();
        row.cilium_endpoint_uid = saved.cilium_endpoint_uid;
        world.files().save(&row, saved.effective).unwrap();
        let text = std::fs::read_to_string(path(&state["ID"])).unwrap();
        let mut written: serde_json::Value = serde_json::from_str(&text).unwrap();
        let own = ["RequestedDatapathConfiguration", "RequestedLabels"];
        _ = own.map(|key| written.as_object_mut().unwrap().remove(key));
        assert_eq!(&written, state);
    }
}
