// SPDX-License-Identifier: Apache-2.0

//! What the command prints of pinned maps, to the byte; there is no agent.

use std::{
    error::Error,
    process::Command,
    time::{Duration, Instant},
};

use skep_bpf_maps::{
    IpFamily, MapSizes,
    event::METRICS,
    lb::*,
    names_of,
    policy::{POLICIES, PolicyEntry, PolicyKey},
    testing::{Frontend, LbMaps},
};
use skep_bpf_sys::{RawMap as _, testing::Node};
use zerocopy::IntoBytes as _;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SIZES: LbMapSizes = LbMapSizes::small(64);

/// Runs a test on a node with some of everything in its maps.
fn with_maps(name: &str, test: impl FnOnce(&Node) -> Outcome + Send) {
    let result = Node::run(name, |node| {
        fill(node)?;
        test(node)
    });
    if let Err(error) = result {
        panic!("{error}: {:?}", error.source());
    }
}

fn fill(node: &Node) -> Outcome {
    let store = node.store();
    let maps = LbMaps::open(&store, SIZES)?;
    let external = ServiceFlags::LOAD_BALANCER
        .with(ServiceFlags::ROUTABLE, true)
        .with(ServiceFlags::INT_LOCAL, true)
        .with(ServiceFlags::TWO_SCOPES, true);

    maps.upsert(&Frontend::new(
        4,
        "10.96.0.10:53".parse()?,
        UDP,
        &["10.244.1.7:53".parse()?],
    ))?;
    maps.services4.update(
        &Service4Key::wildcard([10, 96, 0, 10].into()),
        &ServiceValue::default(),
    )?;
    maps.upsert(&Frontend {
        scope: Scope::Internal,
        ..Frontend::new(9, "1.1.1.1:80".parse()?, TCP, &[]).flags(external)
    })?;
    maps.upsert(&Frontend {
        l7_port: 10_000,
        ..Frontend::new(5, "10.96.0.11:80".parse()?, TCP, &[])
    })?;
    maps.upsert(&Frontend::new(56, "[::]:8126".parse()?, TCP, &[]).flags(ServiceFlags::HOST_PORT))?;
    // A slot that leads nowhere.
    let dangling = Service4Key::new([10, 96, 0, 12].into(), 80, TCP, Scope::External).at(1);
    maps.services4
        .update(&dangling, &ServiceValue::slot(7, 6, ServiceFlags::empty()))?;
    let mut zoned = Backend6::new("fd00::7".parse()?, 8080, TCP);
    (zoned.zone, zoned.state) = (3, 1);
    maps.backends6.update(&BackendKey::new(12), &zoned)?;

    let sizes = MapSizes::from(SIZES);
    store.open_or_create(&REVERSE_NAT4.spec(&sizes))?.update(
        &ReverseNatKey::new(4),
        &ReverseNat4::new([10, 96, 0, 10].into(), 53),
    )?;
    store
        .open_or_create(&REVERSE_NAT6.spec(&sizes))?
        .update(&ReverseNatKey::new(56), &ReverseNat6::new("::".parse()?, 8126))?;
    store
        .open_or_create(&SOURCE_RANGE4.spec(&sizes))?
        .update(&SourceRange4Key::new(9, [10, 0, 0, 0].into(), 8), &0)?;
    store
        .open_or_create(&SOURCE_RANGE6.spec(&sizes))?
        .update(&SourceRange6Key::new(9, "fd00::".parse()?, 8), &0)?;
    store.open_or_create_nested(&MAGLEV6.spec(&sizes))?;
    let mut table = vec![1; SIZES.maglev_table as usize];
    table[1] = 2;
    store
        .open_or_create_nested(&MAGLEV4.spec(&sizes))?
        .update(&MaglevKey::new(4), &table)?;
    Ok(())
}

/// What `skep` prints; it must succeed.
fn skep(node: &Node, words: &[&str]) -> Outcome<String> {
    let (out, errors) = skep_both(node, words)?;
    assert_eq!(errors, "", "{words:?}");
    Ok(out)
}

/// What `skep` prints, and what it says on the standard error; it must succeed.
fn skep_both(node: &Node, words: &[&str]) -> Outcome<(String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_skep"))
        .arg(format!("--bpf-root={}", node.bpf_root().display()))
        .arg("--shell-sock-path=/nowhere/shell.sock")
        .arg("--host=unix:///nowhere/agent.sock")
        .args(words)
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    Ok((String::from_utf8(output.stdout)?, errors.into_owned()))
}

