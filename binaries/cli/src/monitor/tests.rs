// SPDX-License-Identifier: Apache-2.0

use skep_datapath_monitor_events::{
    access_log::{EndpointInfo, LogRecord, LogRecordDns, LogRecordHttp, LogRecordL7},
    agent::AgentNotify,
    event::{CaptureHeader, DebugCapture, DebugMsg, DropNotify, PacketFlags, TraceNotify, TraceSockNotify},
    payload::{self, Payload},
};

use super::*;

/// A SYN of 10.1.0.165 to 10.1.0.221.
const SYN: &str = "fac6a269d4714227ded30bad080045000028123440003f0614190a0100a50a0100ddd6d90050000003e8000000005002ffffbf4d0000";
/// An event that Cilium's programs sent.
const VERDICT: &str = "050092050000000036000000360001008b0c00000000000050000611000000000000000000000000fac6a269d4714227ded30bad080\
                       045000028123440003f0614190a0100a50a0100ddd6d90050000003e8000000005002ffffbf4d0000";

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |index| u8::from_str_radix(&hex[index..index + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(pair).collect()
}

fn command(words: &[&str]) -> MonitorCommand {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        command: MonitorCommand,
    }
    let line = ["monitor"].iter().chain(words);
    <Line as clap::Parser>::try_parse_from(line).unwrap().command
}

/// What `skep monitor` prints of these payloads.
fn printed(words: &[&str], payloads: &[Payload]) -> String {
    let mut formatter = command(words).formatter(false);
    let mut out = Vec::new();
    for payload in payloads {
        formatter.print(payload, &mut out).unwrap();
    }
    String::from_utf8(out).unwrap()
}

fn event(data: Vec<u8>) -> Payload {
    Payload::Event { cpu: 2, data }
}

fn header(packet: &[u8], version: u8) -> CaptureHeader {
    CaptureHeader {
        source: 101,
        hash: 0x5b1e,
        original_length: packet.len() as u32,
        captured_length: packet.len() as u16,
        version,
        extension: 0,
    }
}

fn drop_of<'a>(packet: &'a [u8], reason: u8, error: i8) -> DropNotify<'a> {
    DropNotify {
        header: header(packet, 3),
        reason,
        source_identity: 23_107,
        destination_identity: 30_511,
        destination: 812,
        line: 1831,
        file: 2,
        extended_error: error,
        ifindex: 12,
        flags: PacketFlags::default(),
        ip_trace_id: 0,
        packet,
    }
}

fn trace_of(packet: &[u8], point: u8) -> TraceNotify<'_> {
    TraceNotify {
        header: header(packet, 2),
        point,
        source_identity: 1,
        destination_identity: 30_511,
        destination: 812,
        reason: 0,
        flags: PacketFlags::default(),
        ifindex: 1,
        original_source: [0; 16],
        ip_trace_id: 0,
        packet,
    }
}

#[test]
fn drops_have_the_line_of_cilium() {
    let packet = bytes(SYN);
    let mut drop = drop_of(&packet, 133, 0);
    let line = |drop: &DropNotify<'_>| printed(&[], &[event(drop.to_bytes())]);

    assert_eq!(
        line(&drop),
        "xx drop (Policy denied) flow 0x5b1e to endpoint 812, ifindex 12, file bpf_lxc.c:1831, , identity 23107->30511: \
         10.1.0.165:55001 -> 10.1.0.221:80 tcp SYN\n"
    );
    (drop.reason, drop.extended_error, drop.ip_trace_id) = (169, 7, 42);
    assert_eq!(
        line(&drop),
        "xx drop (FIB lookup failed, 7) flow 0x5b1e to endpoint 812, ifindex 12, file bpf_lxc.c:1831,  [ ip-trace-id = 42 ], \
         identity 23107->30511: 10.1.0.165:55001 -> 10.1.0.221:80 tcp SYN\n"
    );
    drop.packet = &[];
    drop.header.captured_length = 0;
    assert!(line(&drop).ends_with("identity 23107->30511: [unknown]\n"));
}

