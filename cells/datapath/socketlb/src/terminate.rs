// SPDX-License-Identifier: Apache-2.0

//! Destroys client sockets of backends that are gone.
//!
//! A UDP client that is connected to a backend through a service would keep sending into the void: nothing
//! tells it. Destroying its socket does. Whoever watches the backends reports the dead ones to
//! [`DeadBackends`]; a job destroys the sockets of all reported in one go. What failed is tried again, unless the backend
//! lives again by then.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use hive::{Cfg, Job, JobCtx, Jobs, SpawnError, Trigger};
use parking_lot::Mutex;
use skep_base_net::netns::{self, NetnsError};
use skep_base_settings::SocketLbConfig;
use skep_bpf_programs::{DeadBackend, IterTerminator, LoadError, TerminateError};
use skep_bpf_sys::{MapError, MapStore};
use skep_datapath_hooks::{PodNetworks, SocketTermination};

use crate::{DiagError, DiagTerminator, SocketDatapath, SocketSettings};

/// Reports gather this long after the last one…
const QUIET: Duration = Duration::from_millis(25);
/// …but no longer than this after the first.
const BATCH: Duration = Duration::from_millis(50);
/// Time until what failed is tried again, if no other report comes before.
const RETRY: Duration = Duration::from_secs(30);

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Where backends that are gone are reported: removed ones, and those that are unhealthy, quarantined or in
/// maintenance. Cheap to report to; the work is done by a job.
#[derive(Debug, Default)]
pub struct DeadBackends {
    reports: Mutex<Reports>,
    trigger: Trigger,
}

#[derive(Debug, Default)]
struct Reports {
    waiting: BTreeSet<DeadBackend>,
    // Those that the job works on.
    taken: BTreeSet<DeadBackend>,
}

impl DeadBackends {
    /// Reports one backend: address, port and IP protocol number.
    pub fn report(&self, address: SocketAddr, proto: u8) {
        self.reports.lock().waiting.insert(DeadBackend { address, proto });
        self.trigger.trigger();
    }

    /// Takes back a report: the backend lives again.
    pub fn revoke(&self, address: SocketAddr, proto: u8) {
        let backend = DeadBackend { address, proto };
        let mut reports = self.reports.lock();
        reports.waiting.remove(&backend);
        reports.taken.remove(&backend);
    }

    /// Everything reported, to be [settled](Self::settle) when it was tried.
    pub(crate) fn take(&self) -> Vec<DeadBackend> {
        let mut reports = self.reports.lock();
        reports.taken = std::mem::take(&mut reports.waiting);
        reports.taken.iter().copied().collect()
    }

