// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

// Recorded events of Cilium's programs.
const VERDICT: &str = "050092050000000036000000360001008b0c00000000000050000611000000000000000000000000fac6a269d4714227ded30bad080\
                       045000028123440003f0614190a0100a50a0100ddd6d90050000003e8000000005002ffffbf4d0000";
const TRACE6: &str = "04009205000000004a0000004a0002008b0c0000d4cc00009205000108000000fd0000100001000000000000000063cb00000000000\
                      00000fac6a269d4714227ded30bad86dd600123450014063ffd0000100001000000000000000063cbfd0000100001000000000000\
                      000003259c410050000003e8000000005002ffffae550000";
const DROP: &str = "01afe101000000004a0000004a0003008b0c00000000000000000000cf060200060000000000000000000000000000007eaded74e4fc5\
                    6cf58685bd608004500003c42420005401122e70a0100a50a0100dd797979797979797979797979797979797979797979797979797979\
                    79797979797979797979797979";

fn bytes(text: &str) -> Vec<u8> {
    hex::decode(text).unwrap()
}

#[test]
fn recorded_verdicts_are_decoded() {
    let bytes = bytes(VERDICT);

    let Ok(Event::PolicyVerdict(event)) = Event::decode(&bytes) else {
        panic!("{:?}", Event::decode(&bytes));
    };

    assert_eq!((event.header.source, event.remote_identity), (1426, 3211));
    assert_eq!((event.port, event.proto, event.policy_match()), (80, 6, 2));
    assert!(event.is_ingress() && !event.is_ipv6() && !event.is_l3_device());
    assert_eq!(event.action(), Action::Allow);
    assert_eq!(event.packet.len(), 54);
    assert_eq!(event.to_bytes(), bytes);
}

#[test]
fn recorded_traces_are_decoded() {
    let bytes = bytes(TRACE6);

    let Ok(Event::Trace(event)) = Event::decode(&bytes) else {
        panic!("{:?}", Event::decode(&bytes));
    };

    assert_eq!(
        (event.point, event.trace_reason(), event.destination),
        (0, 0, 1426)
    );
    assert_eq!((event.source_identity, event.destination_identity), (3211, 52436));
    assert_eq!(event.original_source().to_string(), "fd00:10:1::63cb");
    assert_eq!((event.ifindex, event.packet.len()), (8, 74));
    assert_eq!(event.to_bytes(), bytes);
}

#[test]
fn recorded_drops_are_decoded() {
    let bytes = bytes(DROP);

    let Ok(Event::Drop(event)) = Event::decode(&bytes) else {
        panic!("{:?}", Event::decode(&bytes));
    };

    assert_eq!(event.reason_text(), "First logical datagram fragment not found");
    assert_eq!((event.header.source, event.line, event.file), (481, 1743, 2));
    assert_eq!((event.ifindex, event.packet.len()), (6, 74));
    assert_eq!(event.to_bytes(), bytes);
}

#[test]
fn older_versions_have_fewer_fields() {
    let drop = |version| DropNotify {
        header: CaptureHeader {
            source: 7,
            captured_length: 2,
            version,
            ..CaptureHeader::default()
        },
        reason: 133,
        source_identity: 1,
        destination_identity: 2,
        destination: 3,
        line: 4,
        file: 5,
        extended_error: -6,
        ifindex: 7,
        flags: PacketFlags(if version >= 2 { 1 } else { 0 }),
        ip_trace_id: if version >= 3 { 9 } else { 0 },
        packet: &[0xaa, 0xbb],
    };
    for (version, length) in [(0, 36), (1, 36), (2, 40), (3, 48)] {
        let bytes = drop(version).to_bytes();
        assert_eq!(bytes.len(), length + 2);
        assert_eq!(Event::decode(&bytes), Ok(Event::Drop(drop(version))));
        assert_eq!(
            Event::decode(&bytes[..length - 1]),
            Err(DecodeError::TooShort {
                name: "drop",
                length: length - 1,
                expected: length
            })
        );
    }
    let trace = |version| TraceNotify {
        header: CaptureHeader {
            version,
            captured_length: 1,
            ..CaptureHeader::default()
        },
        point: 11,
        source_identity: 1,
        destination_identity: 2,
        destination: 3,
        reason: 0x82,
        flags: PacketFlags(0),
        ifindex: 4,
        original_source: if version >= 1 { [1; 16] } else { [0; 16] },
        ip_trace_id: if version >= 2 { 5 } else { 0 },
        packet: &[0xcc],
    };
    for (version, length) in [(0, 32), (1, 48), (2, 56)] {
        let bytes = trace(version).to_bytes();
        assert_eq!(bytes.len(), length + 1);
        let event = trace(version);
        assert!(event.is_encrypted() && event.trace_reason() == 2);
        assert_eq!(Event::decode(&bytes), Ok(Event::Trace(event)));
        assert!(Event::decode(&bytes[..length - 1]).is_err());
    }
}

