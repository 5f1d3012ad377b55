// SPDX-License-Identifier: Apache-2.0

//! Socket trace events and their rate limit.

use std::{cell::RefCell, rc::Rc, time::Duration};

use libbpf_rs::{MapHandle, PerfBufferBuilder};
use skep_bpf_maps::{
    event::{SOCKET_TRACE, SocketTrace, TracePoint},
    testing::Frontend,
};
use skep_bpf_programs::NodeOptions;
use zerocopy::FromBytes;

use crate::world::*;

/// Events sent while `work` runs.
fn events(
    world: &World<'_>,
    work: impl FnOnce() -> Outcome,
) -> Result<Vec<SocketTrace>, Box<dyn std::error::Error + Send + Sync>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let sink = seen.clone();
    let map = MapHandle::from_pinned_path(world.store.path("cilium_events"))?;
    let buffer = PerfBufferBuilder::new(&map)
        .sample_cb(move |_, data: &[u8]| {
            let (event, _) = SocketTrace::read_from_prefix(data).unwrap();
            sink.borrow_mut().push(event);
        })
        .build()?;
    work()?;
    buffer.consume()?;
    drop(buffer);
    Ok(seen.take())
}

fn points(events: &[SocketTrace]) -> Vec<TracePoint> {
    events.iter().map(SocketTrace::trace_point).collect()
}

#[test]
fn translation_is_traced() {
    with("trace", NodeOptions::default(), |world| {
        let service = at("10.96.0.1:53");
        let backend = at("10.244.0.1:53");
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;
        let socket = udp_client("0.0.0.0:0");
        let cookie = skep_base_net::netns::socket_cookie(std::os::fd::AsFd::as_fd(&socket))?;

        let seen = events(world, || {
            socket.connect(service)?;
            socket.peer_addr()?;
            Ok(())
        })?;

        let expected = [
            TracePoint::PreForward,
            TracePoint::PostForward,
            TracePoint::PreReverse,
            TracePoint::PostReverse,
        ];
        assert_eq!(points(&seen), expected);
        let peers = [service, backend, backend, service];
        for (event, peer) in seen.iter().zip(peers) {
            assert_eq!((event.addr(), event.port), (peer.ip(), peer.port()));
            assert_eq!(
                (event.kind, event.l4_proto, event.cookie),
                (SOCKET_TRACE, 2, cookie)
            );
            assert_ne!(event.cgroup_id, 0);
        }
        Ok(())
    });
}

#[test]
fn ipv6_events_have_the_whole_address() {
    with("trace6", NodeOptions::default(), |world| {
        let service = at("[fd10::1]:53");
        world
            .maps
            .upsert(&Frontend::new(1, service, UDP, &[at("[fd00::1]:53")]))?;

        let seen = events(world, || Ok(udp_client("[::]:0").connect(service)?))?;

        assert_eq!(
            seen.iter().map(SocketTrace::addr).collect::<Vec<_>>(),
            [ip("fd10::1"), ip("fd00::1")]
        );
        Ok(())
    });
}

#[test]
fn aggregation_leaves_one_event_an_interval() {
    let options = NodeOptions {
        trace_aggregation: 1,
        trace_interval: Duration::from_secs(3600),
        ..NodeOptions::default()
    };
    with("trace-limit", options, |world| {
        let service = at("10.96.0.1:53");
        world
            .maps
            .upsert(&Frontend::new(1, service, UDP, &[at("10.244.0.1:53")]))?;

        let seen = events(world, || {
            for _ in 0..10 {
                let socket = udp_client("0.0.0.0:0");
                socket.connect(service)?;
                socket.peer_addr()?;
            }
            Ok(())
        })?;

        assert_eq!(points(&seen), [TracePoint::PreForward]);
        let dropped = world
            .store
            .open::<u32, u64>("cilium_ratelimit_metrics")?
            .lookup(&3)?;
        assert_eq!(dropped, Some(19));
        Ok(())
    });
}

#[test]
fn most_aggregation_keeps_only_connects() {
    let options = NodeOptions {
        trace_aggregation: 3,
        trace_interval: Duration::ZERO,
        ..NodeOptions::default()
    };
    with("trace-connect", options, |world| {
        let service = at("10.96.0.1:53");
        world
            .maps
            .upsert(&Frontend::new(1, service, UDP, &[at("10.244.0.1:53")]))?;

        let seen = events(world, || {
            udp_client("0.0.0.0:0").send_to(b"?", service)?;
            Ok(udp_client("0.0.0.0:0").connect(service)?)
        })?;

        assert_eq!(points(&seen), [TracePoint::PreForward, TracePoint::PostForward]);
        Ok(())
    });
}

#[test]
fn tracing_can_be_switched_off() {
    let options = NodeOptions {
        trace: false,
        ..NodeOptions::default()
    };
    with("trace-off", options, |world| {
        let service = at("10.96.0.1:53");
        world
            .maps
            .upsert(&Frontend::new(1, service, UDP, &[at("10.244.0.1:53")]))?;

        assert_eq!(
            points(&events(world, || Ok(udp_client("0.0.0.0:0").connect(service)?))?),
            []
        );
        Ok(())
    });
}
