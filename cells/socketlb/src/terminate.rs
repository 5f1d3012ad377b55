// SPDX-License-Identifier: Apache-2.0

//! Destroys client sockets of backends that are gone.
//!
//! A UDP client that is connected to a backend through a service would go on sending into the void for ever: nothing
//! tells it. Destroying its socket does. Whoever watches the backends reports the dead ones to
//! [`DeadBackends`]; a job destroys the sockets of all reported in one go.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use hive::{Cfg, Job, JobCtx, Jobs, SpawnError, Trigger};
use parking_lot::Mutex;
use skep_bpf::{
    MapError, MapStore,
    load::{DeadBackend, IterTerminator, LoadError, TerminateError},
    netns::{self, NetnsError},
};

use crate::{Config, DiagError, DiagTerminator, LbSettings, SocketDatapath};

/// Reports gather this long after the last one…
const QUIET: Duration = Duration::from_millis(25);
/// …but no longer than this after the first.
const BATCH: Duration = Duration::from_millis(50);

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Knows the network namespaces of the pods on this node.
pub trait PodNetworks: Send + Sync {
    /// Files that name the namespaces, for `setns(2)`.
    fn namespaces(&self) -> Vec<PathBuf>;
}

/// Where backends that are gone are reported: removed ones, and those that are unhealthy, quarantined or in
/// maintenance. Cheap to report to; the work is done by a job.
#[derive(Debug, Default)]
pub struct DeadBackends {
    reported: Mutex<BTreeSet<DeadBackend>>,
    trigger: Trigger,
}

impl DeadBackends {
    /// Reports one backend: address, port and IP protocol number.
    pub fn report(&self, address: SocketAddr, proto: u8) {
        self.reported.lock().insert(DeadBackend { address, proto });
        self.trigger.trigger();
    }

    /// Takes back a report: the backend lives again.
    pub fn revoke(&self, address: SocketAddr, proto: u8) {
        self.reported.lock().remove(&DeadBackend { address, proto });
    }

    pub(crate) fn take(&self) -> Vec<DeadBackend> {
        std::mem::take(&mut *self.reported.lock()).into_iter().collect()
    }
}

/// Why sockets were not destroyed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("reverse socket maps not opened")]
    Maps(#[from] MapError),
    #[error("sockets not destroyed by the iterator")]
    Iterator(#[from] TerminateError),
    #[error("sockets not destroyed by netlink")]
    Netlink(#[from] DiagError),
    #[error("{} network namespaces not reached", .0.len())]
    Namespaces(Vec<NetnsError>),
    #[error("interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
    #[error("this kernel cannot destroy sockets")]
    Unsupported(#[source] DiagError),
}

/// How sockets are destroyed on this kernel.
#[derive(Debug)]
enum Method {
    Iterator(IterTerminator),
    Netlink(DiagTerminator),
}

impl Method {
    /// The iterator where the kernel has it, else netlink.
    fn choose(store: &MapStore, settings: &LbSettings) -> Result<Self, MapError> {
        match IterTerminator::load(store, settings.sizes, settings.ipv4, settings.ipv6) {
            Ok(terminator) => Ok(Self::Iterator(terminator)),
            Err(LoadError::Map { source, .. }) => Err(source),
            Err(error) => {
                tracing::info!(%error, "destroying sockets by netlink: this kernel has no iterator for it");
                DiagTerminator::open(store, settings.sizes, settings.ipv4, settings.ipv6).map(Self::Netlink)
            }
        }
    }

    fn run(&self, backends: &[DeadBackend]) -> Result<usize, Error> {
        match self {
            Self::Iterator(terminator) => Ok(terminator.run(backends)?.len()),
            Self::Netlink(terminator) => match terminator.run(backends) {
                Ok(cookies) => Ok(cookies.len()),
                Err(error) if error.is_unsupported() => Err(Error::Unsupported(error)),
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// The work of the job.
struct Terminator {
    dead: Arc<DeadBackends>,
    datapath: Arc<SocketDatapath>,
    store: Arc<MapStore>,
    pods: Option<Arc<dyn PodNetworks>>,
    protos: Vec<u8>,
    method: Mutex<Option<Method>>,
    is_unsupported: Mutex<bool>,
}

impl Terminator {
    /// Destroys the sockets of everything reported; returns how many there were.
    fn run(&self) -> Result<usize, Error> {
        let mut backends = self.dead.take();
        backends.retain(|backend| self.protos.contains(&backend.proto));
        if backends.is_empty() || !self.datapath.is_enabled() || *self.is_unsupported.lock() {
            return Ok(0);
        }
        let mut method = self.method.lock();
        let method = match &mut *method {
            Some(method) => method,
            none => none.insert(Method::choose(&self.store, self.datapath.settings())?),
        };
        let mut destroyed = method.run(&backends).inspect_err(|error| {
            *self.is_unsupported.lock() = matches!(error, Error::Unsupported(_));
        })?;
        let mut missed = Vec::new();
        for namespace in self.pods.iter().flat_map(|pods| pods.namespaces()) {
            match netns::inside(&namespace, || method.run(&backends)) {
                Ok(result) => destroyed += result?,
                // The pod has gone, and its sockets with it.
                Err(NetnsError::Open { .. }) => {}
                Err(error) => missed.push(error),
            }
        }
        if destroyed > 0 {
            tracing::info!(
                backends = backends.len(),
                sockets = destroyed,
                "destroyed sockets of dead backends"
            );
        }
        if missed.is_empty() {
            Ok(destroyed)
        } else {
            Err(Error::Namespaces(missed))
        }
    }
}

pub(crate) fn provide() -> Arc<DeadBackends> {
    Arc::default()
}

pub(crate) fn run(
    dead: Arc<DeadBackends>,
    datapath: Arc<SocketDatapath>,
    store: Arc<MapStore>,
    config: Cfg<Config>,
    pods: Option<Arc<dyn PodNetworks>>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    let reaches_pods = config.terminate_pod_connections && !config.host_only;
    let terminator = Arc::new(Terminator {
        datapath,
        store,
        pods: pods.filter(|_| reaches_pods),
        protos: if config.terminate_all_protos {
            vec![UDP, TCP]
        } else {
            vec![UDP]
        },
        method: Mutex::new(None),
        is_unsupported: Mutex::new(false),
        dead: dead.clone(),
    });
    let job = Job::every(Duration::ZERO, "socket-termination", move |cx: JobCtx| {
        let terminator = terminator.clone();
        async move {
            let destroyed = tokio::task::spawn_blocking(move || terminator.run()).await??;
            cx.health.ok(format!("{destroyed} sockets destroyed"));
            Ok::<(), Error>(())
        }
    });
    jobs.spawn(job.trigger(&dead.trigger).debounce(QUIET, BATCH))
}
