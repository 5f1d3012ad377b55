// SPDX-License-Identifier: Apache-2.0

//! Rates of endpoints: departure times of what they send, a token bucket for what they receive.

use std::collections::BTreeMap;

use run_packets::{
    Error,
    node::{PacketNode, with_options},
};
use skep_bpf_maps::throttle::{ThrottleKey, ThrottleValue};
use skep_bpf_programs::{
    NodeOptions,
    testing::run::{Ran, SkBuff, run_tc},
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{frame::*, packet::*};

const MAP: &str = "cilium_throttle";
const EDT_HORIZON: u8 = 162;
/// Ids of the pods.
const IDS: [u16; 2] = [481, 1426];

fn bandwidth(options: &mut NodeOptions) {
    options.packets.bandwidth = true;
}

fn write(node: &PacketNode, key: ThrottleKey, rate: u64, priority: u32) -> Result<(), Error> {
    let value = ThrottleValue {
        rate,
        limit: 2_000_000_000,
        priority,
        ..ThrottleValue::default()
    };
    node.write(MAP, key.as_bytes(), value.as_bytes())
}

fn read(node: &PacketNode, key: ThrottleKey) -> Result<ThrottleValue, Error> {
    let entries: BTreeMap<_, _> = node.entries(MAP)?;
    Ok(ThrottleValue::read_from_bytes(&entries[key.as_bytes()]).unwrap())
}

/// A packet of the first pod at the device of the node.
fn leave(node: &PacketNode, queue: u16) -> Result<Ran, Error> {
    let frame = Frame::new(UDP, (P1, 40_000).into(), (CLIENT, 53).into()).payload(1000);
    let context = SkBuff {
        ifindex: ETH0_IFINDEX,
        ..SkBuff::default()
    };
    let program = node.in_queue("cil_to_netdev", queue)?;
    Ok(run_tc(program.program(), &frame.bytes(), &context, 1)?)
}

/// Packets that were counted as dropped at the horizon.
fn drops(node: &PacketNode) -> Result<usize, Error> {
    let keys = node.entries("cilium_metrics")?.into_keys();
    Ok(keys.filter(|key| key[0] == EDT_HORIZON).count())
}

#[test]
fn packets_that_pods_send_depart_at_their_rate() {
    let done = with_options(&facts(), bandwidth, |node| {
        let key = ThrottleKey::new(IDS[0], ThrottleKey::EGRESS);
        let free = leave(node, IDS[0])?.context;
        assert_eq!((free.tstamp, free.priority), (0, 0), "no entry");

        // More than a second between two packets.
        write(node, key, 700, 7)?;
        let first = leave(node, IDS[0])?.context;
        assert_eq!((first.tstamp, first.priority), (0, 6));
        let departed = read(node, key)?.last;
        let second = leave(node, IDS[0])?.context.tstamp;
        assert_eq!(second, read(node, key)?.last);
        assert!(second > departed + 1_000_000_000, "{departed} {second}");
        let other = leave(node, 0)?.context;
        assert_eq!((other.tstamp, other.priority), (0, 0), "not of an endpoint");
        assert_eq!(drops(node)?, 0);

        // A quarter of an hour: counted, without an event.
        write(node, key, 1, 0)?;
        leave(node, IDS[0])?;
        node.take_events()?;
        assert_eq!(leave(node, IDS[0])?.verdict, SHOT);
        assert_eq!(drops(node)?, 1);
        assert!(node.take_events()?.iter().all(|event| event[0] != 1));
        Ok(())
    });
    done.unwrap();
}

#[test]
fn packets_beyond_the_rate_of_their_receiver_are_dropped() {
    let frame = Frame::new(UDP, (P1, 40_000).into(), (P2, 53).into()).payload(1000);
    let run = |node: &PacketNode| {
        let ran = node.run("cil_from_container", &frame.bytes(), &at(P1_IFINDEX))?;
        Ok::<_, Error>(ran.verdict)
    };
    let key = ThrottleKey::new(IDS[1], ThrottleKey::INGRESS);
    let done = with_options(&facts(), bandwidth, |node| {
        assert_eq!(run(node)?, REDIRECT);
        write(node, key, 100_000, 0)?;
        assert_eq!(run(node)?, REDIRECT);
        let left = read(node, key)?.limit;
        assert_eq!(left, 100_000 - frame.bytes().len() as u64);

        write(node, key, 500, 0)?;
        assert_eq!(run(node)?, SHOT);
        write(node, key, 0, 0)?;
        assert_eq!(run(node)?, REDIRECT);
        Ok(())
    });
    done.unwrap();
}