/// Every line ends as written here: blanks at the ends of lines count.
#[track_caller]
fn assert_lines(found: &str, expected: &[&str]) {
    let found: Vec<&str> = found.split('\n').collect();
    assert_eq!(found[..found.len() - 1], *expected, "\n{}", found.join("\n"));
    assert_eq!(found.last(), Some(&""), "no newline at the end");
}

#[test]
fn services_and_their_backends() {
    with_maps("cli-list", |node| {
        assert_lines(
            &skep(node, &["bpf", "lb", "list"])?,
            &[
                "SERVICE ADDRESS         BACKEND ADDRESS (REVNAT_ID) (SLOT)",
                "1.1.1.1:80/TCP/i (0)    0.0.0.0:0 (9) (0) [LoadBalancer, InternalLocal, two-scopes]                              ",
                "10.96.0.10:0/ANY (0)    0.0.0.0:0 (0) (0) [ClusterIP, non-routable]                                              ",
                "10.96.0.10:53/UDP (0)   0.0.0.0:0 (4) (0) [ClusterIP, non-routable]                                              ",
                "10.96.0.10:53/UDP (1)   10.244.1.7:53/UDP (4) (1)                                                                ",
                "10.96.0.11:80/TCP (0)   0.0.0.0:0 (5) (0) [ClusterIP, non-routable, l7-load-balancer] (L7LB Proxy Port: 10000)   ",
                "10.96.0.12:80/TCP (1)   backend 7 not found                                                                      ",
                "[::]:8126/TCP (0)       [::]:0 (56) (0) [HostPort, non-routable]                                                 ",
            ],
        );
        let json: serde_json::Value =
            serde_json::from_str(&skep(node, &["bpf", "lb", "list", "-o", "json"])?)?;
        assert_eq!(
            json["10.96.0.10:53/UDP (1)"],
            serde_json::json!(["10.244.1.7:53/UDP (4) (1)"])
        );
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(7));
        Ok(())
    });
}

#[test]
fn entries_as_they_are() {
    with_maps("cli-frontends", |node| {
        let text = skep(node, &["bpf", "lb", "list", "--frontends"])?;
        for line in [
            "SERVICE ADDRESS         BACKEND ID",
            "10.96.0.10:53/UDP (0)   0 1[0] (4) [0x0 0x0]      ",
            "10.96.0.10:53/UDP (1)   1 0[0] (4) [0x0 0x0]      ",
            "1.1.1.1:80/TCP/i (0)    0 0[0] (9) [0x60 0x30]    ",
            "[::]:8126/TCP (0)       0 0[0] (56) [0x8 0x0]     ",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
        }
        Ok(())
    });
}

#[test]
fn backends_reverse_addresses_ranges_and_tables() {
    with_maps("cli-others", |node| {
        assert_lines(
            &skep(node, &["bpf", "lb", "list", "--backends"])?,
            &[
                "ID   BACKEND ADDRESS (REVNAT_ID) (SLOT)",
                "1    UDP://10.244.1.7   ",
                "12   TCP://fd00::7[3]   ",
            ],
        );
        assert_lines(
            &skep(node, &["bpf", "lb", "list", "--revnat"])?,
            &[
                "ID   BACKEND ADDRESS (REVNAT_ID) (SLOT)",
                "4    10.96.0.10:53   ",
                "56   [::]:8126       ",
            ],
        );
        let ranges = skep(node, &["bpf", "lb", "list", "--source-ranges", "-o", "json"])?;
        let ranges: serde_json::Value = serde_json::from_str(&ranges)?;
        let ranges: Vec<&String> = ranges
            .as_object()
            .map(|all| all.keys().collect())
            .unwrap_or_default();
        assert_eq!(ranges, ["10.0.0.0/8 (9)", "fd00::/8 (9)"]);
        let tables = skep(node, &["bpf", "lb", "maglev", "list"])?;
        assert!(
            tables.starts_with("SVC ID   LOOKUP TABLE\n") && tables.contains("\n[4]/v4   [1 2 1 1 "),
            "{}",
            &tables[..60]
        );
        // States are in the map itself.
        assert_lines(
            &skep(node, &["map", "get", "cilium_lb6_backends_v3"])?,
            &[
                "Key   Value                            State   Error",
                "12    TCP://fd00::7[3] (terminating)   sync    ",
            ],
        );
        Ok(())
    });
}

