// SPDX-License-Identifier: Apache-2.0

//! A difference explains a step only if what was recorded is what it is about.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{fs, path::Path};

use run_packets::{Outcome, run_file};
use serde_json::{Value, json};

fn testdata() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn read(file: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(testdata().join(file)).unwrap()).unwrap()
}

/// A recorded scenario up to a step.
fn scenario(file: &str, name: &str, steps: usize) -> Value {
    let group = read(file);
    let scenarios = group["scenarios"].as_array().unwrap();
    let mut scenario = scenarios
        .iter()
        .find(|found| found["name"] == name)
        .unwrap()
        .clone();
    scenario["steps"].as_array_mut().unwrap().truncate(steps);
    scenario
}

/// What becomes of scenarios on the node of this file.
fn outcomes(file: &str, scenarios: &[Value]) -> Vec<Outcome> {
    let folder = tempfile::tempdir().unwrap();
    for facts in ["facts.json", "facts-pol.json", "facts-xdp.json"] {
        std::os::unix::fs::symlink(testdata().join(facts), folder.path().join(facts)).unwrap();
    }
    let mut group = read(file);
    group["scenarios"] = json!(scenarios);
    let path = folder.path().join("scenarios.json");
    fs::write(&path, group.to_string()).unwrap();
    let reports = run_file(&path, &[], "").unwrap();
    reports.into_iter().map(|report| report.outcome).collect()
}

/// The last step is explained by this difference, and by none after each of the changes of what was recorded.
#[track_caller]
fn check(file: &str, scenario: &Value, difference: &str, changes: &[fn(&mut Value)]) {
    let last = scenario["steps"].as_array().unwrap().len();
    let mut scenarios = vec![scenario.clone()];
    for change in changes {
        let mut changed = scenario.clone();
        change(&mut changed["steps"][last - 1]);
        scenarios.push(changed);
    }
    let outcomes = outcomes(file, &scenarios);
    assert!(
        matches!(&outcomes[0], Outcome::Different { step, name, .. } if (*step, *name) == (last, difference)),
        "{:#?}",
        outcomes[0]
    );
    for (n, outcome) in outcomes[1..].iter().enumerate() {
        assert!(
            matches!(outcome, Outcome::Failed(_)),
            "change {n} of {difference}: {outcome:?}"
        );
    }
}

/// Recorded is a drop with this reason.
fn dropped(step: &mut Value, reason: u8) {
    let verdict = if step["program"] == "cil_xdp_entry" { 1 } else { 2 };
    step["ret"] = verdict.into();
    step["events"] = json!([{"hex": format!("01{reason:02x}")}]);
}

/// Changes bytes of a recorded packet.
fn patch(step: &mut Value, packet: &str, change: impl Fn(&mut Vec<u8>)) {
    let text = match step[packet].as_str() {
        None | Some("same") => &step["packet_in"],
        Some(_) => &step[packet],
    };
    let mut bytes = hex::decode(text.as_str().unwrap()).unwrap();
    change(&mut bytes);
    step[packet] = hex::encode(bytes).into();
}

#[allow(clippy::ptr_arg, reason = "what changes packets may change their length")]
fn corrupt(bytes: &mut Vec<u8>) {
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
}

#[test]
fn recorded_outcomes_are_the_ones_that_differences_are_about() {
    for family in ["v4", "v6"] {
        let file = format!("pod-pod-{family}.json");
        check(
            &file,
            &scenario(&file, "pp_expired", 6),
            "expired-entries",
            &[|step| step["map_changes"] = json!([])],
        );
        let file = format!("malformed-{family}.json");
        check(
            &file,
            &scenario(&file, "bad_pod", 5),
            "broken-headers",
            &[|step| {
                dropped(step, 135);
                step["packet_out"] = "same".into();
            }],
        );
        let file = format!("service-north-south-{family}.json");
        check(
            &file,
            &scenario(&file, "ns_trap", 7),
            "nodeport-then-direct",
            &[
                |step| dropped(step, 133),
                |step| patch(step, "packet_out", corrupt),
            ],
        );
        check(
            &file,
            &scenario(&file, "ns_icmp", 4),
            "errors-about-translated-flows",
            &[
                |step| dropped(step, 134),
                // The code of the error.
                |step| {
                    patch(step, "packet_out", |bytes| {
                        let at = if bytes[12] == 8 { 35 } else { 55 };
                        bytes[at] ^= 1;
                    });
                },
            ],
        );
        let file = format!("policy-{family}.json");
        check(
            &file,
            &scenario(&file, "pol_related", 3),
            "errors-of-routers",
            &[|step| dropped(step, 155), |step| step["ret"] = 0.into()],
        );
        let file = format!("xdp-north-south-{family}.json");
        check(
            &file,
            &scenario(&file, "xdp_ns_no_neighbour", 1),
            "unresolved-neighbour",
            &[|step| dropped(step, 155), |step| step["ret"] = 3.into()],
        );
    }
    let file = "malformed-v6.json";
    check(
        file,
        &scenario(file, "bad_ttl", 1),
        "hop-limit-of-errors",
        &[
            |step| patch(step, "packet_out", |bytes| bytes[21] = 63),
            |step| patch(step, "packet_out", |bytes| bytes[53] ^= 1),
            |step| dropped(step, 196),
        ],
    );
    let file = "udp-icmp-v6.json";
    check(
        file,
        &scenario(file, "icmp_frag_needed", 4),
        "packet-too-big",
        &[
            |step| dropped(step, 134),
            |step| patch(step, "packet_out", corrupt),
        ],
    );
    let file = "masquerade-v6.json";
    check(
        file,
        &scenario(file, "mq_icmperr", 3),
        "errors-about-translated-flows",
        &[
            |step| patch(step, "packet_out", corrupt),
            |step| dropped(step, 155),
        ],
    );
}

