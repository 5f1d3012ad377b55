// SPDX-License-Identifier: Apache-2.0

//! Endpoints come and go.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use skep_bpf_maps::{
    endpoint::{LxcKey, endpoint_flags, events},
    text::Text as _,
};
use skep_identity::{Labels, NumericIdentity, Reserved};
use skep_policy_maps::{AllowAll, Desired, MapStates};

use super::world::{World, spec};
use crate::{CreateError, EndpointSpec, EndpointState, Endpoints, Identifier, Mac, WaitError};

#[tokio::test]
async fn a_new_endpoint_is_in_file_maps_and_hooks() {
    let world = World::new();
    world.plug(7);
    let agent = world.start();

    let row = agent.ready(7).await;

    assert_eq!(world.is_delivered("10.0.1.7"), Some(row.id));
    assert_eq!(world.is_delivered("fd00::7"), Some(row.id));
    assert_eq!(world.hooks.attached()[&row.id], "lxc7");
    assert_eq!(world.files().ids().unwrap(), [row.id]);
    let facts = world.maps.facts.lookup(&107).unwrap().unwrap();
    assert_eq!(
        (facts.id, facts.identity, facts.mac),
        (row.id, 5, [2, 0, 0, 0, 1, 7])
    );
    let open = endpoint_flags::VERIFY_SOURCE | endpoint_flags::OPEN_INGRESS | endpoint_flags::OPEN_EGRESS;
    assert_eq!(facts.flags, open);
    let value = world.maps.lxc.entries().unwrap()[0].1;
    assert_eq!(
        value.text(),
        format!(
            "id={:<5} sec_id=5     flags=0x0000 ifindex=107 mac=02:00:00:00:00:07 nodemac=02:00:00:00:01:07 \
             parent_ifindex=0   rt_info:0",
            row.id
        )
    );
    assert!(world.maps.policies.instances().unwrap().contains(&row.id));
    world.assert_nothing_dangles();
}

/// Allows everything until it is told to allow nothing.
#[derive(Debug, Default)]
struct Switch(AllowAll, AtomicBool);

impl MapStates for Switch {
    fn desired(&self, endpoint: u16, identity: NumericIdentity) -> Option<Desired> {
        let nothing = Desired {
            state: Arc::default(),
            enforced: 3,
            revision: 2,
        };
        match self.1.load(Ordering::SeqCst) {
            true => Some(nothing),
            false => self.0.desired(endpoint, identity),
        }
    }

    fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.changes()
    }
}

#[tokio::test]
async fn programs_look_a_policy_up_when_it_is_in_its_map() {
    let switch = Arc::new(Switch::default());
    let world = World {
        source: switch.clone(),
        ..World::new()
    };
    world.plug(7);
    let agent = world.start();
    let id = agent.ready(7).await.id;

    switch.1.store(true, Ordering::SeqCst);
    agent.policies.request([(id, NumericIdentity::INIT)]).unwrap();
    agent.settle().await;

    let row = agent.endpoints.wait_ready(id).await.unwrap();
    assert_eq!(
        row.policy.map(|policy| (policy.revision, policy.open)),
        Some((2, 0))
    );
    let facts = world.maps.facts.lookup(&107).unwrap().unwrap();
    assert_eq!((facts.flags, facts.verdicts), (endpoint_flags::VERIFY_SOURCE, 3));
    let map = world.maps.policies.open(id).unwrap();
    assert!(map.entries().unwrap().is_empty());

    let (audit, verdicts) = (
        "PolicyAuditMode".to_owned(),
        "PolicyVerdictNotification".to_owned(),
    );
    let (on, off) = ("Enabled".to_owned(), "Disabled".to_owned());
    let options = row.options.with([(&audit, &on), (&verdicts, &off)]).unwrap();
    agent.endpoints.set_options(id, options).unwrap();
    agent.settle().await;

    let facts = world.maps.facts.lookup(&107).unwrap().unwrap();
    let audited = endpoint_flags::VERIFY_SOURCE | endpoint_flags::AUDIT;
    assert_eq!((facts.flags, facts.verdicts), (audited, 0));
}