#[test]
fn newer_versions_and_types_are_named() {
    let mut drop = bytes(DROP);
    drop[14] = 4;
    let mut trace = bytes(TRACE6);
    trace[14] = 3;

    let error = |bytes: &[u8]| Event::decode(bytes).unwrap_err().to_string();

    assert_eq!(error(&drop), "Unrecognized drop event (version 4)");
    assert_eq!(error(&trace), "Unrecognized trace event (version 3)");
    assert_eq!(error(&[6, 0]), "unknown event type 6");
    assert_eq!(error(&[]), "empty event");
    assert_eq!(
        error(&[7; 39]),
        "trace-sock event too short: 39 bytes, expected at least 40"
    );
}

#[test]
fn packets_end_where_they_were_cut() {
    let mut padded = bytes(DROP);
    padded.extend([0; 6]);
    let mut cut = bytes(DROP);
    cut.truncate(60);

    let length = |bytes: &[u8]| match Event::decode(bytes) {
        Ok(Event::Drop(event)) => event.packet.len(),
        other => panic!("{other:?}"),
    };

    assert_eq!(length(&padded), 74);
    assert_eq!(length(&cut), 12);
}

#[test]
fn verdicts_name_their_action() {
    let event = |verdict, flags| PolicyVerdictNotify {
        header: CaptureHeader::default(),
        subtype: 0,
        remote_identity: 0,
        verdict,
        port: 0,
        proto: 0,
        flags,
        auth: 0,
        cookie: 0,
        packet: &[],
    };

    let action = |verdict, flags| event(verdict, flags).action().name();

    assert_eq!(action(0, 0), "allow");
    assert_eq!(action(0, 0x40), "audit");
    assert_eq!(action(-133, 0x40), "deny");
    assert_eq!(action(10_000, 0), "redirect");
}

#[test]
fn socket_traces_and_captures_come_back() {
    let socket = TraceSockNotify {
        point: 2,
        l4_proto: 1,
        flags: 0,
        port: 80,
        cookie: 1 << 40,
        cgroup_id: 77,
        address: [10, 1, 2, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    assert_eq!(Event::decode(&socket.to_bytes()), Ok(Event::TraceSock(socket)));
    assert_eq!(socket.addr().to_string(), "10.1.2.9");

    let capture = DebugCapture {
        header: CaptureHeader {
            version: 1,
            captured_length: 3,
            ..CaptureHeader::default()
        },
        point: 9,
        args: [u32::from(10_000_u16.to_be()), 0],
        packet: &[1, 2, 3],
    };
    assert_eq!(
        Event::decode(&capture.to_bytes()),
        Ok(Event::Capture(capture.clone()))
    );
    assert_eq!(capture.text(), "Packet to proxy port 10000 (Post)");
    assert_eq!(capture.prefix(&|_| None).as_deref(), Some("-> proxy port 10000"));
}

proptest! {
    #[test]
    fn garbage_is_an_event_or_an_error(first in prop::sample::select(vec![0_u8, 1, 2, 3, 4, 5, 6, 7, 8, 129, 130]), rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = vec![first];
        bytes.extend(rest);
        if let Ok(event) = Event::decode(&bytes) {
            prop_assert_eq!(event.message_type() as u8, first);
        }
    }
}
