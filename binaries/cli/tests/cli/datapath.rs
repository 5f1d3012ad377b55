// SPDX-License-Identifier: Apache-2.0

//! What the command prints of the maps of the packet programs, to the byte; there is no agent.

use std::{error::Error, process::Command};

use skep_bpf_maps::{
    MapSizes,
    endpoint::{LXC, LxcKey, LxcValue, lxc_flags},
    event::{METRICS, MetricsKey, MetricsValue},
    fragment::{FRAGMENTS4, FragmentKey4, FragmentPorts},
    ip_masq::{IP_MASQ4, IP_MASQ6, IpMasqKey4, IpMasqKey6},
    node::{IPCACHE, IpcacheKey, IpcacheValue},
    policy::{POLICIES, POLICY_STATS, PolicyEntry, PolicyKey, PolicyStats},
    text::Text,
    throttle::{THROTTLE, ThrottleKey, ThrottleValue},
};
use skep_bpf_sys::{MapError, RawMap, map::possible_cpus, testing::Node};
use zerocopy::{FromZeros, IntoBytes};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn with_node(name: &str, test: impl FnOnce(&Node) -> Outcome + Send) {
    if let Err(error) = Node::run(name, test) {
        panic!("{error}: {:?}", error.source());
    }
}

fn output(node: &Node, words: &[&str]) -> Outcome<(bool, String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_skep"))
        .arg(format!("--bpf-root={}", node.bpf_root().display()))
        .arg("bpf")
        .args(words)
        .output()?;
    Ok((
        output.status.success(),
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    ))
}

/// What `skep bpf` prints; it must succeed.
fn skep(node: &Node, words: &[&str]) -> Outcome<String> {
    let (is_ok, text, errors) = output(node, words)?;
    assert!(is_ok && errors.is_empty(), "{words:?}: {errors}");
    Ok(text)
}

/// An entry with this value on two CPUs at most, zero on others.
fn per_cpu(map: &dyn RawMap, key: &[u8], value: &[u8]) {
    let mut values = vec![0; value.len() * possible_cpus() as usize];
    for slot in values.chunks_exact_mut(value.len()).take(2) {
        slot.copy_from_slice(value);
    }
    assert!(map.update(key, &values).is_empty());
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).collect()
}

#[test]
fn counters_are_sums_with_their_source() {
    with_node("cli-counters", |node| {
        let map = node.store().provide(METRICS.spec(&MapSizes::default()).raw())?;
        let key = |reason, direction, line, file| MetricsKey {
            reason,
            direction,
            line,
            file,
            reserved: [0; 3],
        };
        let value = MetricsValue { count: 3, bytes: 162 };
        per_cpu(&map, key(133, 1, 1831, 2).as_bytes(), value.as_bytes());
        per_cpu(&map, key(0, 2, 1129, 1).as_bytes(), value.as_bytes());
        let cpus = u64::from(possible_cpus().min(2));
        let (packets, bytes) = (3 * cpus, 162 * cpus);

        let text = skep(node, &["metrics", "list"])?;
        assert_eq!(
            lines(&text),
            [
                "REASON          DIRECTION   PACKETS   BYTES   LINE   FILE".to_owned(),
                format!("Policy denied   INGRESS     {packets:<9} {bytes:<7} 1831   bpf_lxc.c"),
                format!("Success         EGRESS      {packets:<9} {bytes:<7} 1129   bpf_host.c"),
            ]
        );
        let json: serde_json::Value = serde_json::from_str(&skep(node, &["metrics", "list", "-o", "json"])?)?;
        assert_eq!(
            json[1],
            serde_json::json!({"reason": "Success", "direction": "egress", "packets": packets, "bytes": bytes,
                "line": 1129, "file": "bpf_host.c"})
        );

        let path = node.store().path(METRICS.name).display().to_string();
        assert_eq!(
            skep(node, &["metrics", "flush"])?,
            format!("Flushed 2 entries from {path}\n")
        );
        let (is_ok, text, errors) = output(node, &["metrics", "list"])?;
        assert!(
            is_ok && text.is_empty() && errors == "No entries found.\n",
            "{errors}"
        );
        Ok(())
    });
}

