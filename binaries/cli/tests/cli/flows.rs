// SPDX-License-Identifier: Apache-2.0

//! What `skep bpf ct` and `skep bpf nat` print and delete; there is no agent.

use std::{error::Error, process::Command};

use serde_json::Value;
use skep_bpf_maps::{
    MapSizes,
    conntrack::{CT_ANY_MAX, CT_ANY4, CT_TCP_MAX, CT_TCP4, CT_TCP6, CtEntry, CtKey4, CtKey6, entry_flags},
    endpoint::{LXC, LxcKey, LxcValue},
    nat::{NAT_MAX, NAT_RETRIES4, NAT4, NatEntry4, NatKey4},
};
use skep_bpf_sys::{RawMap as _, clock::kernel_seconds, testing::Node};
use zerocopy::{FromZeros as _, network_endian::U16};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn sizes() -> MapSizes {
    MapSizes::default()
        .with(CT_TCP_MAX, 1024)
        .with(CT_ANY_MAX, 1024)
        .with(NAT_MAX, 1024)
}

/// Runs a test on a node with a connection of the endpoint 7, its translation, and a flow to a service.
fn with_flows(name: &str, test: impl FnOnce(&Node) -> Outcome + Send) {
    let result = Node::run(name, |node| {
        fill(node)?;
        test(node)
    });
    if let Err(error) = result {
        panic!("{error}: {:?}", error.source());
    }
}

const POD: [u8; 4] = [10, 0, 1, 23];

fn fill(node: &Node) -> Outcome {
    let store = node.store();
    let sizes = sizes();
    let flow = CtKey4 {
        daddr: POD,
        saddr: [1, 2, 3, 4],
        dport: U16::new(443),
        sport: U16::new(41_210),
        proto: 6,
        flags: 0,
    };
    let entry = CtEntry {
        lifetime: 912_345,
        flags: entry_flags::RX_CLOSING | entry_flags::TX_CLOSING | entry_flags::SEEN_NON_SYN,
        rx_flags_seen: 0x1b,
        tx_flags_seen: 0x1b,
        last_rx_report: 904_340,
        last_tx_report: 904_340,
        rev_nat: U16::new(2),
        source_identity: 52_310,
        ..CtEntry::new_zeroed()
    };
    store
        .open_or_create(&CT_TCP4.spec(&sizes))?
        .update(&flow, &entry)?;
    let service = CtKey4 {
        daddr: [10, 96, 0, 10],
        saddr: [10, 0, 1, 99],
        dport: U16::new(51_000),
        sport: U16::new(53),
        proto: 17,
        flags: 4,
    };
    let mut to_backend = CtEntry {
        lifetime: u32::MAX,
        rev_nat: U16::new(2),
        source_identity: 52_310,
        ..CtEntry::new_zeroed()
    };
    to_backend.nat_address[8..].copy_from_slice(&7_u64.to_ne_bytes());
    store
        .open_or_create(&CT_ANY4.spec(&sizes))?
        .update(&service, &to_backend)?;
    let far = CtKey6 {
        daddr: "fd00::1".parse::<std::net::Ipv6Addr>()?.octets(),
        saddr: "fd00::2".parse::<std::net::Ipv6Addr>()?.octets(),
        dport: U16::new(80),
        sport: U16::new(4000),
        proto: 6,
        flags: 1,
    };
    store.open_or_create(&CT_TCP6.spec(&sizes))?.update(
        &far,
        &CtEntry {
            lifetime: u32::MAX,
            ..CtEntry::new_zeroed()
        },
    )?;

    let nat = store.open_or_create(&NAT4.spec(&sizes))?;
    let key = NatKey4 {
        daddr: [1, 2, 3, 4],
        saddr: POD,
        dport: U16::new(443),
        sport: U16::new(41_210),
        proto: 6,
        flags: 0,
    };
    let now = std::fs::read_to_string("/proc/uptime")?;
    let now: f64 = now.split_whitespace().next().unwrap_or_default().parse()?;
    let entry = NatEntry4 {
        created: (now as u64).saturating_sub(1000),
        address: [192, 168, 5, 11],
        port: U16::new(50_000),
        ..NatEntry4::new_zeroed()
    };
    nat.update(&key, &entry)?;
    let answers = NatKey4 {
        daddr: [192, 168, 5, 11],
        saddr: [1, 2, 3, 4],
        dport: U16::new(50_000),
        sport: U16::new(443),
        proto: 6,
        flags: 1,
    };
    let entry = NatEntry4 {
        address: POD,
        port: U16::new(41_210),
        ..entry
    };
    nat.update(&answers, &entry)?;

    let endpoint = LxcValue {
        endpoint: 7,
        ..LxcValue::default()
    };
    store
        .open_or_create(&LXC.spec(&sizes))?
        .update(&LxcKey::new(POD.into()), &endpoint)?;
    Ok(())
}

