// SPDX-License-Identifier: Apache-2.0

//! An agent that is killed before each single write of a reconciliation.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{cell::Cell, collections::BTreeMap, net::Ipv4Addr};

use serde_json::Value;
use skep_bpf_maps::lb::{Backend4, BackendKey, ReverseNat4, ReverseNatKey, Service4Key, ServiceValue};
use skep_bpf_sys::{MapStore, testing::Watched};
use skep_faults::{Agent, Api, Echo, Outcome, World, calls, on_node, service, slice};

/// Looks in a row that must find everything written before a reconciliation counts as done.
const QUIET: u32 = 50;

/// The IPv4 maps as they are.
struct Maps {
    services: BTreeMap<Service4Key, ServiceValue>,
    backends: BTreeMap<u32, Backend4>,
    reverse: usize,
}

impl Maps {
    fn read(world: &World) -> Outcome<Self> {
        let store = MapStore::new(&world.bpf_root);
        let services = store.open::<Service4Key, ServiceValue>("cilium_lb4_services_v2")?;
        let backends = store.open::<BackendKey, Backend4>("cilium_lb4_backends_v3")?;
        let reverse = store.open::<ReverseNatKey, ReverseNat4>("cilium_lb4_reverse_nat")?;
        Ok(Self {
            services: services.entries()?.into_iter().collect(),
            backends: backends
                .entries()?
                .into_iter()
                .map(|(key, backend)| (key.id, backend))
                .collect(),
            reverse: reverse.entries()?.len(),
        })
    }

    fn masters(&self) -> impl Iterator<Item = (&Service4Key, &ServiceValue)> {
        self.services
            .iter()
            .filter(|(key, _)| key.slot == 0 && key.port.get() != 0)
    }

    /// Every backend that a call may be sent to is there.
    #[track_caller]
    fn assert_nothing_dangles(&self, when: &str) {
        for (key, master) in self.masters() {
            for slot in 1..=master.count {
                let entry = self.services.get(&key.at(slot));
                let entry =
                    entry.unwrap_or_else(|| panic!("{when}: {key:?} has no slot {slot} of {}", master.count));
                assert!(
                    self.backends.contains_key(&entry.backend_id()),
                    "{when}: slot {slot} of {key:?} leads to backend {}, which is not there",
                    entry.backend_id()
                );
            }
        }
    }

    /// Backends' last octets by the service's last octet.
    fn served(&self) -> BTreeMap<u8, Vec<u8>> {
        self.masters()
            .map(|(key, master)| {
                let backends = (1..=master.count)
                    .filter_map(|slot| self.backends.get(&self.services.get(&key.at(slot))?.backend_id()))
                    .map(|backend| backend.address[3])
                    .collect();
                (key.address[3], backends)
            })
            .collect()
    }

    /// Ids by the service's last octet.
    fn ids(&self) -> BTreeMap<u8, u16> {
        self.masters()
            .map(|(key, master)| (key.address[3], master.rev_nat.get()))
            .collect()
    }
}

/// One TCP port only: every write counts.
fn tcp_only(mut object: Value) -> Value {
    let ports = if object["kind"] == "Service" {
        &mut object["spec"]["ports"]
    } else {
        &mut object["ports"]
    };
    if let Some(ports) = ports.as_array_mut() {
        ports.retain(|port| port["protocol"] == "TCP");
        assert_eq!(ports.len(), 1, "{ports:?}");
    }
    object
}

/// Service 10.96.0.`last` with backends 10.244.0.x.
fn put(api: &Api, last: u8, backends: &[u8], port: u16) -> Outcome {
    let (name, ip) = (format!("web-{last}"), Ipv4Addr::new(10, 96, 0, last));
    let backends: Vec<String> = backends.iter().map(|last| format!("10.244.0.{last}")).collect();
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    api.put(&tcp_only(service(&name, &ip.to_string())))?;
    api.put(&tcp_only(slice(&name, &backends, port)))
}

fn remove(api: &Api, last: u8) -> Outcome {
    let (name, ip) = (format!("web-{last}"), Ipv4Addr::new(10, 96, 0, last));
    api.delete(&tcp_only(service(&name, &ip.to_string())))?;
    api.delete(&tcp_only(slice(&name, &[], 1)))
}

/// What is there between two reconciliations: service 2 has the first backend, 3 is there, 4 is not.
fn first_state(api: &Api, port: u16) -> Outcome<BTreeMap<u8, Vec<u8>>> {
    put(api, 2, &[1], port)?;
    put(api, 3, &[1], port)?;
    let _ = remove(api, 4);
    Ok(BTreeMap::from([(1, vec![1]), (2, vec![1]), (3, vec![1])]))
}

/// What the reconciliation makes of it: a backend more, a service less, a service more.
fn second_state(api: &Api, port: u16) -> Outcome<BTreeMap<u8, Vec<u8>>> {
    put(api, 2, &[1, 2], port)?;
    remove(api, 3)?;
    put(api, 4, &[2], port)?;
    Ok(BTreeMap::from([(1, vec![1]), (2, vec![1, 2]), (4, vec![2])]))
}

/// Waits until the maps hold this and nothing else, and returns them.
async fn until(world: &World, wanted: &BTreeMap<u8, Vec<u8>>) -> Outcome<Maps> {
    let look = || {
        let maps = Maps::read(world)?;
        let backends: std::collections::BTreeSet<u8> = wanted.values().flatten().copied().collect();
        let is_tidy = maps.reverse == wanted.len() && maps.backends.len() == backends.len();
        Ok(format!(
            "{:?}{}",
            maps.served(),
            if is_tidy { "" } else { ", and leftovers" }
        ))
    };
    let text = format!("{wanted:?}");
    world.wait(&text, look, |found| found == text).await?;
    Maps::read(world)
}

#[test]
fn killed_before_any_write_it_leaves_a_working_node_and_the_next_one_converges() {
    on_node("interrupted", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        put(&api, 1, &[1], echo.port)?;
        let first = first_state(&api, echo.port)?;
        let mut agent = Agent::well(&world, &api, &[]).await?;
        let ids = until(&world, &first).await?.ids();
        let to = "10.96.0.1:80".parse()?;
        assert!(calls(to));

        let mut writes = 0;
        loop {
            agent.kill()?;
            let second = second_state(&api, echo.port)?;
            let (killed, watch) = Agent::watched(&world, &api, &[])?;
            let looks = Cell::new(0);
            let is_done = || {
                let found = Maps::read(&world).map(|maps| maps.served()).unwrap_or_default();
                looks.set(if found == second { looks.get() + 1 } else { 0 });
                looks.get() > QUIET
            };
            let watched = watch.stop_before(writes, is_done)?;
            assert_ne!(watched, Watched::Ended, "{}", killed.log());
            killed.kill()?;
            drop(watch);

            let when = format!("killed before write {writes}");
            let maps = Maps::read(&world)?;
            maps.assert_nothing_dangles(&when);
            assert!(calls(to), "{when}");

            agent = Agent::well(&world, &api, &[]).await?;
            let after = until(&world, &second).await?.ids();
            assert_eq!((after[&1], after[&2]), (ids[&1], ids[&2]), "{when}");
            if watched == Watched::Done {
                break;
            }
            first_state(&api, echo.port)?;
            until(&world, &first).await?;
            writes += 1;
        }
        println!("killed before each of {writes} writes");
        // A service and a backend come, a service goes: that cannot be fewer.
        assert!(writes >= 10, "only {writes} writes");
        agent.kill()
    });
}