#[test]
fn policies_are_maps_like_others() {
    with_maps("cli-policies", |node| {
        let policy = POLICIES.inner_spec("cilium_policy_v2_00302", &MapSizes::default());
        let map = node.store().provide(&policy.unwrap())?;
        let mut key = PolicyKey {
            prefix_len: 40 + 24,
            identity: 52_310,
            direction: 1,
            proto: TCP,
            port: 5432.into(),
        };
        let mut entry = PolicyEntry {
            proxy_port: 0.into(),
            flags: 1 | 24 << 3,
            auth: 0,
            precedence: 7,
            cookie: 3,
        };
        assert!(map.update(key.as_bytes(), entry.as_bytes()).is_empty());
        (key.direction, key.prefix_len, entry.flags) = (0, 40, 0);
        assert!(map.update(key.as_bytes(), entry.as_bytes()).is_empty());

        let text = skep(node, &["map", "get", "cilium_policy_v2_00302"])?;

        let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split_whitespace().collect()).collect();
        let expected = [
            &["Key", "Value", "State", "Error"][..],
            &["Ingress:", "52310", "ANY", "0", "0", "sync"],
            &["Egress:", "52310", "5432/TCP", "0", "24", "sync"],
        ];
        assert_eq!(rows, expected, "{text}");
        let list = skep(node, &["map", "list"])?;
        let row = list
            .lines()
            .find(|row| row.starts_with("cilium_policy_v2_00302 "));
        let words: Vec<&str> = row.unwrap_or(&list).split_whitespace().collect();
        assert_eq!(words, ["cilium_policy_v2_00302", "2", "unknown", "false"]);
        Ok(())
    });
}

#[test]
fn counters_without_entries_are_no_table() {
    with_maps("cli-metrics", |node| {
        node.store().provide(METRICS.spec(&MapSizes::default()).raw())?;

        let (text, errors) = skep_both(node, &["bpf", "metrics", "list"])?;

        assert_eq!((text.as_str(), errors.as_str()), ("", "No entries found.\n"));
        assert_eq!(skep(node, &["bpf", "metrics", "list", "-o", "json"])?, "[]\n\n");
        Ok(())
    });
}

#[test]
fn one_command_for_an_agent_that_is_down_fails_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("shell.sock");
    let begun = Instant::now();

    let output = Command::new(env!("CARGO_BIN_EXE_skep"))
        .arg(format!("--shell-sock-path={}", socket.display()))
        .args(["shell", "db/show", "services"])
        .output()
        .unwrap();

    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.starts_with(
            "Error: cannot reach the agent (is it running? see --shell-sock-path): cannot connect to "
        ),
        "{errors}"
    );
    assert!(!errors.contains("Retrying"), "{errors}");
    // The shortest pause between two attempts is a second, the last of them after fifteen.
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn all_maps_without_an_agent() {
    with_maps("cli-maps", |node| {
        let text = skep(node, &["map", "list"])?;
        let row = text
            .lines()
            .find(|line| line.starts_with("cilium_lb4_services_v2 "))
            .unwrap_or_else(|| panic!("{text}"));
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words, ["cilium_lb4_services_v2", "6", "unknown", "false"]);
        let verbose = skep(node, &["map", "list", "--verbose"])?;
        assert!(
            verbose.contains(
                "## Map: cilium_lb4_reverse_nat\nKey   Value           State   Error\n4     10.96.0.10:53   sync    \n"
            ),
            "{verbose}"
        );
        Ok(())
    });
}

#[test]
fn a_missing_pin_is_an_error_unless_its_family_is_off() {
    with_maps("cli-unpinned", |node| {
        let store = node.store();
        let list = || {
            Command::new(env!("CARGO_BIN_EXE_skep"))
                .arg(format!("--bpf-root={}", node.bpf_root().display()))
                .args(["bpf", "lb", "list"])
                .output()
        };

        store.unpin("cilium_lb4_services_v2")?;
        let missing = list()?;
        for name in names_of(IpFamily::V4) {
            store.unpin(name)?;
        }
        let off = list()?;
        for name in names_of(IpFamily::V6) {
            store.unpin(name)?;
        }
        let none = list()?;

        let errors = String::from_utf8_lossy(&missing.stderr);
        assert!(!missing.status.success() && missing.stdout.is_empty());
        assert!(
            errors.contains("no map cilium_lb4_services_v2 is pinned below"),
            "{errors}"
        );
        let listed = String::from_utf8_lossy(&off.stdout);
        assert!(off.status.success() && listed.contains("[::]:8126"), "{listed}");
        assert!(!none.status.success());
        Ok(())
    });
}