#[tokio::test]
async fn events_are_those_of_the_options_of_endpoint_and_agent() {
    let world = World::new();
    world.plug(7);
    world.plug(8);
    let agent = world.start();
    let row = agent.ready(7).await;
    let bits = |number: u8| {
        let facts = world
            .maps
            .facts
            .lookup(&(100 + u32::from(number)))
            .unwrap()
            .unwrap();
        let key = LxcKey::new(format!("10.0.1.{number}").parse().unwrap());
        let delivered = world.maps.lxc.lookup(&key).unwrap().unwrap();
        assert_eq!(facts.events, delivered.events);
        facts.events
    };
    let default = events::SET | events::DROPS | events::TRACES | events::VERDICTS;
    assert_eq!(bits(7), default);

    let (debug, on) = ("Debug".to_owned(), "Enabled".to_owned());
    let options = row.options.with([(&debug, &on)]).unwrap();
    agent.endpoints.set_options(row.id, options).unwrap();
    agent.settle().await;
    assert_eq!(bits(7), default | events::DEBUG);

    // Endpoints do not have the last one.
    let changes = [
        ("tracenotification", "Disabled"),
        ("MonitorAggregationLevel", "Medium"),
        ("PolicyTracing", "Enabled"),
    ];
    let changes = changes.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let has_host = agent.endpoints.override_options(&changes.into()).unwrap();
    agent.settle().await;
    let changed = events::SET | events::DROPS | events::VERDICTS | 3 << events::LEVEL_SHIFT;
    assert!(!has_host);
    assert_eq!(bits(7), changed | events::DEBUG);
    agent.ready(8).await;
    assert_eq!(bits(8), changed);
}

#[tokio::test]
async fn the_node_has_a_policy_with_the_host_firewall_alone() {
    let world = World::new();
    let agent = world.start();
    let set = |endpoints: &Endpoints| {
        let labels = Labels::from_iter([Reserved::Host.into()]);
        endpoints.set_host(9, Mac([2, 0, 0, 0, 0, 9]), labels).unwrap();
    };

    set(&agent.endpoints);
    agent.settle().await;
    assert_eq!(world.maps.facts.lookup(&9).unwrap(), None);
    set(&agent.endpoints.clone().with_host_firewall(true));
    agent.settle().await;

    let facts = world.maps.facts.lookup(&9).unwrap().unwrap();
    assert_eq!(facts.identity, 1);
    let map = world.maps.policies.open(facts.id).unwrap();
    assert_eq!(map.entries().unwrap().len(), 2);
}

#[tokio::test]
async fn nothing_is_left_of_a_deleted_endpoint() {
    let world = World::new();
    world.plug(7);
    let agent = world.start();
    let row = agent.ready(7).await;

    agent.delete(row.id).await;

    world.assert_empty();
    assert!(agent.get(row.id).is_none());
    assert!(!agent.endpoints.disconnect(row.id).unwrap());
    assert_eq!(
        agent.endpoints.wait_ready(row.id).await,
        Err(WaitError::Gone { id: row.id })
    );
}

#[tokio::test]
async fn without_an_identity_an_endpoint_waits() {
    let world = World::new();
    world.plug(7);
    let agent = world.start();

    let row = agent.endpoints.create(spec(7), Some(77), None).unwrap();
    agent.settle().await;

    assert_eq!((row.id, row.state()), (77, EndpointState::WaitingForIdentity));
    assert_eq!(world.is_delivered("10.0.1.7"), None);
    assert!(
        agent
            .endpoints
            .set_identity(77, NumericIdentity::new(52_310))
            .unwrap()
    );
    agent.endpoints.wait_ready(77).await.unwrap();
    assert_eq!(world.maps.facts.lookup(&107).unwrap().unwrap().identity, 52_310);
    assert!(!agent.endpoints.set_identity(78, NumericIdentity::INIT).unwrap());
}

