// SPDX-License-Identifier: Apache-2.0

//! Cells: the store of pinned maps, and the socket programs that use them.

use std::{convert::Infallible, path::Path, sync::Arc, time::Duration};

use hive::{Cell, Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle, SpawnError};
use parking_lot::Mutex;
use skep_bpf::{
    Claim, ClaimError, MapError, MapStore,
    capability::{self, CapabilityError},
    load,
    mount::{self, MountError},
};
use tokio::time::Instant;

use crate::{Config, MapsConfig, MonitorConfig, datapath, terminate};

/// Loads, attaches and watches the socket programs.
///
/// Needs: [`LbSettings`](crate::LbSettings), `Arc<MapStore>`; takes `Arc<dyn MapsWritten>` and
/// `Arc<dyn PodNetworks>` if there are any. Gives: [`SocketDatapath`](crate::SocketDatapath) (status) and
/// [`DeadBackends`](crate::DeadBackends).
pub fn cell() -> Cell {
    Cell::module("socket-lb", "Socket load balancing")
        .config::<Config>()
        .config::<MonitorConfig>()
        .provide(datapath::provide)
        .provide(terminate::provide)
        .run(datapath::watch)
        .run(terminate::run)
}

/// Time between two looks at the pins of maps.
const CHECK_PINS: Duration = Duration::from_secs(60);
/// How long an agent that is being replaced may take to end.
const HAND_OVER: Duration = Duration::from_secs(3);
/// Time between two attempts to claim the maps.
const CLAIM_AGAIN: Duration = Duration::from_millis(50);

/// Why the pinned maps cannot be used.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    /// This process may not use any.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// There is no BPF file system.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// They are another process's.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// Gives the store of pinned maps; its BPF file system is found or mounted at start, and claimed until the stop: a
/// second agent on the node is refused. Pins that others remove are made again: health reports them until the next
/// check.
pub fn maps_cell() -> Cell {
    Cell::module("bpf-maps", "Pinned BPF maps")
        .config::<MapsConfig>()
        .provide(new_store)
        .run(watch_pins)
}

/// Pins of maps in use were removed. The maps are pinned again; find who removes them.
#[derive(Debug, thiserror::Error)]
#[error("pins of maps in use were removed by another process: {}", maps.join(", "))]
struct Unpinned {
    maps: Vec<String>,
}

/// Why pins are not as they should be.
#[derive(Debug, thiserror::Error)]
enum PinsError {
    /// Some were missing.
    #[error(transparent)]
    Unpinned(#[from] Unpinned),
    /// Some are missing, and could not be made.
    #[error("pins of maps in use are missing")]
    Missing(#[from] MapError),
    /// The thread that does the work ended.
    #[error("pins were not checked")]
    Interrupted(#[from] tokio::task::JoinError),
}

fn watch_pins(store: Arc<MapStore>, jobs: Jobs) -> Result<(), SpawnError> {
    let check = Job::every(CHECK_PINS, "check-map-pins", move |_cx: JobCtx| {
        let store = store.clone();
        async move {
            let maps = tokio::task::spawn_blocking(move || store.pin_missing()).await??;
            if maps.is_empty() {
                return Ok(());
            }
            tracing::warn!(maps = maps.join(", "), "pins of maps were removed, made again");
            Err(PinsError::from(Unpinned { maps }))
        }
    });
    jobs.spawn(check.run_at_start())
}

fn new_store(config: Cfg<MapsConfig>, lifecycle: Lifecycle) -> Result<Arc<MapStore>, Infallible> {
    let store = MapStore::new(&config.bpf_root);
    let (root, mounted) = (config.bpf_root.clone(), store.clone());
    let claim: Arc<Mutex<Option<Claim>>> = Arc::default();
    let claimed = claim.clone();
    lifecycle.on_start("bpf-file-system", move |cx: HookCtx| {
        let (root, store, claim) = (root.clone(), mounted.clone(), claimed.clone());
        async move {
            capability::require(&[capability::BPF])?;
            let found = mount::bpffs(&root)?;
            store.set_root(&found);
            describe(&store);
            let taken = take_claim(&store.directory()).await?;
            *claim.lock() = Some(taken);
            cx.health.ok(format!("Maps are pinned below {}", found.display()));
            Ok::<(), StoreError>(())
        }
    });
    lifecycle.on_stop("bpf-file-system", move |_cx: HookCtx| {
        claim.lock().take();
        async {}
    });
    Ok(store)
}

/// Names the fields of maps for tools, where the kernel keeps such names.
fn describe(store: &MapStore) {
    match load::map_types() {
        Ok(types) => store.describe(types),
        Err(error) => tracing::info!(
            error = &error as &(dyn std::error::Error + 'static),
            "maps are made without names of fields"
        ),
    }
}

/// Claims the maps; an agent on its way out gets some time.
async fn take_claim(directory: &Path) -> Result<Claim, ClaimError> {
    let deadline = Instant::now() + HAND_OVER;
    loop {
        match Claim::take(directory) {
            Err(ClaimError::Taken { .. }) if Instant::now() < deadline => {
                tokio::time::sleep(CLAIM_AGAIN).await
            }
            result => return result,
        }
    }
}
