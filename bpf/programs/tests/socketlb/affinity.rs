// SPDX-License-Identifier: Apache-2.0

//! Session affinity: all sockets of a network namespace stay with one backend.

use std::{
    collections::HashSet,
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use skep_bpf_maps::{lb::AffinityMatchKey, testing::Frontend};
use skep_bpf_programs::NodeOptions;

use crate::world::*;

const ID: u16 = 7;
const TIMEOUT: u32 = 600;

fn sticky(service: SocketAddr, backends: &[SocketAddr]) -> Frontend {
    let mut frontend = Frontend::new(ID, service, TCP, backends);
    frontend.affinity = TIMEOUT;
    frontend
}

/// Backends that answer so many calls.
fn backends_seen(service: SocketAddr, calls: usize) -> io::Result<HashSet<SocketAddr>> {
    (0..calls)
        .map(|_| ask_tcp(service).map(|(backend, _)| backend))
        .collect()
}

/// All of them but `one`.
fn without(one: SocketAddr, backends: &[SocketAddr]) -> Vec<SocketAddr> {
    backends
        .iter()
        .copied()
        .filter(|backend| *backend != one)
        .collect()
}

#[test]
fn a_namespace_stays_with_its_backend() {
    with_each("affinity", &NodeOptions::default(), |world, family| {
        let service = family.service(1, 80);
        world.maps.upsert(&sticky(service, &family.tcp_servers(4)))?;

        for service in spellings(service) {
            assert_eq!(backends_seen(service, 24)?.len(), 1, "{service}");
        }
        let entry = world.affinity(family, ID)?.unwrap();
        assert_eq!(world.maps.backend(ask_tcp(service)?.0, TCP)?, entry.backend_id);
        Ok(())
    });
}

#[test]
fn namespaces_choose_for_themselves() {
    with("affinity-pods", NodeOptions::default(), |world| {
        let pods = [world.node.pod("a")?, world.node.pod("b")?];
        // No backend listens: that one was chosen shows in the map.
        let silent: Vec<SocketAddr> = (1..=100)
            .map(|n| (Ipv4Addr::new(127, 0, 1, n), 8080).into())
            .collect();
        let service = Family::V4.service(1, 80);
        world.maps.upsert(&sticky(service, &silent))?;

        for pod in &pods {
            assert_eq!(refusal(pod.run(|| ask_tcp(service))), Some(libc::ECONNREFUSED));
            assert!(world.affinity_of(pod.netns_cookie(), Family::V4, ID)?.is_some());
        }
        assert_eq!(world.maps.affinity4.entries()?.len(), 2);
        Ok(())
    });
}

#[test]
fn affinity_ends_after_its_timeout() {
    with_each("affinity-timeout", &NodeOptions::default(), |world, family| {
        let service = family.service(1, 80);
        world.maps.upsert(&sticky(service, &family.tcp_servers(4)))?;
        let (first, _) = ask_tcp(service)?;

        let mut seen = HashSet::new();
        for _ in 0..64 {
            let mut entry = world.affinity(family, ID)?.unwrap();
            // Wraps on a machine that is younger than that, as the programs' sum does.
            entry.last_used = entry.last_used.wrapping_sub(u64::from(TIMEOUT) + 1);
            world.set_affinity(family, ID, &entry)?;
            seen.insert(ask_tcp(service)?.0);
        }
        assert!(seen.len() > 1, "stayed with {first}");

        // Use renews it.
        let mut entry = world.affinity(family, ID)?.unwrap();
        let age = u64::from(TIMEOUT) - 60;
        entry.last_used = entry.last_used.wrapping_sub(age);
        world.set_affinity(family, ID, &entry)?;
        let (chosen, _) = ask_tcp(service)?;
        let renewed = world.affinity(family, ID)?.unwrap().last_used;
        assert!((age..2 * age).contains(&renewed.wrapping_sub(entry.last_used)));
        assert_eq!(ask_tcp(service)?.0, chosen);
        Ok(())
    });
}

#[test]
fn a_short_timeout_passes_by_itself() {
    with("affinity-second", NodeOptions::default(), |world| {
        let mut frontend = sticky(at("10.96.0.1:80"), &Family::V4.tcp_servers(4));
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
    with_each("affinity-match", &NodeOptions::default(), |world, family| {
        let (service, backends) = (family.service(1, 80), family.tcp_servers(4));
        world.maps.upsert(&sticky(service, &backends))?;
        let (first, _) = ask_tcp(service)?;
        let id = world.maps.backend(first, TCP)?;

        world.maps.upsert(&sticky(service, &without(first, &backends)))?;
        world.maps.affinity_match.delete(&AffinityMatchKey::new(id, ID))?;

        let (second, _) = ask_tcp(service)?;
        assert_ne!(second, first);
        assert_ne!(world.affinity(family, ID)?.unwrap().backend_id, id);
        assert_eq!(backends_seen(service, 24)?, [second].into());
        Ok(())
    });
}

#[test]
fn a_backend_that_is_leaving_is_not_kept_though_slots_still_name_it() {
    with_each("affinity-leaving", &NodeOptions::default(), |world, family| {
        let service = family.service(1, 80);
        world.maps.upsert(&sticky(service, &family.tcp_servers(2)))?;
        let (leaving, _) = ask_tcp(service)?;
        let id = world.maps.backend(leaving, TCP)?;

        world.maps.affinity_match.delete(&AffinityMatchKey::new(id, ID))?;

        // Chosen anew each time until it is the other one, which comes within some tries, and stays.
        backends_seen(service, 64)?;
        assert_ne!(ask_tcp(service)?.0, leaving);
        Ok(())
    });
}

#[test]
fn a_backend_that_is_gone_is_forgotten() {
    with_each("affinity-gone", &NodeOptions::default(), |world, family| {
        let (service, backends) = (family.service(1, 80), family.tcp_servers(4));
        world.maps.upsert(&sticky(service, &backends))?;
        let (first, _) = ask_tcp(service)?;

        // The match entry is still there: maps are not written all at once.
        world.maps.upsert(&sticky(service, &without(first, &backends)))?;
        world.delete_backend(first, TCP)?;

        assert_ne!(ask_tcp(service)?.0, first);
        Ok(())
    });
}

#[test]
fn affinity_works_with_jiffies() {
    let options = NodeOptions {
        jiffies: Some(250),
        ..NodeOptions::default()
    };
    with_each("affinity-jiffies", &options, |world, family| {
        let service = family.service(1, 80);
        world.maps.upsert(&sticky(service, &family.tcp_servers(4)))?;

        assert_eq!(backends_seen(service, 24)?.len(), 1);
        Ok(())
    });
}