#[tokio::test]
async fn what_another_endpoint_has_is_refused_by_name() {
    let world = World::new();
    world.plug(7);
    let agent = world.start();
    let id = agent.ready(7).await.id;
    let refused = |spec: EndpointSpec, id| agent.endpoints.create(spec, id, None).unwrap_err().to_string();
    let other = |change: fn(&mut EndpointSpec)| {
        let mut other = spec(8);
        change(&mut other);
        other
    };

    assert_eq!(
        refused(other(|spec| spec.interface = "lxc7".into()), None),
        format!("interface lxc7 is in use by endpoint {id} (ready)")
    );
    let same_v4 = other(|spec| spec.ipv4 = Some([10, 0, 1, 7].into()));
    assert_eq!(refused(same_v4, None), "IP ipv4:10.0.1.7 is already in use");
    let same_v6 = other(|spec| spec.ipv6 = "fd00::7".parse().ok());
    assert_eq!(refused(same_v6, None), "IP ipv6:fd00::7 is already in use");
    let attached = other(|spec| spec.container_id = "container7".into());
    assert_eq!(
        refused(attached, None),
        "endpoint for CNI attachment ID container7:eth0 already exists"
    );
    assert_eq!(
        refused(spec(8), Some(id)),
        format!("endpoint ID {id} already exists")
    );
    assert_eq!(
        refused(spec(8), Some(65_535)),
        "65535 is no id of an endpoint: they are 1 to 65534"
    );
    assert_eq!(
        refused(other(|spec| spec.ifindex = 0), None),
        "an endpoint needs the name and the index of its interface on the node"
    );
    assert_eq!(agent.endpoints.table().len(&agent.endpoints.db().read()), 1);
}

#[tokio::test]
async fn ids_are_not_given_twice_and_not_while_a_file_has_them() {
    let world = World::new();
    let agent = world.start();
    let folder = world.folder.path().join("state/9");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("ep_config.json"), "{").unwrap();

    let mut ids: Vec<u16> = (1..=200).map(|number| agent.create(number)).collect();
    ids.sort_unstable();
    ids.dedup();

    assert_eq!(ids.len(), 200);
    assert!(!ids.contains(&9));
    assert!(matches!(
        agent.endpoints.create(spec(201), Some(9), None),
        Err(CreateError::File { id: 9 })
    ));
}

#[tokio::test]
async fn endpoints_have_many_names() {
    let world = World::new();
    world.plug(7);
    let agent = world.start();
    let id = agent.ready(7).await.id;

    for name in [
        id.to_string(),
        format!("cilium-local:{id}"),
        "container-id:container7".to_owned(),
        "cni-attachment-id:container7:eth0".to_owned(),
        "pod-name:shop/cart-7".to_owned(),
        "cep-name:shop/cart-7".to_owned(),
        "ipv4:10.0.1.7".to_owned(),
        "ipv6:fd00::7".to_owned(),
    ] {
        let identifier: Identifier = name.parse().unwrap();
        let found = agent.endpoints.find(&agent.endpoints.db().read(), &identifier);
        assert_eq!(found.len(), 1, "{name}");
    }
    for (name, error) in [
        (
            "",
            "invalid numeric cilium id: strconv.ParseInt: parsing \"\": invalid syntax",
        ),
        (
            "x",
            "invalid numeric cilium id: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        ("70000", "endpoint id too large: 70000"),
        ("docker:1", "unknown endpoint ID prefix \"docker\""),
    ] {
        assert_eq!(name.parse::<Identifier>().unwrap_err().to_string(), error);
    }
    for name in [
        "ipv4:fd00::7",
        "ipv6:10.0.1.7",
        "pod-name:cart",
        "cni-attachment-id:container7",
    ] {
        let identifier: Identifier = name.parse().unwrap();
        let found = agent.endpoints.find(&agent.endpoints.db().read(), &identifier);
        assert_eq!(found, [], "{name}");
    }
}