#[test]
fn addresses_have_the_identity_of_the_longest_network() {
    with_node("cli-ipcache", |node| {
        let map = node.store().open_or_create(&IPCACHE.spec(&MapSizes::default()))?;
        for (network, bits, identity) in [
            ("0.0.0.0", 0, 2),
            ("10.0.0.0", 8, 300),
            ("10.0.2.8", 32, 52_311),
            ("::", 0, 2),
            ("fd00::", 64, 300),
        ] {
            let key = IpcacheKey::prefix(network.parse()?, bits);
            map.update(&key, &IpcacheValue::new(identity))?;
        }
        let found = |address: &str| -> Outcome<String> {
            let text = skep(node, &["ipcache", "get", address])?;
            Ok(text.split_whitespace().take(5).collect::<Vec<_>>().join(" "))
        };

        assert_eq!(found("10.0.2.8")?, "10.0.2.8 maps to identity identity=52311");
        assert_eq!(found("10.0.2.9")?, "10.0.2.9 maps to identity identity=300");
        assert_eq!(found("192.0.2.1")?, "192.0.2.1 maps to identity identity=2");
        assert_eq!(found("fd00::1")?, "fd00::1 maps to identity identity=300");
        let exact = skep(node, &["ipcache", "match", "10.0.0.0/8"])?;
        assert!(
            exact.starts_with("10.0.0.0/8 maps to identity identity=300 "),
            "{exact}"
        );
        let (is_ok, text, _) = output(node, &["ipcache", "match", "10.0.2.0/24"])?;
        assert!(
            !is_ok && text == "10.0.2.0/24 does not map to any identity\n",
            "{text}"
        );
        let text = skep(node, &["ipcache", "match", "300"])?;
        let prefixes: Vec<&str> = lines(&text)
            .iter()
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(prefixes, ["IP", "10.0.0.0/8", "fd00::/64"]);
        assert_eq!(lines(&skep(node, &["ipcache", "list"])?).len(), 6);

        map.delete(&IpcacheKey::prefix("::".parse()?, 0))?;
        let (is_ok, text, _) = output(node, &["ipcache", "get", "2001:db8::1"])?;
        assert!(
            !is_ok && text == "2001:db8::1 does not map to any identity\n",
            "{text}"
        );
        Ok(())
    });
}

#[test]
fn addresses_are_updated_and_deleted() {
    with_node("cli-ipcache-update", |node| {
        let map = node.store().open_or_create(&IPCACHE.spec(&MapSizes::default()))?;
        let update = |words: &[&str]| skep(node, &[&["ipcache", "update"], words].concat());

        assert_eq!(update(&["10.0.2.8", "--identity", "52311"])?, "");
        update(&[
            "10.9.9.9/8",
            "--identity=300",
            "--tunnelendpoint=192.168.5.12",
            "--encryptkey=3",
            "--skiptunnel",
        ])?;
        update(&["fd00::/64", "--identity=7", "--tunnelendpoint=fd00:30::2"])?;
        update(&["10.0.2.8", "--identity=52312", "--clusterid=5"])?;

        let key =
            |network: &str, bits| -> Outcome<IpcacheKey> { Ok(IpcacheKey::prefix(network.parse()?, bits)) };
        assert_eq!(
            map.lookup(&key("10.0.2.8", 32)?)?,
            Some(IpcacheValue::new(52_311))
        );
        let tunnelled = map.lookup(&key("10.0.0.0", 8)?)?.unwrap();
        assert_eq!(
            tunnelled.text(),
            "identity=300 encryptkey=3 tunnelendpoint=192.168.5.12 flags=skiptunnel,hastunnel"
        );
        let of_ipv6 = map.lookup(&key("fd00::", 64)?)?.unwrap();
        assert_eq!(
            of_ipv6.text(),
            "identity=7 encryptkey=0 tunnelendpoint=fd00:30::2 flags=hastunnel,ipv6tunnel"
        );
        let of_cluster = IpcacheKey {
            cluster_id: 5,
            ..key("10.0.2.8", 32)?
        };
        assert_eq!(map.lookup(&of_cluster)?, Some(IpcacheValue::new(52_312)));

        // A lookup would find the network around an address.
        let has =
            |wanted: IpcacheKey| Ok::<_, MapError>(map.entries()?.iter().any(|(key, _)| *key == wanted));
        assert_eq!(skep(node, &["ipcache", "delete", "10.0.2.8"])?, "");
        assert!(!has(key("10.0.2.8", 32)?)? && has(of_cluster)?);
        skep(node, &["ipcache", "delete", "10.0.2.8", "--clusterid=5"])?;
        assert!(!has(of_cluster)? && has(key("10.0.0.0", 8)?)?);

        for (words, error) in [
            (
                &["delete", "10.0.2.8"][..],
                "map cilium_ipcache_v2 has no entry for 10.0.2.8/32",
            ),
            (&["update", "10.0.2.8"], "--identity"),
            (
                &["update", "10.0.2.8/33", "--identity=1"],
                "neither an address nor a network",
            ),
            (&["update", "10.0.2.8", "--identity=x"], "invalid value 'x'"),
        ] {
            let (is_ok, text, errors) = output(node, &[&["ipcache"], words].concat())?;
            assert!(!is_ok && text.is_empty() && errors.contains(error), "{errors}");
        }
        Ok(())
    });
}

