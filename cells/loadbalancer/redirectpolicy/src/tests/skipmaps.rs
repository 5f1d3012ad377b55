// SPDX-License-Identifier: Apache-2.0

//! [`SkipMaps`] in memory and in the kernel, in a world of their own.

use skep_bpf_maps::lb::{OWNER, SKIP4, SKIP6};
use skep_bpf_sys::testing::Node;
use skep_datapath_maps::{MapOwner, Maps};

use crate::{SkipEntry, SkipMaps};

type Fallible = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn skip_maps(maps: &Maps) -> SkipMaps {
    SkipMaps::new(maps.handle(&SKIP4), maps.handle(&SKIP6))
}

fn pinned(node: &Node) -> Result<SkipMaps, skep_bpf_sys::MapError> {
    Ok(skip_maps(&Maps::pinned(node.store(), [MapOwner::new(OWNER)])?))
}

/// Runs a test on maps in memory and in the kernel.
fn on_both(name: &str, test: impl Fn(&SkipMaps) -> Fallible + Sync) {
    test(&skip_maps(&Maps::in_memory([]).unwrap())).unwrap();
    let in_kernel = Node::run(name, |node| test(&pinned(node)?));
    in_kernel.unwrap();
}

fn entry(cookie: u64, ip: &str, port: u16) -> SkipEntry {
    SkipEntry {
        cookie,
        ip: ip.parse().unwrap(),
        port,
    }
}

fn sorted(maps: &SkipMaps) -> Result<Vec<String>, skep_bpf_sys::MapError> {
    let mut entries = maps.entries()?;
    entries.sort();
    Ok(entries.iter().map(ToString::to_string).collect())
}

#[test]
fn entries_of_both_families_come_and_go() {
    on_both("skip-entries", |maps| {
        assert!(sorted(maps)?.is_empty());
        // Cookies are numbers of 64 bits, ports are in host order here.
        let large = u64::from(u32::MAX) + 7;
        for entry in [
            entry(large, "fd00::a", 53),
            entry(7, "10.96.0.10", 53),
            entry(7, "10.96.0.10", 13568),
            entry(8, "10.96.0.10", 53),
        ] {
            maps.insert(&entry)?;
        }
        assert_eq!(
            sorted(maps)?,
            [
                "COOKIE=7 IP=10.96.0.10 PORT=53",
                "COOKIE=7 IP=10.96.0.10 PORT=13568",
                "COOKIE=8 IP=10.96.0.10 PORT=53",
                "COOKIE=4294967302 IP=fd00::a PORT=53",
            ]
        );

        maps.remove(&entry(7, "10.96.0.10", 53))?;
        maps.remove(&entry(large, "fd00::a", 53))?;
        assert_eq!(
            sorted(maps)?,
            [
                "COOKIE=7 IP=10.96.0.10 PORT=13568",
                "COOKIE=8 IP=10.96.0.10 PORT=53"
            ]
        );
        Ok(())
    });
}

#[test]
fn inserting_twice_and_removing_what_is_absent_is_success() {
    on_both("skip-twice", |maps| {
        let one = entry(7, "10.96.0.10", 53);
        maps.insert(&one)?;
        maps.insert(&one)?;
        assert_eq!(sorted(maps)?, ["COOKIE=7 IP=10.96.0.10 PORT=53"]);

        maps.remove(&one)?;
        maps.remove(&one)?;
        assert!(sorted(maps)?.is_empty());
        Ok(())
    });
}

#[test]
fn a_second_opener_sees_the_same_entries() {
    let in_kernel = Node::run("skip-second", |node| -> Fallible {
        pinned(node)?.insert(&entry(7, "fd00::a", 53))?;
        let second = pinned(node)?;
        assert_eq!(sorted(&second)?, ["COOKIE=7 IP=fd00::a PORT=53"]);
        Ok(())
    });
    in_kernel.unwrap();
}
