// SPDX-License-Identifier: Apache-2.0

//! More flows than maps can hold.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use run_packets::{
    Error,
    node::{PacketNode, with_node, with_options},
};
use skep_bpf_maps::collect::{FlowCollector as _, FlowMap, Removal};
use skep_bpf_programs::FlowIterators;

use crate::packet::*;

/// Capacity of the conntrack and NAT maps of the node.
const CAPACITY: u64 = 8192;
/// Packets of a flood between two of a flow that lives.
const BURST: u32 = 256;
/// Type of events about drops, whose second byte is the reason.
const DROPPED: u8 = 1;
const CT_CREATE_FAILED: u8 = 155;
const NAT_NO_MAPPING: u8 = 167;

fn packet(source: Side, tcp_flags: u8) -> Packet {
    Packet {
        is_tcp: true,
        source,
        destination: (NODE, NODE_PORT),
        tcp_flags,
        ttl: 64,
        options: 0,
        payload: Vec::new(),
    }
}

/// Connections to the node port whose backend is on another node.
struct Connection<'a> {
    node: &'a PacketNode,
    program: &'static str,
    client: Side,
    source: Side,
    backend: Side,
}

impl<'a> Connection<'a> {
    fn open(node: &'a PacketNode, program: &'static str, client: Side) -> Result<Self, Error> {
        let mut connection = Self {
            node,
            program,
            client,
            source: client,
            backend: client,
        };
        (connection.source, connection.backend) = connection.pass(&packet(client, 2))?;
        connection.answer(0x12)?;
        Ok(connection)
    }

    fn pass(&self, packet: &Packet) -> Result<(Side, Side), Error> {
        let ran = self
            .node
            .run(self.program, &packet.frame(CLIENT_MAC), &at(ETH0_IFINDEX))?;
        assert!(
            [REDIRECT, XDP_TX].contains(&ran.verdict),
            "{}: verdict {}",
            self.program,
            ran.verdict
        );
        Ok(read(&ran.packet).expect("right checksums"))
    }

    #[track_caller]
    fn answer(&self, tcp_flags: u8) -> Result<(), Error> {
        let mut reply = answer(true, self.backend, self.source, &[]);
        reply.tcp_flags = tcp_flags;
        let seen = self.pass(&reply)?;
        assert_eq!(seen, ((NODE, NODE_PORT), self.client), "{}", self.program);
        Ok(())
    }

    /// The client sends, and the backend answers, as before.
    #[track_caller]
    fn goes_on(&self) -> Result<(), Error> {
        let seen = self.pass(&packet(self.client, 0x10))?;
        assert_eq!(seen, (self.source, self.backend), "{}", self.program);
        self.answer(0x10)
    }
}

/// First packets of connections, each from another address and port.
#[derive(Default)]
struct Flood {
    sent: u32,
    /// How many were dropped, by reason.
    dropped: BTreeMap<u8, u32>,
}

impl Flood {
    fn burst(&mut self, node: &PacketNode, program: &str) -> Result<(), Error> {
        for _ in 0..BURST {
            let number = self.sent;
            self.sent += 1;
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number / 1000);
            let port = 33_000 + (number % 1000) as u16;
            let ran = node.run(
                program,
                &packet((address, port), 2).frame(CLIENT_MAC),
                &at(ETH0_IFINDEX),
            )?;
            if [SHOT, XDP_DROP].contains(&ran.verdict) {
                let events = node.take_events()?;
                let reason = events.iter().rev().find(|event| event[0] == DROPPED);
                *self.dropped.entry(reason.expect("an event")[1]).or_default() += 1;
            }
        }
        // Rings hold more than a burst.
        node.take_events()?;
        Ok(())
    }

    /// New flows may be dropped when nothing can be evicted for them at once, and the reason says which map is full.
    fn assert_served(&self) {
        let dropped: u32 = self.dropped.values().sum();
        let text = format!("{:?} of {} dropped", self.dropped, self.sent);
        assert!(u64::from(dropped) * 10 < u64::from(self.sent), "{text}");
        let is_full = |reason: &u8| [CT_CREATE_FAILED, NAT_NO_MAPPING].contains(reason);
        assert!(self.dropped.keys().all(is_full), "{text}");
        println!("{text}");
    }
}

/// Repeats `step` until the map has only the two entries of the connection that lives.
#[track_caller]
fn drain(node: &PacketNode, map: &str, mut step: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        step()?;
        let left = node.entries(map)?.len();
        if left == 2 {
            return Ok(());
        }
        assert!(Instant::now() < deadline, "{map}: {left} entries are left");
    }
}

/// Ends a thread, also if the test panics.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn connections_that_go_on_survive_a_flood_that_fills_all_maps_many_times() {
    let done = with_node(&facts(), |node| {
        for program in ["cil_from_netdev", XDP] {
            node.forget_flows()?;
            let live = Connection::open(node, program, (CLIENT, 40_020))?;
            let mut flood = Flood::default();
            while u64::from(flood.sent) < 4 * CAPACITY {
                flood.burst(node, program)?;
                live.goes_on()?;
            }
            for map in ["cilium_ct4_global", "cilium_snat_v4_external"] {
                let entries = node.entries(map)?.len() as u64;
                assert!(
                    (CAPACITY / 2..=CAPACITY).contains(&entries),
                    "{map}: {entries} entries, it was full"
                );
            }
            flood.assert_served();
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn collection_keeps_up_with_a_flood_and_connections_live_on() {
    // Flows without an answer expire after a second.
    let soon = |options: &mut skep_bpf_programs::NodeOptions| {
        options.packets.ct_tcp_syn = 1;
        options.packets.ct_service_grace = 1;
    };
    let done = with_options(&facts(), soon, |node| {
        let iterators = FlowIterators::load(&node.store(), false).expect("iterators over maps");
        let (over, deleted) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let collecting = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let done = iterators.collect(FlowMap::Tcp4, &Removal::Ended).expect("a pass");
                    deleted.fetch_add(done.deleted, Ordering::Relaxed);
                }
            });
            let result = (|| {
                let _ending = Ending(&over);
                let live = Connection::open(node, "cil_from_netdev", (CLIENT, 40_020))?;
                live.goes_on()?;
                let mut flood = Flood::default();
                // Each flow has two entries: what is sent would fill the map several times.
                let start = Instant::now();
                while u64::from(flood.sent) < 2 * CAPACITY || start.elapsed() < Duration::from_secs(4) {
                    flood.burst(node, "cil_from_netdev")?;
                    live.goes_on()?;
                }
                flood.assert_served();
                // The flood is over: nothing of it stays.
                drain(node, "cilium_ct4_global", || live.goes_on())?;
                Ok::<u32, Error>(flood.sent)
            })();
            collecting.join().expect("passes come to their end");
            let sent = result?;
            let deleted = deleted.load(Ordering::Relaxed);
            println!("{sent} packets, {deleted} entries deleted");
            assert!(deleted > CAPACITY, "{deleted}");
            // What conntrack evicted has left NAT entries behind, which are purged a second after they were made.
            drain(node, "cilium_snat_v4_external", || {
                iterators.purge(false).expect("a pass");
                Ok(())
            })
        })
    });
    done.unwrap();
}