fn run(node: &Node, words: &[&str]) -> Outcome<std::process::Output> {
    let output = Command::new(env!("CARGO_BIN_EXE_skep"))
        .arg(format!("--bpf-root={}", node.bpf_root().display()))
        .args(words)
        .output()?;
    Ok(output)
}

/// What `skep` prints; it must succeed.
fn skep(node: &Node, words: &[&str]) -> Outcome<String> {
    let output = run(node, words)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}

/// What `skep` says on the standard error; it must fail.
fn refused(node: &Node, words: &[&str]) -> Outcome<String> {
    let output = run(node, words)?;
    assert!(!output.status.success(), "{words:?}");
    Ok(String::from_utf8(output.stderr)?)
}

const OUT: &str = "TCP OUT 10.0.1.23:41210 -> 1.2.3.4:443 expires=912345 Packets=0 Bytes=0 RxFlagsSeen=0x1b \
    LastRxReport=904340 TxFlagsSeen=0x1b LastTxReport=904340 Flags=0x0013 [ RxClosing TxClosing SeenNonSyn ] RevNAT=2 \
    SourceSecurityID=52310 BackendID=0 NatPort=0";

#[test]
fn connections_are_printed_as_cilium_prints_them() {
    with_flows("ct-list", |node| {
        let text = skep(node, &["bpf", "ct", "list", "global"])?;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], OUT);
        assert_eq!(
            lines[1],
            "UDP SVC 10.0.1.99:51000 -> 10.96.0.10:53 expires=4294967295 Packets=0 Bytes=0 RxFlagsSeen=0x00 \
             LastRxReport=0 TxFlagsSeen=0x00 LastTxReport=0 Flags=0x0000 [ ] RevNAT=2 SourceSecurityID=52310 \
             BackendID=7 NatPort=0"
        );
        assert!(lines[2].starts_with("TCP IN [fd00::1]:4000 -> [fd00::2]:80 expires=4294967295 "));
        assert_eq!(lines.len(), 3);

        let text = skep(node, &["bpf", "ct", "list", "-d"])?;
        assert!(text.contains(" expires=4294967295 (remaining: 42"), "{text}");
        let text = skep(node, &["bpf", "ct", "list", "7"])?;
        assert_eq!(text, format!("{OUT}\n"), "of the endpoint");

        let json: Value = serde_json::from_str(&skep(node, &["bpf", "ct", "list", "-o", "json"])?)?;
        assert_eq!(json.as_array().map(Vec::len), Some(3));
        assert_eq!(json[0]["source"], "10.0.1.23:41210");
        assert_eq!(
            json[0]["flags"],
            serde_json::json!(["RxClosing", "TxClosing", "SeenNonSyn"])
        );
        assert_eq!(
            (&json[1]["direction"], &json[1]["backendId"]),
            (&"SVC".into(), &7.into())
        );
        let yaml = skep(node, &["bpf", "ct", "list", "-o", "yaml"])?;
        assert_eq!(
            yaml.lines().filter(|line| line.starts_with("- ")).count(),
            3,
            "{yaml}"
        );
        Ok(())
    });
}

#[test]
fn times_are_those_of_programs_in_a_time_namespace() {
    with_flows("ct-time", |node| {
        let skep = env!("CARGO_BIN_EXE_skep");
        let list = |words: &[&str]| -> Outcome<String> {
            let output = Command::new("unshare")
                .args(["--time", "--fork", "--monotonic", "1000000", skep])
                .arg(format!("--bpf-root={}", node.bpf_root().display()))
                .args(words)
                .output()?;
            assert!(output.status.success(), "{output:?}");
            Ok(String::from_utf8(output.stdout)?)
        };
        let now = kernel_seconds()?;

        let text = list(&["bpf", "ct", "list", "-d", "7"])?;
        let remaining = text
            .split_once("(remaining: ")
            .and_then(|(_, rest)| rest.split_once(' '));
        let remaining: i64 = remaining.ok_or("no time")?.0.parse()?;
        assert!((912_345 - now as i64 - remaining).abs() < 60, "{text}");

        let text = list(&["bpf", "nat", "list"])?;
        assert!(text.contains(" Created=10"), "{text}");
        Ok(())
    });
}

