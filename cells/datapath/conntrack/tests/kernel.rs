// SPDX-License-Identifier: Apache-2.0

//! The cell with maps in the kernel, and signals of programs.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{error::Error, future::Future, path::PathBuf, sync::Arc, time::Duration};

use hive::{Cell, Hive, Member, Running, Settings};
use skep_bpf_maps::{
    MapSizes,
    conntrack::{CT_ANY_MAX, CT_TCP_MAX, CT_TCP4, CtEntry, CtKey4, OWNER},
    nat::{NAT_MAX, NAT4, NatEntry4, NatKey4},
};
use skep_bpf_programs::testing::signal::send_signal;
use skep_bpf_sys::{MapStore, testing::Node};
use skep_datapath_conntrack::Conntrack;
use skep_datapath_maps::{MapOwner, Maps};
use zerocopy::{FromZeros as _, network_endian::U16};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    bpf_root: PathBuf,
    store: Arc<MapStore>,
}

fn run<F>(name: &str, test: impl FnOnce(World) -> F + Send)
where
    F: Future<Output = Outcome>,
{
    let result = Node::run(name, |node| {
        let world = World {
            bpf_root: node.bpf_root(),
            store: node.store(),
        };
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?
            .block_on(test(world))
    });
    if let Err(error) = result {
        panic!("{}", hive::error_chain(&*error));
    }
}

/// Programs at interfaces: their maps are opened.
fn owner() -> Member<MapOwner> {
    let sizes = MapSizes::default()
        .with(CT_TCP_MAX, 1024)
        .with(CT_ANY_MAX, 1024)
        .with(NAT_MAX, 1024);
    Member(MapOwner::new(OWNER).sizes(sizes))
}

impl World {
    async fn start(&self, flags: &[&str]) -> Outcome<Running> {
        let mut all: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        all.push(format!("--bpf-root={}", self.bpf_root.display()));
        let cells = [
            skep_base_settings::cell(),
            skep_datapath_maps::cell(),
            skep_datapath_conntrack::cell(),
            Cell::module("packets", "Programs at interfaces").provide(owner),
        ];
        let plan = Hive::new(cells)
            .root::<Arc<Conntrack>>()
            .root::<Arc<Maps>>()
            .plan(Settings::new().args(all))?;
        Ok(plan.build()?.start().await?)
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "not within {PATIENCE:?}: {what}");
}

fn flow(last: u8) -> CtKey4 {
    CtKey4 {
        daddr: [10, 0, 1, last],
        saddr: [203, 0, 113, 5],
        dport: U16::new(443),
        sport: U16::new(40_000),
        proto: 6,
        flags: 0,
    }
}

fn ending(lifetime: u32) -> CtEntry {
    CtEntry {
        lifetime,
        ..CtEntry::new_zeroed()
    }
}

#[test]
fn the_first_pass_removes_what_ended_and_a_restart_keeps_what_lives() {
    run("passes", async |world| {
        let running = world.start(&[]).await?;
        let maps = running.get::<Arc<Maps>>().unwrap().clone();
        let tracked = maps.handle(&CT_TCP4);
        tracked.update(&flow(1), &ending(u32::MAX))?;
        tracked.update(&flow(2), &ending(1))?;
        running.stop().await?;

        // Passes through this node: no endpoint has its addresses.
        let running = world.start(&[]).await?;
        let store = world.store.clone();
        until("the entry that ended is gone", || {
            store
                .open::<CtKey4, CtEntry>(CT_TCP4.name)
                .is_ok_and(|map| map.keys().is_ok_and(|keys| keys == [flow(1)]))
        })
        .await;

        let conntrack = running.get::<Arc<Conntrack>>().unwrap().clone();
        let done = conntrack.forget(["10.0.1.1".parse()?]).await?;
        assert_eq!((done.deleted, done.alive), (1, 0));
        running.stop().await?;
        Ok(())
    });
}

#[test]
fn a_signal_makes_a_pass_and_purges_translations_that_nothing_tracks() {
    run("signals", async |world| {
        let running = world.start(&["--conntrack-gc-interval=1h"]).await?;
        let maps = running.get::<Arc<Maps>>().unwrap().clone();
        let health = |text: &'static str| {
            let entries = running.health().entries();
            entries.iter().any(|entry| entry.message.contains(text))
        };
        until("rings are open", || health("Waiting for signals")).await;
        until("the first pass is over", || health("next pass in")).await;
        let (tracked, nat) = (maps.handle(&CT_TCP4), maps.handle(&NAT4));
        let orphan = NatKey4 {
            daddr: [203, 0, 113, 5],
            saddr: [10, 0, 1, 9],
            dport: U16::new(443),
            sport: U16::new(40_000),
            proto: 6,
            flags: 0,
        };
        tracked.update(&flow(2), &ending(1))?;
        nat.update(&orphan, &NatEntry4::new_zeroed())?;

        // Conntrack is full.
        send_signal(&world.store, 1, 0)?;
        until("what ended is gone", || {
            tracked.keys().is_ok_and(|keys| keys.is_empty())
        })
        .await;
        assert_eq!(nat.keys()?, [orphan], "its flow may be one that conntrack forgot");

        until("rings are open again", || health("Waiting for signals")).await;
        // NAT is full.
        send_signal(&world.store, 0, 0)?;
        until("the orphan is gone", || {
            nat.keys().is_ok_and(|keys| keys.is_empty())
        })
        .await;
        running.stop().await?;
        Ok(())
    });
}