#[test]
fn traces_have_the_line_of_cilium() {
    let packet = bytes(SYN);
    let mut trace = trace_of(&packet, 0);
    trace.original_source[..4].copy_from_slice(&[10, 1, 0, 7]);
    let line = |trace: &TraceNotify<'_>, words: &[&str]| printed(words, &[event(trace.to_bytes())]);

    assert_eq!(
        line(&trace, &[]),
        "-> endpoint 812 flow 0x5b1e , identity host->30511 state new ifindex lo orig-ip 10.1.0.7: 10.1.0.165:55001 -> \
         10.1.0.221:80 tcp SYN\n"
    );
    (trace.reason, trace.ip_trace_id, trace.ifindex) = (0x82, 9, 0);
    assert_eq!(
        line(&trace, &["--numeric"]),
        "-> endpoint 812 encrypted  flow 0x5b1e , identity 1->30511 [ ip-trace-id = 9 ] state reply ifindex 0 orig-ip 10.1.0.7: \
         10.1.0.165:55001 -> 10.1.0.221:80 tcp SYN\n"
    );
    (trace.reason, trace.source_identity) = (5, 0);
    trace.original_source = [0; 16];
    assert!(line(&trace, &[]).contains(", identity unknown->30511 "));
    assert!(line(&trace, &[]).contains(" state unknown ifindex 0 orig-ip 0.0.0.0: "));
    for (point, summary) in [
        (1, "-> proxy port 812 flow"),
        (2, "-> host from flow"),
        (3, "-> stack flow"),
        (4, "-> overlay flow"),
        (5, "<- endpoint 101 flow"),
        (7, "<- host flow"),
        (10, "<- network flow"),
        (11, "-> network flow"),
        (13, "-> crypto flow"),
        (14, "unknown trace flow"),
    ] {
        let line = line(&trace_of(&packet, point), &[]);
        assert!(line.starts_with(summary), "{line}");
    }
}

#[test]
fn verdicts_have_the_line_of_cilium_at_every_level() {
    let expected = "Policy verdict log: flow 0x0 local EP ID 1426, remote ID 3211, proto 6, ingress, action allow, auth: disabled, \
                    match L3-L4, 10.1.0.165:55001 -> 10.1.0.221:80 tcp SYN\n";
    for words in [&[][..], &["-v"], &["-vv"], &["-j"]] {
        assert_eq!(printed(words, &[event(bytes(VERDICT))]), expected, "{words:?}");
    }
}

