// SPDX-License-Identifier: Apache-2.0

//! The store of pinned maps: its file system, its claim, its pins.

use std::{convert::Infallible, error::Error, path::Path, sync::Arc, time::Duration};

use hive::{Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle, SpawnError, Trigger};
use parking_lot::Mutex;
use skep_bpf_sys::{
    Claim, ClaimError, MapError, MapStore, MapTypes,
    capability::{self, CapabilityError},
    mount::{self, MountError},
};
use tokio::time::Instant;

use crate::Config;

/// Time between two checks of the pins of maps.
const CHECK_PINS: Duration = Duration::from_secs(60);
/// How long an agent that is being replaced may take to end.
const HAND_OVER: Duration = Duration::from_secs(3);
/// Time between two attempts to claim the maps.
const CLAIM_AGAIN: Duration = Duration::from_millis(50);

/// Names and types of the fields of maps: the compiled programs have them.
pub trait FieldNames: Send + Sync {
    /// Loads them into the kernel.
    ///
    /// # Errors
    ///
    /// Why the kernel has no such names; maps are created without them.
    fn load(&self) -> Result<MapTypes, Box<dyn Error + Send + Sync>>;
}

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

/// Starts a check of the pins before its time.
#[derive(Debug, Default)]
pub struct PinCheck(Trigger);

impl PinCheck {
    /// Checks now.
    pub fn trigger(&self) {
        self.0.trigger();
    }
}

/// Pins of maps in use were removed. The maps are pinned again; find what removes them.
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

pub(crate) fn pin_check() -> Arc<PinCheck> {
    Arc::default()
}

pub(crate) fn watch_pins(store: Arc<MapStore>, check: Arc<PinCheck>, jobs: Jobs) -> Result<(), SpawnError> {
    let job = Job::every(CHECK_PINS, "check-map-pins", move |_cx: JobCtx| {
        let store = store.clone();
        async move {
            let maps = tokio::task::spawn_blocking(move || store.pin_missing()).await??;
            if maps.is_empty() {
                return Ok(());
            }
            tracing::warn!(maps = maps.join(", "), "Restored removed pins of maps");
            Err(PinsError::from(Unpinned { maps }))
        }
    });
    jobs.spawn(job.trigger(&check.0))
}

pub(crate) fn new_store(
    config: Cfg<Config>,
    names: Option<Arc<dyn FieldNames>>,
    lifecycle: Lifecycle,
) -> Result<Arc<MapStore>, Infallible> {
    let store = MapStore::new(&config.bpf_root);
    let (root, mounted) = (config.bpf_root.clone(), store.clone());
    let claim: Arc<Mutex<Option<Claim>>> = Arc::default();
    let claimed = claim.clone();
    lifecycle.on_start("bpf-file-system", move |_: HookCtx| {
        let (root, store, claim) = (root.clone(), mounted.clone(), claimed.clone());
        let names = names.clone();
        async move {
            capability::require(&[capability::BPF])?;
            let found = mount::bpffs(&root)?;
            store.set_root(&found);
            if let Some(names) = names {
                describe(&store, &*names);
            }
            let taken = take_claim(&store.directory()).await?;
            *claim.lock() = Some(taken);
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
fn describe(store: &MapStore, names: &dyn FieldNames) {
    match names.load() {
        Ok(types) => store.describe(types),
        Err(error) => tracing::info!(
            error = &*error as &(dyn Error + 'static),
            "Creating maps without BTF"
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