#[test]
fn a_flush_of_an_endpoint_deletes_nothing_else_that_has_expired() {
    with_flows("ct-flush-expired", |node| {
        let map = node.store().open::<CtKey4, CtEntry>(CT_TCP4.name)?;
        let other = CtKey4 {
            daddr: [10, 0, 1, 77],
            ..map.keys()?[0]
        };
        map.update(&other, &CtEntry::new_zeroed())?;

        skep(node, &["bpf", "ct", "flush", "7"])?;

        assert_eq!(map.keys()?, [other]);
        Ok(())
    });
}

#[test]
fn what_is_not_there_is_named() {
    with_flows("ct-errors", |node| {
        let error = refused(node, &["bpf", "ct", "list", "8"])?;
        assert!(error.contains("no endpoint has the id 8"), "{error}");
        let error = refused(node, &["bpf", "ct", "list", "pods"])?;
        assert!(error.contains("`pods` is neither"), "{error}");
        let error = refused(node, &["bpf", "ct", "list", "cluster", "3"])?;
        assert!(error.contains("cilium_per_cluster_ct_tcp4_3"), "{error}");
        let words = "bpf ct list -d --time-diff-clocksource-mode jiffies --time-diff-clocksource-hz 0";
        let words: Vec<&str> = words.split(' ').collect();
        let error = refused(node, &words)?;
        assert!(error.contains("must be larger than 0"), "{error}");
        let error = refused(node, &["bpf", "nat", "retries", "list"])?;
        assert!(error.contains("cilium_snat_v4_alloc_retries"), "{error}");
        let error = refused(node, &["bpf", "lb", "maglev", "get", "9"])?;
        assert!(error.contains("maglev"), "{error}");
        Ok(())
    });
}

#[test]
fn flushed_connections_take_their_translations_with_them() {
    with_flows("ct-flush", |node| {
        let text = skep(node, &["bpf", "ct", "flush", "7"])?;
        assert!(text.starts_with("Flushed 1 entries from "), "{text}");
        assert!(
            text.contains("/tc/globals/cilium_ct4_global\nFlushed 0 entries"),
            "{text}"
        );
        assert_eq!(skep(node, &["bpf", "nat", "list"])?, "");
        assert_eq!(skep(node, &["bpf", "ct", "list"])?.lines().count(), 2);

        skep(node, &["bpf", "ct", "flush"])?;
        assert_eq!(skep(node, &["bpf", "ct", "list"])?, "");
        assert_eq!(skep(node, &["bpf", "ct", "list", "-o", "json"])?, "[]\n");
        assert_eq!(skep(node, &["bpf", "ct", "list", "-o", "yaml"])?, "[]\n\n");
        Ok(())
    });
}

#[test]
fn translations_are_printed_and_flushed() {
    with_flows("nat", |node| {
        let text = skep(node, &["bpf", "nat", "list"])?;
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let [answers, forward] = lines[..] else {
            panic!("{text}")
        };
        assert!(
            forward.starts_with(
                "TCP OUT 10.0.1.23:41210 -> 1.2.3.4:443 XLATE_SRC 192.168.5.11:50000 Created=100"
            ) && forward.ends_with("sec ago NeedsCT=0"),
            "{forward}"
        );
        assert!(
            answers
                .starts_with("TCP IN 1.2.3.4:443 -> 192.168.5.11:50000 XLATE_DST 10.0.1.23:41210 Created="),
            "{answers}"
        );

        let text = skep(node, &["bpf", "nat", "flush"])?;
        assert!(text.starts_with("Flushed 2 entries from "), "{text}");
        assert_eq!(skep(node, &["bpf", "nat", "list"])?, "");
        Ok(())
    });
}

#[test]
fn tries_are_counted_over_all_cpus() {
    with_flows("retries", |node| {
        let map = node.store().provide(&NAT_RETRIES4.family.spec(&sizes()))?;
        let cpus = map.value_len() / 8;
        let value: Vec<u8> = (0..cpus).flat_map(|_| [3, 0, 0, 0, 0, 0, 0, 0]).collect();
        assert!(map.update(&2_u32.to_ne_bytes(), &value).is_empty());
        assert!(map.update(&32_u32.to_ne_bytes(), &value).is_empty());
        let count = 3 * cpus;

        let text = skep(node, &["bpf", "nat", "retries", "list"])?;
        let rows: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            rows,
            [
                "FAMILY RETRIES COUNT".to_owned(),
                format!("IPv4 2 {count}"),
                format!("IPv4 none found {count}"),
            ]
        );

        skep(node, &["bpf", "nat", "retries", "flush"])?;
        let text = skep(node, &["bpf", "nat", "retries", "list"])?;
        assert_eq!(text.lines().count(), 1, "{text}");
        Ok(())
    });
}