#[test]
fn errors_of_backends_leave_for_the_client() {
    let file = "service-north-south-v4.json";
    let mut scenario = scenario(file, "ns_icmp", 4);
    let step = &mut scenario["steps"][3];
    for packet in ["packet_in", "packet_out"] {
        // From the backend, not from its node.
        patch(step, packet, |bytes| {
            let words = |bytes: &[u8]| u32::from(u16::from_be_bytes([bytes[24], bytes[25]]));
            let sum = 0xac1e + 0x0002 + words(bytes);
            bytes[26..30].copy_from_slice(&[10, 2, 0, 10]);
            let sum = sum + 2 * 0xffff - 0x0a02 - 0x000a;
            bytes[24..26].copy_from_slice(&((sum % 0xffff) as u16).to_be_bytes());
        });
    }
    check(
        file,
        &scenario,
        "errors-about-translated-flows",
        &[
            |step| dropped(step, 134),
            |step| patch(step, "packet_out", |bytes| bytes[29] ^= 1),
            // The quoted packet is to somebody else.
            |step| patch(step, "packet_out", |bytes| bytes[61] ^= 1),
        ],
    );
}

#[test]
fn xdp_leaves_errors_to_tc() {
    for family in ["v4", "v6"] {
        let mut scenario = scenario(&format!("service-north-south-{family}.json"), "ns_icmp", 4);
        let step = &mut scenario["steps"][3];
        for (field, value) in [
            ("program", json!("cil_xdp_entry")),
            ("ret", json!(2)),
            ("metadata_out", json!("05000000")),
            ("events", json!([])),
            ("metrics", json!([])),
        ] {
            step[field] = value;
        }
        check(
            &format!("xdp-north-south-{family}.json"),
            &scenario,
            "errors-about-translated-flows",
            &[
                |step| dropped(step, 134),
                |step| step["metadata_out"] = "03000000".into(),
                |step| step["packet_out"] = "same".into(),
                |step| {
                    patch(step, "packet_out", corrupt);
                },
            ],
        );
    }
}

#[test]
fn solicitations_come_from_the_link() {
    let file = "l2-neighbour-v6.json";
    // Of the gateway, the node, and an address that nobody has.
    for n in [1, 4, 6] {
        let mut scenario = scenario(file, "l2_nd", n);
        let steps = scenario["steps"].as_array_mut().unwrap();
        steps.drain(..n - 1);
        patch(&mut steps[0], "packet_in", |bytes| bytes[21] = 64);
        check(
            file,
            &scenario,
            "solicitations-from-afar",
            &[
                |step| {
                    step["ret"] = 7.into();
                    step["packet_out"] = "same".into();
                },
                |step| dropped(step, 133),
            ],
        );
    }
}

/// Makes a fragment of a packet: the first, or a later one.
fn fragment(step: &mut Value, is_first: bool) {
    patch(step, "packet_in", |bytes| {
        if bytes[12] == 8 {
            bytes[20..22].copy_from_slice(if is_first { &[0x20, 0] } else { &[0x20, 0xb9] });
            return;
        }
        let length = u16::from_be_bytes([bytes[18], bytes[19]]) + 8;
        bytes[18..20].copy_from_slice(&length.to_be_bytes());
        bytes[20] = 44;
        let field = if is_first { [0, 1] } else { [5, 0xc9] };
        bytes.splice(54..54, [58, 0, field[0], field[1], 0, 0, 0x12, 0x34]);
    });
}

#[test]
fn fragments_of_echo_messages_were_dropped() {
    for (family, program, ifindex, kind) in [
        ("v4", "cil_from_container", 6, 8),
        ("v4", "cil_from_container", 6, 0),
        ("v6", "cil_from_container", 6, 128),
        ("v6", "cil_from_container", 6, 129),
    ] {
        let file = format!("udp-icmp-{family}.json");
        let group = read(&file);
        let at = if family == "v4" { 34 } else { 54 };
        let scenarios = group["scenarios"].as_array().unwrap();
        let echo = scenarios
            .iter()
            .flat_map(|scenario| scenario["steps"].as_array().unwrap())
            .find(|step| {
                let frame = hex::decode(step["packet_in"].as_str().unwrap_or_default()).unwrap();
                step["program"] == program && frame.get(at) == Some(&[8, 128][usize::from(at == 54)])
            })
            .unwrap();
        for is_first in [true, false] {
            let mut step = echo.clone();
            patch(&mut step, "packet_in", |bytes| bytes[at] = kind);
            fragment(&mut step, is_first);
            step["ifindex"] = ifindex.into();
            dropped(&mut step, 134);
            for (field, value) in [
                ("packet_out", json!("same")),
                ("map_changes", json!([])),
                ("metrics", json!([])),
                ("ctx_out", json!(null)),
            ] {
                step[field] = value;
            }
            let scenario = json!({"name": "fragments", "steps": [step]});
            check(
                &file,
                &scenario,
                "fragments-of-echo",
                &[
                    |step| dropped(step, 155),
                    |step| step["ret"] = 0.into(),
                    |step| {
                        step["map_changes"] = json!([{
                            "map": "cilium_ipv4_frag_datagrams", "op": "add",
                            "key": "0a0100dd0a0100a512340100", "value": "00000000",
                        }]);
                    },
                ],
            );
        }
    }
}
