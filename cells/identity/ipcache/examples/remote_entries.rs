// SPDX-License-Identifier: Apache-2.0

//! Measures entries of a remote cluster: memory of the table, time into the table and into a map in memory, and the time
//! until all of them are gone again.
//!
//! `cargo run --release -p skep-ipcache --example remote_entries -- --entries 100000`

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Program, Shutdown, SpawnError};
use skep_identity::NumericIdentity;
use skep_ipcache::{
    Claim, EndpointFlags, IpcacheMap, Owner, PodMetadata, Prefix, ResourceId, Source, Writer,
};

/// Entries that one transaction writes, as the mesh does.
const BATCH: u32 = 512;

/// What is measured.
#[derive(Clone, hive::Config)]
struct Config {
    /// Number of entries.
    #[config(default = 100000)]
    entries: u32,
}

fn main() -> ExitCode {
    let cells = [
        statedb::cell(),
        skep_base_settings::cell(),
        skep_datapath_maps::in_memory_cell(),
        skep_ipcache::cell(),
        Cell::module("measure", "Measures remote entries")
            .config::<Config>()
            .run(measure),
    ];
    Program::new("remote-entries", cells)
        .about("Measures entries of a remote cluster in the ipcache.")
        .main()
}

fn measure(
    writer: Writer,
    map: Arc<IpcacheMap>,
    config: Cfg<Config>,
    shutdown: Shutdown,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    let entries = config.entries;
    jobs.spawn(Job::once("measure", move |_: JobCtx| {
        let (writer, map, shutdown) = (writer.clone(), map.clone(), shutdown.clone());
        async move {
            let measured = run(&writer, &map, entries).await;
            shutdown.request("everything is measured");
            measured
        }
    }))
}

async fn run(
    writer: &Writer,
    map: &IpcacheMap,
    entries: u32,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let owner = Owner::new(Source::ClusterMesh, ResourceId::new("cluster", "", "alder"));
    let before = resident();
    let start = Instant::now();
    for first in (0..entries).step_by(BATCH as usize) {
        fill(writer, &owner, first..entries.min(first + BATCH))?;
    }
    println!("{entries} entries in the table after {:?}", start.elapsed());
    let grown = resident().saturating_sub(before);
    println!(
        "resident memory: {} bytes an entry, without the map",
        grown / u64::from(entries)
    );
    wait(map, entries as usize).await?;
    println!("in the map after {:?}", start.elapsed());
    let grown = resident().saturating_sub(before);
    println!(
        "resident memory: {} bytes an entry, with a map in memory",
        grown / u64::from(entries)
    );
    let start = Instant::now();
    clear(writer, &owner)?;
    println!("gone from the table after {:?}", start.elapsed());
    wait(map, 0).await?;
    println!("gone from the map after {:?}", start.elapsed());
    Ok(())
}

fn fill(writer: &Writer, owner: &Owner, entries: std::ops::Range<u32>) -> Result<(), statedb::Error> {
    let mut txn = writer.write();
    for entry in entries {
        let address = IpAddr::from(Ipv4Addr::from(0x0a00_0000 + entry));
        let pod = PodMetadata {
            namespace: format!("namespace-{}", entry % 100).into(),
            name: format!("deployment-{}-7d9f8b6c5d-x2{}", entry % 1000, entry).into(),
            ..PodMetadata::default()
        };
        let claim = Claim::identity(owner.clone(), NumericIdentity::new(458_752 + entry % 20_000))
            .tunnel_peer(IpAddr::from(Ipv4Addr::from(0xac1f_0000 + entry % 5000)))
            .encrypt_key(0)
            .flags(EndpointFlags::REMOTE_CLUSTER)
            .pod(Arc::new(pod));
        writer.upsert(&mut txn, Prefix::address(address), claim)?;
    }
    txn.commit();
    Ok(())
}

fn clear(writer: &Writer, owner: &Owner) -> Result<(), statedb::Error> {
    let mut txn = writer.write();
    writer.delete_owned(&mut txn, |other| other == owner, |_| false)?;
    txn.commit();
    Ok(())
}

/// Waits until the map has so many entries.
async fn wait(map: &IpcacheMap, entries: usize) -> Result<(), skep_bpf_sys::MapError> {
    while map.keys()?.len() != entries {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
