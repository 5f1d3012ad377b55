// SPDX-License-Identifier: Apache-2.0

//! The programs in the kernel: brought to what is configured at start, and kept there.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use hive::{Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle, Params, SpawnError};
use parking_lot::Mutex;
use skep_bpf_maps::lb::LbMapSizes;
use skep_bpf_programs::{
    LoadError, MapClock, NodeOptions, PacketOptions, SOCKET_PROGRAMS, SocketLb, SocketProgram,
    has_getpeername, has_set_retval, kernel_hz,
};
use skep_bpf_sys::{
    Hold, MapError, MapStore,
    capability::{self, CapabilityError},
    link::{Attached, CgroupHook, CgroupLinks, LinkError, program_name, running},
    mount::{self, MountError},
};

use skep_base_settings::{
    AddressFamilies, ForwardingConfig, KernelConfig, KubeProxyReplacement, MonitorConfig, NodePorts,
    ServiceConfig, SocketLbConfig,
};
use skep_datapath_hooks::MapsWritten;

use crate::{
    jit,
    ports::{self, PortsError},
};

/// How often the links are looked after.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// How long programs go on with replaced maps before they are switched to the new ones regardless.
const WRITTEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Why the programs are not what is configured.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// This process may not load or attach programs.
    #[error("socket load balancing: not permitted")]
    Capability(#[from] CapabilityError),
    /// The cgroup tree was not found or mounted.
    #[error("socket load balancing: no cgroup to attach to")]
    Mount(#[from] MountError),
    /// The programs were not loaded.
    #[error("socket load balancing: programs not loaded")]
    Load(#[from] LoadError),
    /// A program was not attached or detached.
    #[error("socket load balancing: programs not attached")]
    Link(#[from] LinkError),
    /// A new map did not get its pin.
    #[error("socket load balancing: maps not replaced")]
    Map(#[from] MapError),
    /// The thread that does the work ended.
    #[error("socket load balancing: interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
    /// The kernel gives node ports away.
    #[error("node ports are not the services' alone")]
    Ports(#[from] PortsError),
    /// A program's link is gone, or the cgroup that it was on; it is attached again.
    #[error("program {program} was detached by another program")]
    Detached {
        /// The program.
        program: &'static str,
    },
    /// Another process put other programs into the links. They are left there: taking them back starts a fight in which
    /// connections break. Stop the other, and restart this one.
    #[error("programs were replaced by another process: {}", list(programs))]
    Replaced {
        /// What runs instead.
        programs: Vec<ForeignProgram>,
    },
}

/// A program that runs in a link of ours, and is not ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignProgram {
    /// The program in whose place it runs.
    pub instead_of: &'static str,
    /// Its id, as `bpftool prog show id` takes it.
    pub id: u32,
    /// Its name in the kernel, if it has one.
    pub name: Option<String>,
}

impl fmt::Display for ForeignProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("without a name");
        write!(f, "{name} (id {}) in the place of {}", self.id, self.instead_of)
    }
}

fn list(programs: &[ForeignProgram]) -> String {
    let texts: Vec<String> = programs.iter().map(ForeignProgram::to_string).collect();
    texts.join(", ")
}

/// Where the links are pinned, below the root of the BPF file system.
pub fn links_directory(bpf_root: &Path) -> PathBuf {
    bpf_root.join("cilium/socketlb/links/cgroup")
}

/// What is attached, for status displays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketStatus {
    /// Socket load balancing is switched on.
    pub is_enabled: bool,
    /// The cgroup the programs are attached to.
    pub cgroup_root: Option<PathBuf>,
    /// Names of the attached programs.
    pub programs: Vec<&'static str>,
    /// Rejected calls return the error that fits (Linux 5.18), not always EPERM.
    pub has_errors: bool,
    /// `getpeername(2)` shows the service (Linux 5.8).
    pub has_peers: bool,
    /// Programs tell time by the kernel's tick, so many a second; by its clock if `None`.
    pub tick: Option<u32>,
}

/// Settings that decide which socket programs run, and how.
#[derive(Debug, Clone, Params)]
pub struct SocketSettings {
    /// Address families in use.
    pub families: Cfg<AddressFamilies>,
    /// The kube-proxy replacement switches socket load balancing on, and serves NodePort and HostPort.
    pub replacement: Cfg<KubeProxyReplacement>,
    /// Ports of NodePort services.
    pub node_ports: Cfg<NodePorts>,
    /// What calls to services without backends get.
    pub services: Cfg<ServiceConfig>,
    /// Socket load balancing itself.
    pub sockets: Cfg<SocketLbConfig>,
    /// Whether sockets of health checkers choose backends.
    pub forwarding: Cfg<ForwardingConfig>,
    /// Where settings of the kernel are.
    pub kernel: Cfg<KernelConfig>,
    /// Events and clock.
    pub monitor: Cfg<MonitorConfig>,
    /// Sizes of the maps, the same for programs and for those who write the maps.
    pub sizes: Arc<LbMapSizes>,
}

/// The socket programs of this node.
#[derive(Debug)]
pub struct SocketDatapath {
    store: Arc<MapStore>,
    settings: SocketSettings,
    tick: OnceLock<Option<u32>>,
    hold: Mutex<Option<Hold>>,
    status: Mutex<SocketStatus>,
    /// Programs and the ids of those that were attached.
    attached: Mutex<Vec<(&'static str, u32)>>,
}

impl SocketDatapath {
    /// The programs as configured; nothing is done yet, but maps that get replaced keep their pins until
    /// [`apply`](Self::apply).
    pub fn new(store: Arc<MapStore>, settings: SocketSettings) -> Arc<Self> {
        let hold = Mutex::new(Some(store.hold()));
        Arc::new(Self {
            store,
            settings,
            tick: OnceLock::new(),
            hold,
            status: Mutex::default(),
            attached: Mutex::default(),
        })
    }

    /// Socket load balancing is switched on.
    pub fn is_enabled(&self) -> bool {
        self.settings.sockets.enabled || self.settings.replacement.enabled
    }

    /// What is attached.
    pub fn status(&self) -> SocketStatus {
        self.status.lock().clone()
    }

    /// The settings.
    pub fn settings(&self) -> &SocketSettings {
        &self.settings
    }

    /// Loads and attaches the programs, or detaches them if socket load balancing is off; then lets replaced
    /// maps take over their pins. Blocks for some tens of milliseconds.
    ///
    /// # Errors
    ///
    /// [`DatapathError`]; what was attached before stays so as far as it goes.
    pub fn apply(&self) -> Result<SocketStatus, DatapathError> {
        let directory = links_directory(&self.store.root());
        let mut ids = Vec::new();
        let mut status = SocketStatus {
            is_enabled: self.is_enabled(),
            has_errors: has_set_retval(),
            has_peers: has_getpeername(),
            ..SocketStatus::default()
        };
        if self.is_enabled() {
            capability::require(&capability::REQUIRED)?;
            jit::enable(&self.settings.kernel.sysctl().join(jit::SWITCH));
            let cgroup = mount::cgroup2(self.settings.sockets.configured_cgroup_root())?;
            let programs = SocketLb::load(&self.store, *self.settings.sizes, &self.options(), |program| {
                self.wants(program)
            })?;
            let done = programs.attach(&CgroupLinks::new(&directory, &cgroup)?, &directory)?;
            let updated = done
                .iter()
                .filter(|(_, attached)| *attached == Attached::Updated)
                .count();
            tracing::info!(
                cgroup = %cgroup.display(),
                programs = done.len(),
                updated,
                "Attached socket load balancing"
            );
            status.cgroup_root = Some(cgroup);
            status.tick = self.tick();
            status.programs = done.iter().map(|(program, _)| program.name).collect();
            for (program, _) in done {
                ids.extend(running(&directory, program.name)?.map(|id| (program.name, id)));
            }
        } else if SocketLb::detach_all(&directory)? > 0 {
            tracing::info!("Detached socket load balancing");
        }
        *self.status.lock() = status.clone();
        *self.attached.lock() = ids;
        if let Some(hold) = self.hold.lock().take() {
            hold.release()?;
        }
        Ok(status)
    }

    /// Keeps the node ports for services.
    fn protect_ports(&self) -> Result<(), PortsError> {
        let range = self.settings.node_ports.range;
        let kernel = &self.settings.kernel;
        if !kernel.is_mounted() {
            tracing::warn!(procfs = %kernel.procfs.display(), "No sysctls mounted at `procfs`, using /proc");
        }
        let directory = kernel.sysctl().join(ports::DIRECTORY);
        if self.settings.replacement.enabled
            && ports::protect(&directory, range, self.settings.node_ports.reserve)?
        {
            tracing::info!(ports = %range, "Added node port range to reserved ports");
        }
        Ok(())
    }

    /// Whether programs can be switched now: false if maps were replaced, and the new ones are not filled.
    fn is_ready(&self) -> Result<bool, DatapathError> {
        if self.is_enabled() {
            SocketLb::prepare(&self.store, *self.settings.sizes, &self.options())?;
        }
        Ok(!self.store.has_pending())
    }

    /// Compares the links with what was attached; attaches again what is missing, and nothing else.
    ///
    /// # Errors
    ///
    /// [`DatapathError::Detached`] if something was missing (and is attached again), or what kept it from
    /// being attached. [`DatapathError::Replaced`] if links run programs of another process.
    pub fn check(&self) -> Result<(), DatapathError> {
        let directory = links_directory(&self.store.root());
        let attached = self.attached.lock().clone();
        let mut missing = Vec::new();
        let mut programs = Vec::new();
        for (program, ours) in attached {
            match running(&directory, program)? {
                None => missing.push(program),
                Some(id) if id != ours => programs.push(ForeignProgram {
                    instead_of: program,
                    id,
                    // Only for the message: the id is enough to find it.
                    name: program_name(id).ok().flatten(),
                }),
                Some(_) => {}
            }
        }
        if let Some(program) = missing.first() {
            self.attach_again(&missing)?;
            return Err(DatapathError::Detached { program });
        }
        if programs.is_empty() {
            Ok(())
        } else {
            Err(DatapathError::Replaced { programs })
        }
    }

    /// Attaches these programs and no others: the rest may run programs of another process, which are left there.
    fn attach_again(&self, missing: &[&'static str]) -> Result<(), DatapathError> {
        let directory = links_directory(&self.store.root());
        let cgroup = mount::cgroup2(self.settings.sockets.configured_cgroup_root())?;
        let programs = SocketLb::load(&self.store, *self.settings.sizes, &self.options(), |program| {
            missing.contains(&program.name)
        })?;
        programs.attach_only(&CgroupLinks::new(&directory, &cgroup)?)?;
        for (program, id) in self.attached.lock().iter_mut() {
            if missing.contains(program)
                && let Some(again) = running(&directory, program)?
            {
                *id = again;
            }
        }
        Ok(())
    }

    fn wants(&self, program: &SocketProgram) -> bool {
        let is_bind = matches!(program.hook, CgroupHook::PostBind4 | CgroupHook::PostBind6);
        let is_probe = matches!(program.hook, CgroupHook::Bind4 | CgroupHook::Bind6);
        let is_peer = matches!(program.hook, CgroupHook::GetPeerName4 | CgroupHook::GetPeerName6);
        let families = &self.settings.families;
        let has_family = if program.is_ipv6 {
            // Without IPv6 services, IPv6 sockets still reach IPv4 ones by mapped addresses.
            families.ipv6 || (families.ipv4 && kernel_has_ipv6())
        } else {
            families.ipv4 || program.hook == CgroupHook::SockRelease
        };
        has_family
            && (!is_bind || (self.settings.replacement.enabled && self.settings.node_ports.bind_protection))
            && (!is_peer || has_getpeername())
            && (!is_probe || self.settings.forwarding.health_probes)
    }

    /// Options of the programs as configured; those of programs that see packets have their defaults.
    pub fn options(&self) -> NodeOptions {
        let SocketSettings {
            families,
            replacement,
            node_ports,
            services,
            sockets,
            monitor,
            forwarding,
            ..
        } = &self.settings;
        NodeOptions {
            ipv4: families.ipv4,
            ipv6: families.ipv6,
            nodeport: replacement.enabled,
            nodeport_range: (node_ports.range.first(), node_ports.range.last()),
            host_only: sockets.host_only,
            reject_no_endpoints: services.reject_without_backends,
            external_ip_mitigation: !sockets.disable_external_ip_mitigation,
            // Costs a lookup only for services of redirect policies.
            local_redirect: true,
            mke: sockets.mke,
            trace: sockets.trace,
            trace_aggregation: monitor.aggregation.number(),
            trace_interval: monitor.interval,
            jiffies: self.tick(),
            packets: PacketOptions {
                health_probes: forwarding.health_probes,
                ..PacketOptions::default()
            },
            ..NodeOptions::default()
        }
    }

    /// Ticks a second, if they are the clock of the programs. Resolved once: times in maps are on this clock.
    fn tick(&self) -> Option<u32> {
        *self.tick.get_or_init(|| {
            let wanted = self.configured_clock();
            let kept = wanted.keep(&self.store).unwrap_or_else(|error| {
                tracing::warn!(
                    error = &error as &(dyn std::error::Error + 'static),
                    "Cannot read the clock of the maps, assuming the configured one"
                );
                wanted
            });
            if kept != wanted {
                tracing::warn!(
                    clock = ?kept,
                    configured = ?wanted,
                    "Maps have timestamps of another clock than `enable-bpf-clock-probe` selects, keeping that clock until \
                     they are empty at start"
                );
            }
            kept.ticks()
        })
    }

    fn configured_clock(&self) -> MapClock {
        if !self.settings.monitor.clock_probe {
            return MapClock::Seconds;
        }
        match kernel_hz() {
            Ok(ticks) => MapClock::Ticks(ticks),
            Err(error) => {
                tracing::warn!(
                    error = &error as &(dyn std::error::Error + 'static),
                    "Unknown tick rate of the kernel, using the monotonic clock"
                );
                MapClock::Seconds
            }
        }
    }

    fn hold_again(&self) {
        let mut hold = self.hold.lock();
        if hold.is_none() {
            *hold = Some(self.store.hold());
        }
    }
}

fn kernel_has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

/// Applies off the async threads: loading takes a while.
async fn apply(datapath: Arc<SocketDatapath>) -> Result<String, DatapathError> {
    let status = tokio::task::spawn_blocking(move || datapath.apply()).await??;
    Ok(match &status.cgroup_root {
        Some(cgroup) => {
            format!(
                "{} of {} programs attached to {}",
                status.programs.len(),
                SOCKET_PROGRAMS.len(),
                cgroup.display()
            )
        }
        None => "Switched off".to_owned(),
    })
}

pub(crate) fn provide(
    store: Arc<MapStore>,
    settings: SocketSettings,
    lifecycle: Lifecycle,
) -> Arc<SocketDatapath> {
    let datapath = SocketDatapath::new(store, settings);
    let (at_start, at_stop) = (datapath.clone(), datapath.clone());
    lifecycle.on_start("attach-socket-programs", move |cx: HookCtx| {
        let datapath = at_start.clone();
        async move {
            datapath.protect_ports()?;
            // With replaced maps the job below attaches when they are filled.
            if datapath.is_ready()? {
                let message = apply(datapath).await?;
                cx.health.ok(message);
            }
            Ok::<(), DatapathError>(())
        }
    });
    // The programs go on without the agent; only the next start's maps are held again.
    lifecycle.on_stop("hold-maps", move |_cx: HookCtx| {
        at_stop.hold_again();
        async {}
    });
    datapath
}

pub(crate) fn watch(
    datapath: Arc<SocketDatapath>,
    written: Option<Arc<dyn MapsWritten>>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    let switched = datapath.clone();
    jobs.spawn(Job::once("switch-maps", move |cx: JobCtx| {
        let (datapath, written) = (switched.clone(), written.clone());
        async move {
            if datapath.hold.lock().is_none() {
                return Ok(());
            }
            if let Some(written) = written {
                cx.health.ok("Waiting for replaced maps to be populated");
                if tokio::time::timeout(WRITTEN_TIMEOUT, written.written())
                    .await
                    .is_err()
                {
                    tracing::warn!("Timed out waiting for services, switching to the new maps");
                }
            }
            let message = apply(datapath).await?;
            cx.health.ok(message);
            Ok::<(), DatapathError>(())
        }
    }))?;
    jobs.spawn(Job::every(CHECK_INTERVAL, "check-links", move |_cx: JobCtx| {
        let datapath = datapath.clone();
        async move {
            tokio::task::spawn_blocking(move || datapath.check()).await??;
            Ok::<(), DatapathError>(())
        }
    }))
}
