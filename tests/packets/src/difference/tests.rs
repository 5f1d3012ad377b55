// SPDX-License-Identifier: Apache-2.0

use super::*;

/// Errors about a packet to a backend, and about the same packet to the service.
const PAIRS: [(&str, &str); 2] = [
    (
        "56cf58685bd67eaded74e4fc080045000038123440003f01131a0a6001720a0100a50303d66d00000000\
         4500002c123440003f11140a0a0100a50a0100dda418003500188229",
        "56cf58685bd67eaded74e4fc080045000038123440003f01131a0a6001720a0100a50303d76100000000\
         4500002c123440003f1113160a0100a50a600172a418003500188135",
    ),
    (
        "3a114eeef2b276240516d4f386dd\
         6001234500563a40fd000030000000000000000000000002fd000030000000000000000000000003\
         0200741100000578\
         600123450026063ffd000030000000000000000000000003fd000010000200000000000000000010\
         b3c00050000003e8000007d05018ffff16fc0000474554202f20485454502f312e300d0a0d0a",
        "3a114eeef2b276240516d4f386dd\
         6001234500563a40fd000030000000000000000000000002fd000030000000000000000000000003\
         0200741100000578\
         600123450026063ffd000030000000000000000000000003fd000030000000000000000000000001\
         b3c07580000003e8000007d05018ffffa1bc0000474554202f20485454502f312e300d0a0d0a",
    ),
];

#[test]
fn errors_about_another_destination_differ_in_nothing_else() {
    for (theirs, ours) in PAIRS {
        let (theirs, ours) = (hex::decode(theirs).unwrap(), hex::decode(ours).unwrap());
        let there = IcmpError::read(&theirs).unwrap();
        let here = IcmpError::read(&ours).unwrap();
        assert!(here.is_same(&there) && here.hop == there.hop);
        assert_ne!(here.quoted_destination, there.quoted_destination);
        for at in 0..ours.len() {
            let mut altered = ours.clone();
            altered[at] ^= 1;
            let altered = IcmpError::read(&altered);
            let is_same = altered.is_some_and(|error| error.is_same(&there) && error.hop == there.hop);
            assert!(!is_same, "byte {at}");
        }
        for length in 0..ours.len() {
            let cut = IcmpError::read(&ours[..length]);
            assert!(!cut.is_some_and(|error| error.is_same(&there)), "{length} bytes");
        }
    }
}

#[test]
fn fragments_are_first_ones_or_later_ones() {
    let ipv4 = |field: &str, proto: &str| {
        format!(
            "56cf58685bd67eaded74e4fc08004500003c1234{field}40{proto}00000a0100a50a0100dd0800000000010001"
        )
    };
    let ipv6 = |field: &str, proto: &str| {
        format!(
            "56cf58685bd67eaded74e4fc86dd6000000000182c40{}{}{proto}00{field}000000018000000000010001",
            "fd000010000100000000000000000325", "fd0000100001000000000000000063cb"
        )
    };
    for (frame, expected) in [
        (ipv4("2000", "01"), Some(Some(8))),
        (ipv4("20b9", "01"), Some(None)),
        (ipv4("00b9", "01"), Some(None)),
        (ipv4("4000", "01"), None),
        (ipv4("2000", "11"), None),
        (ipv6("0001", "3a"), Some(Some(128))),
        (ipv6("05c9", "3a"), Some(None)),
        (ipv6("0000", "3a"), None),
        (ipv6("0001", "11"), None),
    ] {
        assert_eq!(icmp_fragment(&hex::decode(&frame).unwrap()), expected, "{frame}");
    }
}

#[test]
fn the_docs_list_every_difference() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/datapath.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let listed: Vec<&str> = docs
        .lines()
        .skip_while(|line| *line != "| name | Cilium | here |")
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let mut names = ALL.map(|difference| difference.name);
    let mut sorted = listed.clone();
    names.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(sorted, names, "{listed:?}");
}