#[test]
fn messages_are_printed_when_asked_for() {
    let debug = DebugMsg {
        subtype: 15,
        source: 101,
        hash: 0x5b1e,
        args: [0; 3],
    };
    let socket = TraceSockNotify {
        point: 1,
        l4_proto: 1,
        flags: 0,
        port: 80,
        cookie: 77,
        cgroup_id: 5,
        address: [10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    let events = [event(debug.to_bytes()), event(socket.to_bytes())];

    let debug = "CPU 02: MARK 0x5b1e FROM 101 DEBUG: CT verdict: New, revnat=0\n";
    let socket = "CPU 02: [pre-xlate-fwd] cgroup_id: 5 sock_cookie: 77, dst [10.96.0.1]:80 tcp \n";
    assert_eq!(printed(&[], &events), "");
    assert_eq!(printed(&["-v"], &events), [debug, socket].concat());
    assert_eq!(printed(&["-vv"], &events), debug);
    // Sockets pass every filter.
    assert_eq!(printed(&["-v", "-t", "drop", "--from=3"], &events), socket);
    assert_eq!(
        printed(&["-j"], &events),
        "{\"cpu\":\"CPU 02:\",\"type\":\"debug\",\"message\":\"CT verdict: New, revnat=0\"}\n"
    );
}

#[test]
fn captures_without_a_prefix_are_left_out() {
    let packet = bytes(SYN);
    let capture = |point| {
        let capture = DebugCapture {
            header: header(&packet, 1),
            point,
            args: [1, 0],
            packet: &packet,
        };
        event(capture.to_bytes())
    };

    assert_eq!(
        printed(&[], &[capture(4), capture(10)]),
        "-> lo: 10.1.0.165:55001 -> 10.1.0.221:80 tcp SYN\n"
    );
    assert!(printed(&["-vv"], &[capture(10)]).contains(
        "CPU 02: MARK 0x5b1e FROM 101 DEBUG: 54 bytes, Packet going into snat engine on ifindex 1\nEthernet\t{"
    ));
    assert_eq!(
        printed(&["-j"], &[capture(4)]),
        "{\"cpu\":\"CPU 02:\",\"type\":\"capture\",\"mark\":\"0x5b1e\",\"message\":\"Delivery to ifindex 1\",\"prefix\":\"-\\u003e lo\",\
         \"source\":101,\"bytes\":54,\"summary\":\"10.1.0.165:55001 -\\u003e 10.1.0.221:80 tcp SYN\"}\n"
    );
}

#[test]
fn filters_compare_types_and_endpoints() {
    let packet = bytes(SYN);
    let drop = event(drop_of(&packet, 133, 0).to_bytes());
    let is_printed = |words: &[&str]| !printed(words, std::slice::from_ref(&drop)).is_empty();

    for words in [
        &["-t", "drop"][..],
        &["--type=trace,drop"],
        &["-t", "trace", "-t", "drop"],
        &["--from=101"],
        &["--to", "812"],
        &["--related-to=812"],
        &["--related-to=5,101"],
        &["--from=101", "--to=812", "--related-to=101"],
    ] {
        assert!(is_printed(words), "{words:?}");
    }
    for words in [
        &["-t", "trace"][..],
        &["--from=812"],
        &["--to=101"],
        &["--related-to=5"],
        &["--from=101", "--to=5"],
    ] {
        assert!(!is_printed(words), "{words:?}");
    }
    assert!(message_type("drops").unwrap_err().contains("policy-verdict"));
}

#[test]
fn blocks_have_all_layers_or_bytes() {
    let packet = bytes(SYN);
    let drop = event(drop_of(&packet, 133, 0).to_bytes());
    let rule = "-".repeat(78);

    let text = printed(&["-vv"], std::slice::from_ref(&drop));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(lines[0], rule);
    assert_eq!(
        lines[1],
        "CPU 02: MARK 0x5b1e FROM 101 DROP: 54 bytes, reason Policy denied, identity 23107->30511, to endpoint 812"
    );
    assert!(lines[2].starts_with("Ethernet\t{Contents=[..14..] Payload=[..40..] SrcMAC="));
    assert!(lines[4].starts_with("TCP\t{Contents=[..20..] Payload=[] SrcPort=55001 DstPort=80(http)"));

    let text = printed(&["-vv", "--hex"], &[drop]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[2],
        "00000000  fa c6 a2 69 d4 71 42 27  de d3 0b ad 08 00 45 00  |...i.qB'......E.|"
    );
    assert_eq!(
        lines[5],
        "00000030  ff ff bf 4d 00 00                                 |...M..|"
    );

    let mut trace = trace_of(&packet[..40], 0);
    trace.header = header(&packet[..40], 2);
    trace.header.original_length = 54;
    let text = printed(&["-vv"], &[event(trace.to_bytes())]);
    assert!(text.contains(
        "CPU 02: MARK 0x5b1e FROM 101 to-endpoint: 54 bytes (40 captured), state new, interface lo, , identity host->30511, \
         orig-ip 0.0.0.0, to endpoint 812\n"
    ));
    assert!(
        text.contains("\n  Packet has been truncated\n  Failed to decode layer: "),
        "{text}"
    );
}

#[test]
fn json_has_the_keys_of_cilium_in_their_order() {
    let packet = bytes(SYN);

    let text = printed(&["--json"], &[event(drop_of(&packet, 133, 0).to_bytes())]);

    assert!(
        text.starts_with(
            "{\"cpu\":\"CPU 02:\",\"type\":\"drop\",\"mark\":\"0x5b1e\",\"reason\":\"Policy denied\",\"source\":101,\"bytes\":54,\
             \"srcLabel\":23107,\"dstLabel\":30511,\"dstID\":812,\"Line\":1831,\"File\":2,\"ExtError\":0,\"Ifindex\":12,\
             \"summary\":{\"ethernet\":\"Ethernet\\t{Contents"
        ),
        "{text}"
    );
    assert!(
        text.ends_with(
            "\"l2\":{\"src\":\"42:27:de:d3:0b:ad\",\"dst\":\"fa:c6:a2:69:d4:71\"},\"l3\":{\"src\":\"10.1.0.165\",\
             \"dst\":\"10.1.0.221\"},\"l4\":{\"src\":\"55001\",\"dst\":\"80\"}}}\n"
        ),
        "{text}"
    );
    let text = printed(&["--json"], &[event(trace_of(&[], 0).to_bytes())]);
    assert_eq!(
        text,
        "{\"cpu\":\"CPU 02:\",\"type\":\"trace\",\"mark\":\"0x5b1e\",\"ifindex\":\"lo\",\"state\":\"new\",\
         \"observationPoint\":\"to-endpoint\",\"traceSummary\":\"-\\u003e endpoint 812\",\"source\":101,\"bytes\":0,\"srcLabel\":1,\
         \"dstLabel\":30511,\"dstID\":812,\"IpTraceID\":0}\n"
    );
}

#[test]
fn events_of_the_agent_are_printed() {
    let notify = AgentNotify {
        kind: 5,
        text: r#"{"revision":12,"rule_count":1}"#.to_owned(),
    };
    let events = [event(notify.to_bytes())];

    assert_eq!(
        printed(&[], &events),
        ">> Policy updated: {\"revision\":12,\"rule_count\":1}\n"
    );
    assert_eq!(
        printed(&["-j"], &events),
        "{\"type\":\"agent\",\"subtype\":\"Policy updated\",\"message\":{\"revision\":12,\"rule_count\":1}}\n"
    );
}

#[test]
fn requests_and_responses_have_the_line_of_cilium() {
    let endpoint = |id, identity, label: &str| EndpointInfo {
        address: None,
        id,
        port: 0,
        identity,
        labels: vec![label.to_owned()],
    };
    let mut record = LogRecord {
        kind: "Request".to_owned(),
        observation_point: "Ingress".to_owned(),
        source: endpoint(101, 23_107, "k8s:app=cart"),
        destination: endpoint(812, 30_511, "k8s:app=web"),
        verdict: "Forwarded".to_owned(),
        http: Some(LogRecordHttp {
            method: "GET".to_owned(),
            url: "http://web/ping?a=b&c".to_owned(),
            ..LogRecordHttp::default()
        }),
        ..LogRecord::default()
    };

    assert_eq!(
        access_log::line(&record),
        "<- Request http from 101 ([k8s:app=cart]) to 812 ([k8s:app=web]), identity 23107->30511, verdict Forwarded GET \
         http://web/ping?a=b&c => 0"
    );
    let text = access_log::json(&record);
    assert!(
        text.starts_with(
            "{\"type\":\"logRecord\",\"observationPoint\":\"Ingress\",\"flowType\":\"Request\",\"l7Proto\":\"http\",\"srcEpID\":101,"
        ),
        "{text}"
    );
    assert!(
        text.contains("\"Host\":\"web\",\"Path\":\"/ping\",")
            && text.contains("\"RawQuery\":\"a=b\\u0026c\""),
        "{text}"
    );

    record.http = None;
    record.kind = "Response".to_owned();
    record.observation_point = "Egress".to_owned();
    record.dns = Some(LogRecordDns {
        query: "web.example.".to_owned(),
        ips: vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
        ttl: 30,
        cnames: vec!["other.example.".to_owned()],
        observation_source: "proxy".to_owned(),
        qtypes: vec![1, 28],
        ..LogRecordDns::default()
    });
    assert_eq!(
        access_log::line(&record),
        "-> Response dns to 812 ([k8s:app=web]) from 101 ([k8s:app=cart]), identity 23107->30511, verdict Forwarded DNS proxy: \
         web.example. A,AAAA TTL: 30 Answer: '10.0.0.1,10.0.0.2' CNAMEs: other.example."
    );

    record.dns = None;
    record.kind = "Sample".to_owned();
    record.l7 = Some(LogRecordL7 {
        proto: "kafka".to_owned(),
        fields: [("topic", "cart"), ("status", "0")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    });
    assert_eq!(access_log::line(&record), " topic:cart => status:0");
}

#[test]
fn what_is_lost_or_unknown_is_said() {
    let lost = Payload::Lost { cpu: 3, count: 17 };
    let unknown = Payload::Unknown {
        kind: 4,
        cpu: 3,
        count: 0,
    };

    assert_eq!(printed(&[], &[lost]), "CPU 03: Lost 17 events\n");
    assert_eq!(
        printed(&["-j"], &[unknown]),
        "Unknown payload type: 4, CPU 03: Lost 0 events\n"
    );
    assert_eq!(
        printed(&[], &[event(vec![6, 200])]),
        "CPU 02: Unknown event: [6 200]\n"
    );
    assert_eq!(
        printed(&[], &[event(vec![1, 133])]),
        "cannot decode message type '1': drop event too short: 2 bytes, expected at least 16\n"
    );
}

#[test]
fn a_connection_is_followed_to_its_end() {
    let mut bytes = payload::DEFINITION.to_vec();
    bytes.extend(payload::lost_message(0, 1));
    let mut formatter = command(&[]).formatter(false);
    let mut out = Vec::new();

    follow(bytes.as_slice(), &mut formatter, &mut out).unwrap();
    assert_eq!(out, b"CPU 00: Lost 1 events\n");

    let error = follow(&[3, 200, 0, 0][..], &mut formatter, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "decoding error");
    let error = open(Path::new("/nowhere/monitor.sock")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("Cannot open monitor socket /nowhere/monitor.sock")
    );
}
