// SPDX-License-Identifier: Apache-2.0

//! A family that this crate adds, as a feature's crate does: its description, `register!`, its owner. It is opened, sized,
//! counted, listed and dumped with all others, and nothing else knows of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use hive::{Cell, Hive, Member, Running, Settings};
use serde_json::{Value, json};
use skep_bpf_maps::{IpFamily, MapFamily, MapSizes, Size, SizeKey, layout, register, text::Text};
use skep_bpf_sys::{Map, MapKind, MapStore, testing::Node};
use skep_datapath_maps::{MapOwner, Maps, PressureTrigger};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use zerocopy::{FromBytes, Immutable, IntoBytes};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const OWNER: &str = "painter";
const SIZE: SizeKey = SizeKey::new("bpf-colours-map-max", 16);

/// A colour by its number, network order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct Colour {
    number: zerocopy::network_endian::U16,
}

layout!(Colour);

impl Text for Colour {
    fn text(&self) -> String {
        format!("colour {}", self.number)
    }
}

static COLOURS: MapFamily<Colour, u32> =
    MapFamily::new("cilium_colours", MapKind::Hash, Size::Key(SIZE), OWNER)
        .written_by_agent()
        .with_pressure();

static COLOURS6: MapFamily<Colour, u32> =
    MapFamily::new("cilium_colours6", MapKind::Hash, Size::Key(SIZE), OWNER).of(IpFamily::V6);

/// Without an owner in these tests.
static ORPHAN: MapFamily<u32, u32> =
    MapFamily::new("cilium_orphan", MapKind::Hash, Size::Fixed(8), "orphans");

register!(COLOURS, COLOURS6, ORPHAN);

fn colour(number: u16) -> Colour {
    Colour {
        number: number.into(),
    }
}

/// The owner's cell.
fn painter() -> Cell {
    fn owner() -> Member<MapOwner> {
        let sizes = MapSizes::default().with(SIZE, 2);
        Member(MapOwner::new(OWNER).sizes(sizes).ip(true, false))
    }
    fn handle(maps: Arc<Maps>) -> Arc<Map<Colour, u32>> {
        Arc::new(maps.handle(&COLOURS))
    }
    Cell::module("painter", "Colours into maps")
        .provide(owner)
        .provide(handle)
}

async fn start(maps: Cell, folder: &Path, flags: &[String]) -> Outcome<Running> {
    let cells = [
        maps,
        skep_datapath_maps::api::cell(),
        skep_base_api::cell(),
        skep_base_metrics::cell(),
        painter(),
    ];
    let settings = Settings::new().args(
        [
            format!("--socket-path={}", folder.join("agent.sock").display()),
            "--agent-health-port=0".to_owned(),
            "--bpf-map-event-buffers=cilium_colours=enabled_2_1h".to_owned(),
        ]
        .into_iter()
        .chain(flags.iter().cloned()),
    );
    let plan = Hive::new(cells)
        .root::<Arc<Maps>>()
        .root::<Arc<Map<Colour, u32>>>()
        .root::<Arc<skep_base_metrics::Registry>>()
        .root::<PressureTrigger>()
        .plan(settings)?;
    Ok(plan.build()?.start().await?)
}

/// Status and body of an answer.
async fn ask(folder: &Path, path: &str) -> Outcome<(String, String)> {
    let mut stream = tokio::net::UnixStream::connect(folder.join("agent.sock")).await?;
    let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no body")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    Ok((status.to_owned(), body.to_owned()))
}

async fn maps_of(folder: &Path) -> Outcome<Value> {
    let (status, body) = ask(folder, "/v1/map").await?;
    assert_eq!(status, "200");
    Ok(serde_json::from_str(&body)?)
}