#[test]
fn policies_have_a_row_an_entry() {
    with_node("cli-policy", |node| {
        let store = node.store();
        let sizes = MapSizes::default();
        let policy = POLICIES.inner_spec("cilium_policy_v2_00007", &sizes).unwrap();
        let map = store.provide(&policy)?;
        let add = |key: PolicyKey, entry: PolicyEntry| {
            assert!(map.update(key.as_bytes(), entry.as_bytes()).is_empty());
        };
        let key = |bits: u32, identity, direction, proto, port: u16| PolicyKey {
            prefix_len: 40 + bits,
            identity,
            direction,
            proto,
            port: port.into(),
        };
        let entry = |flags, proxy_port: u16| PolicyEntry {
            proxy_port: proxy_port.into(),
            flags,
            auth: 0,
            precedence: 1,
            cookie: 0,
        };
        add(key(0, 1, 0, 0, 0), entry(0, 0));
        add(key(24, 52_310, 1, 6, 5432), entry(1, 0));
        add(key(24, 0, 1, 17, 53), entry(0, 10_000));
        let stats = store.provide(POLICY_STATS.spec(&sizes).raw())?;
        let counted = PolicyStats {
            packets: 2,
            bytes: 120,
        };
        per_cpu(
            &stats,
            key(0, 1, 0, 0, 0).stats_key(7).as_bytes(),
            counted.as_bytes(),
        );
        let cpus = u64::from(possible_cpus().min(2));

        let (is_ok, text, errors) = output(node, &["policy", "get", "7"])?;
        assert!(is_ok && errors.contains("52310"), "{errors}");
        let rows: Vec<Vec<&str>> = lines(&text)
            .iter()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let (packets, bytes) = ((2 * cpus).to_string(), (120 * cpus).to_string());
        assert!(text.starts_with(
            "POLICY   DIRECTION   LABELS (source:key[=value])   PORT/PROTO   PROXY PORT   AUTH TYPE   BYTES"
        ));
        assert_eq!(
            rows[1..],
            [
                vec![
                    "Deny", "Egress", "52310", "5432/TCP", "NONE", "disabled", "-", "-", "24", "0"
                ],
                vec![
                    "Allow",
                    "Ingress",
                    "reserved:host",
                    "ANY",
                    "NONE",
                    "disabled",
                    &bytes,
                    &packets,
                    "0",
                    "0"
                ],
                vec![
                    "Allow", "Egress", "ANY", "53/UDP", "10000", "disabled", "-", "-", "24", "0"
                ],
            ]
        );
        assert!(skep(node, &["policy", "get", "7", "--numeric"])?.contains("Ingress     1          ANY"));
        let path = store.path("cilium_policy_v2_00007").display().to_string();
        assert_eq!(output(node, &["policy", "get", &path])?.1, text);
        store.provide(&POLICIES.inner_spec("cilium_policy_v2_11000", &sizes).unwrap())?;
        let empty = "Policy stats empty. Perhaps the policy enforcement is disabled?\n";
        assert_eq!(skep(node, &["policy", "get", "11000"])?, empty);
        let other = store.path("cilium_policy_v2_11000").display().to_string();
        let all = format!(
            "Endpoint ID: 7\nPath: {path}\n\n{text}\n\nEndpoint ID: 11000\nPath: {other}\n\n{empty}\n\n"
        );
        assert_eq!(output(node, &["policy", "list"])?.1, all);
        assert_eq!(output(node, &["policy", "get", "--all"])?.1, all);
        for (wrong, error) in [
            ("8", "Failed to open map: no such file or directory"),
            ("shop", "Failed to parse endpointID \"shop\""),
        ] {
            let (is_ok, _, errors) = output(node, &["policy", "get", wrong])?;
            assert!(!is_ok && errors.contains(error), "{errors}");
        }
        Ok(())
    });
}

