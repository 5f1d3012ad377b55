// SPDX-License-Identifier: Apache-2.0

//! Session affinity: all sockets of a network namespace stay with one backend.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use skep_bpf::{
    lb::{Affinity4Key, Affinity6Key, AffinityMatchKey, BackendKey},
    load::SocketOptions,
    testing::Frontend,
};

use crate::world::*;

const TIMEOUT: u32 = 600;

fn sticky(id: u16, service: &str, backends: &[SocketAddr]) -> Frontend {
    let mut frontend = Frontend::new(id, at(service), TCP, backends);
    frontend.affinity = TIMEOUT;
    frontend
}

fn servers(addresses: &[&str]) -> Vec<SocketAddr> {
    addresses.iter().map(|address| tcp_server(address)).collect()
}

const FOUR: [&str; 4] = ["10.244.0.1:0", "10.244.0.2:0", "10.244.0.3:0", "10.244.0.4:0"];

#[test]
fn a_namespace_stays_with_its_backend() {
    with("affinity", SocketOptions::default(), |world| {
        let cookie = world.node.netns_cookie();
        let backends = servers(&FOUR);
        world.maps.upsert(&sticky(7, "10.96.0.1:80", &backends))?;
        let backends6 = servers(&["[fd00::1]:0", "[fd00::2]:0"]);
        world.maps.upsert(&sticky(8, "[fd10::1]:80", &backends6))?;

        for service in ["10.96.0.1:80", "[fd10::1]:80", "[::ffff:10.96.0.1]:80"] {
            let seen: HashSet<_> = (0..24)
                .map(|_| ask_tcp(at(service)).map(|(backend, _)| backend))
                .collect::<Result<_, _>>()?;
            assert_eq!(seen.len(), 1, "{service}");
        }
        let entry = world
            .maps
            .affinity4
            .lookup(&Affinity4Key::netns(cookie, 7))?
            .unwrap();
        assert_eq!(
            world.maps.backend(ask_tcp(at("10.96.0.1:80"))?.0, TCP)?,
            entry.backend_id
        );
        assert!(
            world
                .maps
                .affinity6
                .lookup(&Affinity6Key::netns(cookie, 8))?
                .is_some()
        );
        Ok(())
    });
}

#[test]
fn namespaces_choose_for_themselves() {
    with("affinity-pods", SocketOptions::default(), |world| {
        // Two namespaces with the same addresses: what answers tells what was chosen.
        let pods = [world.node.pod("a")?, world.node.pod("b")?];
        let addresses: Vec<SocketAddr> = (1..=100)
            .map(|n| SocketAddr::from(([127, 0, 1, n], 8080)))
            .collect();
        world.maps.upsert(&sticky(7, "10.96.0.1:80", &addresses))?;

        for pod in &pods {
            pod.run(|| {
                let socket = udp_client("127.0.0.1:0");
                drop(socket);
                let _ = ask_tcp(at("10.96.0.1:80"));
            });
            assert!(
                world
                    .maps
                    .affinity4
                    .lookup(&Affinity4Key::netns(pod.netns_cookie(), 7))?
                    .is_some()
            );
        }
        assert_eq!(world.maps.affinity4.entries()?.len(), 2);
        Ok(())
    });
}

#[test]
fn affinity_ends_after_its_timeout() {
    with("affinity-timeout", SocketOptions::default(), |world| {
        let key = Affinity4Key::netns(world.node.netns_cookie(), 7);
        let service = at("10.96.0.1:80");
        world.maps.upsert(&sticky(7, "10.96.0.1:80", &servers(&FOUR)))?;
        let (first, _) = ask_tcp(service)?;

        let mut seen = HashSet::new();
        for _ in 0..64 {
            let mut entry = world.maps.affinity4.lookup(&key)?.unwrap();
            entry.last_used = entry.last_used.saturating_sub(u64::from(TIMEOUT) + 1);
            world.maps.affinity4.update(&key, &entry)?;
            seen.insert(ask_tcp(service)?.0);
        }
        assert!(seen.len() > 1, "stayed with {first}");

        // Use renews it.
        let mut entry = world.maps.affinity4.lookup(&key)?.unwrap();
        entry.last_used -= u64::from(TIMEOUT) - 60;
        world.maps.affinity4.update(&key, &entry)?;
        let (chosen, _) = ask_tcp(service)?;
        assert!(world.maps.affinity4.lookup(&key)?.unwrap().last_used > entry.last_used);
        assert_eq!(ask_tcp(service)?.0, chosen);
        Ok(())
    });
}

#[test]
fn a_short_timeout_passes_by_itself() {
    with("affinity-second", SocketOptions::default(), |world| {
        let mut frontend = sticky(7, "10.96.0.1:80", &servers(&FOUR));
        frontend.affinity = 1;
        world.maps.upsert(&frontend)?;
        let (first, _) = ask_tcp(frontend.address)?;

        // Chance keeps it with one in four each time; sixteen times is as good as never.
        let moved = (0..16).any(|_| {
            std::thread::sleep(Duration::from_millis(1100));
            ask_tcp(frontend.address).is_ok_and(|(backend, _)| backend != first)
        });
        assert!(moved);
        Ok(())
    });
}

#[test]
fn a_backend_that_left_the_service_is_forgotten() {
    with("affinity-match", SocketOptions::default(), |world| {
        let key = Affinity4Key::netns(world.node.netns_cookie(), 7);
        let service = at("10.96.0.1:80");
        let backends = servers(&FOUR);
        world.maps.upsert(&sticky(7, "10.96.0.1:80", &backends))?;
        let (first, _) = ask_tcp(service)?;
        let id = world.maps.backend(first, TCP)?;

        let others: Vec<_> = backends
            .iter()
            .copied()
            .filter(|backend| *backend != first)
            .collect();
        world.maps.upsert(&sticky(7, "10.96.0.1:80", &others))?;
        world.maps.affinity_match.delete(&AffinityMatchKey::new(id, 7))?;

        assert_ne!(ask_tcp(service)?.0, first);
        assert_ne!(world.maps.affinity4.lookup(&key)?.unwrap().backend_id, id);
        Ok(())
    });
}

#[test]
fn a_backend_that_is_gone_is_forgotten() {
    with("affinity-gone", SocketOptions::default(), |world| {
        let service = at("10.96.0.1:80");
        let backends = servers(&FOUR);
        world.maps.upsert(&sticky(7, "10.96.0.1:80", &backends))?;
        let (first, _) = ask_tcp(service)?;

        // The match entry is still there: maps are not written all at once.
        let others: Vec<_> = backends
            .iter()
            .copied()
            .filter(|backend| *backend != first)
            .collect();
        world.maps.upsert(&sticky(7, "10.96.0.1:80", &others))?;
        world
            .maps
            .backends4
            .delete(&BackendKey::new(world.maps.backend(first, TCP)?))?;

        assert_ne!(ask_tcp(service)?.0, first);
        Ok(())
    });
}

#[test]
fn affinity_works_with_jiffies() {
    let options = SocketOptions {
        jiffies: Some(250),
        ..SocketOptions::default()
    };
    with("affinity-jiffies", options, |world| {
        let service = at("10.96.0.1:80");
        world.maps.upsert(&sticky(7, "10.96.0.1:80", &servers(&FOUR)))?;

        let seen: HashSet<_> = (0..24)
            .map(|_| ask_tcp(service).map(|(backend, _)| backend))
            .collect::<Result<_, _>>()?;

        assert_eq!(seen.len(), 1);
        Ok(())
    });
}