#[test]
fn a_family_of_another_crate_is_opened_listed_and_dumped() {
    let result = Node::run("added-family", |node| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let flags = [format!("--bpf-root={}", node.bpf_root().display())];
        runtime.block_on(async {
            // Left by an earlier run with IPv6, and of another size.
            let earlier = MapStore::new(node.bpf_root());
            earlier.open_or_create(&COLOURS6.spec(&MapSizes::default()))?;
            earlier.open_or_create(&COLOURS.spec(&MapSizes::default()))?;

            let running = start(skep_datapath_maps::cell(), node.directory(), &flags).await?;
            let colours = running.get::<Arc<Map<Colour, u32>>>().unwrap();
            colours.update(&colour(258), &7)?;

            let pinned = MapStore::new(node.bpf_root()).open::<Colour, u32>("cilium_colours")?;
            assert_eq!(pinned.max_entries(), 2);
            assert_eq!(pinned.lookup(&colour(258))?, Some(7));
            let directory = node.bpf_root().join("tc/globals");
            assert!(!directory.join("cilium_colours6").exists());
            assert!(!directory.join("cilium_orphan").exists());
            let path = directory.join("cilium_colours");
            assert_eq!(
                maps_of(node.directory()).await?,
                json!({"maps": [{"path": path, "cache": [
                    {"key": "colour 258", "value": "7"},
                ]}]})
            );
            running.stop().await?;
            Outcome::Ok(())
        })
    });
    result.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_written_is_told_and_counted() -> Outcome {
    let folder = tempfile::tempdir()?;
    let running = start(skep_datapath_maps::in_memory_cell(), folder.path(), &[]).await?;
    let colours = running.get::<Arc<Map<Colour, u32>>>().unwrap();

    let keys = [colour(1), colour(2), colour(3)];
    assert_eq!(colours.update_batch(&keys, &[1, 2, 3]).len(), 1);

    let (status, body) = ask(folder.path(), "/v1/map/cilium_colours").await?;
    assert_eq!(status, "200");
    let map: Value = serde_json::from_str(&body)?;
    assert_eq!(map["cache"].as_array().map(Vec::len), Some(3), "{map}");
    let failed = &map["cache"][2];
    assert_eq!(
        (&failed["key"], &failed["value"], &failed["desired-action"]),
        (&json!("colour 3"), &json!("3"), &json!("to-be-inserted"))
    );
    assert!(
        failed["last-error"].as_str().is_some_and(|text| !text.is_empty()),
        "{failed}"
    );
    // It is retried when there is room.
    colours.delete(&keys[0])?;
    colours.update(&keys[2], &3)?;
    let (_, body) = ask(folder.path(), "/v1/map/cilium_colours").await?;
    assert!(!body.contains("last-error"), "{body}");

    running.stop().await?;
    Ok(())
}

/// Counts are minutes apart, and nothing is in the maps at the first one.
#[tokio::test(flavor = "multi_thread")]
async fn maps_are_counted_when_an_owner_asks() -> Outcome {
    let folder = tempfile::tempdir()?;
    let running = start(skep_datapath_maps::in_memory_cell(), folder.path(), &[]).await?;
    let registry = running.get::<Arc<skep_base_metrics::Registry>>().unwrap();
    let wait = async |pressure: &str| -> Outcome {
        let line = format!("cilium_bpf_map_pressure{{map_name=\"colours\"}} {pressure}\n");
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let text = skep_base_metrics::exposition(&registry);
            if text.contains(&line) {
                return Ok(());
            }
            assert!(tokio::time::Instant::now() < deadline, "no {line} in\n{text}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    wait("0").await?;

    let colours = running.get::<Arc<Map<Colour, u32>>>().unwrap();
    colours.update(&colour(1), &1)?;
    running.get::<PressureTrigger>().unwrap().trigger();

    wait("0.5").await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_writes_are_shown_and_followed() -> Outcome {
    let folder = tempfile::tempdir()?;
    let running = start(skep_datapath_maps::in_memory_cell(), folder.path(), &[]).await?;
    let colours = running.get::<Arc<Map<Colour, u32>>>().unwrap();
    for number in 1..=2 {
        colours.update(&colour(number), &1)?;
    }
    assert!(colours.update(&colour(3), &1).is_err());

    let (status, body) = ask(folder.path(), "/v1/map/cilium_colours/events").await?;
    assert_eq!(status, "200");
    let events: Vec<Value> = body.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let states: Vec<_> = events
        .iter()
        .map(|event| (event["key"].as_str(), event["desired-action"].as_str()))
        .collect();
    assert_eq!(
        states,
        [
            (Some("colour 2"), Some("sync")),
            (Some("colour 3"), Some("to-be-inserted"))
        ]
    );

    let mut stream = tokio::net::UnixStream::connect(folder.path().join("agent.sock")).await?;
    let request = "GET /v1/map/cilium_colours/events?follow=true HTTP/1.0\r\nhost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut lines = BufReader::new(stream).lines();
    while lines
        .next_line()
        .await?
        .is_some_and(|line| !line.contains("colour 3"))
    {}
    colours.delete(&colour(1))?;
    let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await??;
    let event: Value = serde_json::from_str(&line.unwrap_or_default())?;
    assert_eq!(
        (&event["action"], &event["key"]),
        (&json!("delete"), &json!("colour 1"))
    );
    drop(lines);

    let (status, body) = ask(folder.path(), "/v1/map/cilium_colours6/events").await?;
    assert_eq!(status, "404");
    assert!(
        body.contains("writes of map cilium_colours6 are not kept"),
        "{body}"
    );
    let (status, body) = ask(folder.path(), "/v1/map/cilium_nothing").await?;
    assert_eq!((&*status, &*body), ("404", ""));
    running.stop().await?;
    Ok(())
}