    /// Forgets what was taken, or reports it again but for what was revoked meanwhile.
    pub(crate) fn settle(&self, again: bool) {
        let mut reports = self.reports.lock();
        let taken = std::mem::take(&mut reports.taken);
        if again {
            reports.waiting.extend(taken);
        }
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
    Netlink(#[source] DiagError),
    #[error("{} network namespaces not reached", .0.len())]
    Namespaces(Vec<NetnsError>),
    #[error("interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
    #[error("this kernel cannot destroy sockets")]
    Unsupported(#[source] DiagError),
}

impl From<DiagError> for Error {
    fn from(error: DiagError) -> Self {
        if error.is_unsupported() {
            Self::Unsupported(error)
        } else {
            Self::Netlink(error)
        }
    }
}

impl Error {
    /// Whether the same may work later. What the kernel refuses, or the namespace of a pod, it refuses permanently.
    const fn is_passing(&self) -> bool {
        !matches!(self, Self::Namespaces(_) | Self::Unsupported(_))
    }
}

/// How sockets are destroyed on this kernel.
#[derive(Debug)]
enum Method {
    Iterator(IterTerminator),
    Netlink(DiagTerminator),
}

impl Method {
    /// The iterator where the kernel has it, else netlink.
    fn choose(store: &MapStore, settings: &SocketSettings) -> Result<Self, MapError> {
        let (sizes, families) = (*settings.sizes, &settings.families);
        match IterTerminator::load(store, sizes, families.ipv4, families.ipv6) {
            Ok(terminator) => Ok(Self::Iterator(terminator)),
            Err(LoadError::Map { source, .. }) => Err(source),
            Err(error) => {
                tracing::info!(%error, "Kernel without socket iterators, destroying sockets by netlink");
                DiagTerminator::open(store, sizes, families.ipv4, families.ipv6).map(Self::Netlink)
            }
        }
    }

    fn run(&self, backends: &[DeadBackend]) -> Result<usize, Error> {
        let cookies = match self {
            Self::Iterator(terminator) => terminator.run(backends)?,
            Self::Netlink(terminator) => terminator.run(backends)?,
        };
        Ok(cookies.len())
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
    /// Destroys the sockets of everything reported.
    fn run(&self) -> Result<(), Error> {
        let result = self.destroy(self.dead.take());
        self.dead.settle(result.as_ref().is_err_and(Error::is_passing));
        result
    }

    fn destroy(&self, mut backends: Vec<DeadBackend>) -> Result<(), Error> {
        backends.retain(|backend| self.protos.contains(&backend.proto));
        if backends.is_empty() || !self.datapath.is_enabled() || *self.is_unsupported.lock() {
            return Ok(());
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
                "Destroyed sockets of deleted backends"
            );
        }
        if missed.is_empty() {
            Ok(())
        } else {
            Err(Error::Namespaces(missed))
        }
    }
}

/// Reports of other cells.
struct Termination {
    dead: Arc<DeadBackends>,
    datapath: Arc<SocketDatapath>,
}

impl SocketTermination for Termination {
    fn is_enabled(&self) -> bool {
        self.datapath.is_enabled()
    }

    fn report(&self, backend: SocketAddr, proto: u8) {
        self.dead.report(backend, proto);
    }

    fn revoke(&self, backend: SocketAddr, proto: u8) {
        self.dead.revoke(backend, proto);
    }
}

pub(crate) fn termination(
    dead: Arc<DeadBackends>,
    datapath: Arc<SocketDatapath>,
) -> Arc<dyn SocketTermination> {
    Arc::new(Termination { dead, datapath })
}

pub(crate) fn provide() -> Arc<DeadBackends> {
    Arc::default()
}

pub(crate) fn run(
    dead: Arc<DeadBackends>,
    datapath: Arc<SocketDatapath>,
    store: Arc<MapStore>,
    config: Cfg<SocketLbConfig>,
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
    let job = Job::every(RETRY, "socket-termination", move |_: JobCtx| {
        let terminator = terminator.clone();
        async move { tokio::task::spawn_blocking(move || terminator.run()).await? }
    });
    jobs.spawn(job.trigger(&dead.trigger).debounce(QUIET, BATCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_reported_again_unless_it_lives_again() {
        let dead = DeadBackends::default();
        let [gone, revived]: [SocketAddr; 2] =
            ["10.0.0.1:53", "10.0.0.2:53"].map(|address| address.parse().unwrap());
        dead.report(gone, UDP);
        dead.report(revived, UDP);

        assert_eq!(dead.take().len(), 2);
        dead.revoke(revived, UDP);
        dead.settle(true);
        let again = dead.take();
        dead.settle(false);

        assert_eq!(
            again,
            [DeadBackend {
                address: gone,
                proto: UDP
            }]
        );
        assert!(dead.take().is_empty());
    }

    /// Cannot open its maps.
    fn terminator(enabled: bool, is_unsupported: bool) -> Terminator {
        // A directory cannot be made below a file.
        let store = MapStore::new("/proc/version");
        fn defaults<C: hive::Config>() -> Cfg<C> {
            Cfg::fixed(C::defaults().unwrap())
        }
        let settings = SocketSettings {
            families: defaults(),
            replacement: defaults(),
            node_ports: defaults(),
            services: defaults(),
            sockets: Cfg::fixed(SocketLbConfig {
                enabled,
                ..<SocketLbConfig as hive::Config>::defaults().unwrap()
            }),
            kernel: defaults(),
            monitor: defaults(),
            forwarding: defaults(),
            sizes: Arc::default(),
        };
        Terminator {
            dead: Arc::default(),
            datapath: SocketDatapath::new(store.clone(), settings),
            store,
            pods: None,
            protos: vec![UDP],
            method: Mutex::new(None),
            is_unsupported: Mutex::new(is_unsupported),
        }
    }

    #[test]
    fn nothing_is_tried_without_socket_programs_or_where_the_kernel_cannot() {
        for (enabled, is_unsupported) in [(false, false), (true, true)] {
            let terminator = terminator(enabled, is_unsupported);
            terminator.dead.report("10.0.0.1:53".parse().unwrap(), UDP);

            assert!(terminator.run().is_ok());
            assert!(terminator.dead.take().is_empty());
        }
    }

    #[test]
    fn sockets_are_tried_again_after_the_maps_could_not_be_opened() {
        let terminator = terminator(true, false);
        let address = "10.0.0.1:53".parse().unwrap();
        terminator.dead.report(address, UDP);
        terminator.dead.report(address, TCP);

        for _ in 0..2 {
            assert!(matches!(terminator.run(), Err(Error::Maps(_))));
        }

        let udp = DeadBackend { address, proto: UDP };
        assert!(terminator.dead.take().contains(&udp));
        terminator.dead.settle(false);
        assert!(terminator.run().is_ok(), "nothing is left");
    }

    #[test]
    fn what_the_kernel_refuses_is_not_tried_again() {
        let failed = MapError::Unpin {
            map: "cilium_lb4_reverse_sk".into(),
            path: std::path::PathBuf::new(),
            source: std::io::ErrorKind::Other.into(),
        };
        let netlink = |errno| {
            let source = std::io::Error::from_raw_os_error(errno);
            Error::from(DiagError::List { proto: UDP, source })
        };
        assert!(Error::Maps(failed).is_passing());
        assert!(netlink(libc::EINTR).is_passing());
        assert!(!netlink(libc::EOPNOTSUPP).is_passing());
        assert!(!Error::Namespaces(Vec::new()).is_passing());
    }
}