#[test]
fn endpoints_and_fragments_are_listed() {
    with_node("cli-endpoints", |node| {
        let store = node.store();
        let sizes = MapSizes::default();
        let map = store.open_or_create(&LXC.spec(&sizes))?;
        let host = LxcValue {
            flags: lxc_flags::HOST,
            ..LxcValue::new_zeroed()
        };
        map.update(&LxcKey::new("10.0.1.7".parse()?), &host)?;
        let map = store.open_or_create(&FRAGMENTS4.spec(&sizes))?;
        let datagram = FragmentKey4 {
            saddr: [10, 0, 1, 7],
            daddr: [10, 0, 1, 8],
            id: 0x1234.into(),
            proto: 17,
            ..FragmentKey4::new_zeroed()
        };
        let ports = FragmentPorts {
            sport: 4000.into(),
            dport: 53.into(),
        };
        map.update(&datagram, &ports)?;

        assert_eq!(
            lines(&skep(node, &["endpoint", "list"])?),
            ["IP ADDRESS   LOCAL ENDPOINT INFO", "10.0.1.7:0   (localhost)"]
        );
        let text = skep(node, &["frag", "list"])?;
        assert!(
            text.contains("UDP 10.0.1.7 -> 10.0.1.8 id=0x") && text.contains("4000 -> 53"),
            "{text}"
        );

        assert_eq!(skep(node, &["endpoint", "delete", "10.0.1.7"])?, "");
        assert_eq!(output(node, &["endpoint", "list"])?.2, "No entries found.\n");
        let (is_ok, _, errors) = output(node, &["endpoint", "delete", "10.0.1.7"])?;
        assert!(
            !is_ok && errors.contains("map cilium_lxc has no entry for 10.0.1.7"),
            "{errors}"
        );
        Ok(())
    });
}

#[test]
fn rates_of_endpoints_are_listed() {
    with_node("cli-bandwidth", |node| {
        let (is_ok, _, error) = output(node, &["bandwidth", "list"])?;
        assert!(
            !is_ok && error.contains("bandwidth manager not enabled"),
            "{error}"
        );

        let map = node
            .store()
            .open_or_create(&THROTTLE.spec(&MapSizes::default()))?;
        assert_eq!(output(node, &["bandwidth", "list"])?.2, "No entries found.\n");
        for (endpoint, direction, rate, priority) in [
            (724, ThrottleKey::INGRESS, 134_217_728, 0),
            (724, ThrottleKey::EGRESS, 1_250_000, 7),
            (2, ThrottleKey::EGRESS, 0, 0),
        ] {
            let value = ThrottleValue {
                rate,
                priority,
                ..ThrottleValue::default()
            };
            map.update(&ThrottleKey::new(endpoint, direction), &value)?;
        }

        assert_eq!(
            lines(&skep(node, &["bandwidth", "list"])?),
            [
                "IDENTITY   DIRECTION   PRIO   BANDWIDTH (BitsPerSec)",
                "2          Egress      0      0",
                "724        Egress      7      10M",
                "724        Ingress     0      1073741824",
            ]
        );
        Ok(())
    });
}

#[test]
fn networks_without_masquerading_are_listed() {
    with_node("cli-ipmasq", |node| {
        let (is_ok, _, error) = output(node, &["ipmasq", "list"])?;
        assert!(is_ok && error == "No entries found.\n", "{error}");

        let (store, sizes) = (node.store(), MapSizes::default());
        let of_ipv4 = store.open_or_create(&IP_MASQ4.spec(&sizes))?;
        of_ipv4.update(&IpMasqKey4::new([10, 0, 0, 0].into(), 8), &0)?;
        let of_ipv6 = store.open_or_create(&IP_MASQ6.spec(&sizes))?;
        of_ipv6.update(&IpMasqKey6::new("fd00::".parse()?, 64), &0)?;

        assert_eq!(
            lines(&skep(node, &["ipmasq", "list"])?),
            ["IP PREFIX/ADDRESS", "10.0.0.0/8", "fd00::/64"]
        );
        let json: serde_json::Value = serde_json::from_str(&skep(node, &["ipmasq", "list", "-o", "json"])?)?;
        assert_eq!(
            json,
            serde_json::json!([{"cidr": "10.0.0.0/8"}, {"cidr": "fd00::/64"}])
        );
        Ok(())
    });
}
