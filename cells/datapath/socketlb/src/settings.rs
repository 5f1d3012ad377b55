// SPDX-License-Identifier: Apache-2.0

//! What the socket load balancer shares with the cells that write its maps.

use std::{fmt, fs, str::FromStr};

use hive::{Cell, Cfg, config::Faults};
use skep_bpf_maps::lb::{
    DEFAULT_LB_MAP_MAX, DEFAULT_REVERSE_SK, LbMapSizes, MAX_REVERSE_SK, dynamic_reverse_sk, round_to_cpus,
};
use skep_bpf_sys::map::possible_cpus;

/// Facts about load balancing that its writers and its programs must agree on. Provided once in a hive: by
/// [`loadbalancer_cell`](crate::loadbalancer_cell), or by [`settings_cell`].
#[derive(Debug, Clone, PartialEq, hive::Value)]
pub struct LbSettings {
    /// This agent replaces kube-proxy: switches socket load balancing on, and serves NodePort and HostPort.
    pub kube_proxy_replacement: bool,
    /// IPv4 services exist.
    pub ipv4: bool,
    /// IPv6 services exist.
    pub ipv6: bool,
    /// Ports of NodePort services.
    pub node_port_range: NodePortRange,
    /// Calls to services without backends fail with EHOSTUNREACH whatever their traffic policy says.
    pub reject_no_endpoints: bool,
    /// Local redirect policies exist: the skip-LB maps are heeded.
    pub local_redirect: bool,
    /// Sizes of the maps; the same for writers and programs.
    pub sizes: LbMapSizes,
}

impl Default for LbSettings {
    fn default() -> Self {
        Self {
            kube_proxy_replacement: false,
            ipv4: true,
            ipv6: true,
            node_port_range: NodePortRange::default(),
            reject_no_endpoints: true,
            local_redirect: false,
            sizes: LbMapSizes::default(),
        }
    }
}

/// First and last port of NodePort services.
///
/// ```
/// let range: skep_socketlb::NodePortRange = "30000,32767".parse()?;
/// assert_eq!((range.first(), range.last()), (30000, 32767));
/// # Ok::<(), skep_socketlb::NodePortRangeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePortRange {
    first: u16,
    last: u16,
}

/// Why a port range was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NodePortRangeError {
    /// Not two numbers. Write the first and the last port with a comma between.
    #[error("`{0}` is not `first,last`")]
    Form(String),
    /// The first port must be smaller than the last.
    #[error("{0} is not smaller than {1}")]
    Order(u16, u16),
}

impl NodePortRange {
    /// First port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// Last port.
    pub const fn last(self) -> u16 {
        self.last
    }
}

impl Default for NodePortRange {
    fn default() -> Self {
        Self {
            first: 30_000,
            last: 32_767,
        }
    }
}

impl From<&std::ops::RangeInclusive<u16>> for NodePortRange {
    fn from(range: &std::ops::RangeInclusive<u16>) -> Self {
        Self {
            first: *range.start(),
            last: *range.end(),
        }
    }
}

impl fmt::Display for NodePortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.first, self.last)
    }
}

impl FromStr for NodePortRange {
    type Err = NodePortRangeError;

    fn from_str(text: &str) -> Result<Self, NodePortRangeError> {
        let form = || NodePortRangeError::Form(text.to_owned());
        let (first, last) = text.split_once(',').ok_or_else(form)?;
        let port = |text: &str| text.trim().parse().map_err(|_| form());
        let (first, last) = (port(first)?, port(last)?);
        if first < last {
            Ok(Self { first, last })
        } else {
            Err(NodePortRangeError::Order(first, last))
        }
    }
}

hive::config_value!(NodePortRange, "first and last port, as in `30000,32767`");

/// The shared settings as a user writes them.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = SettingsConfig::check)]
pub struct SettingsConfig {
    /// Serves all kinds of Kubernetes services in place of kube-proxy.
    #[config(default = false)]
    pub kube_proxy_replacement: bool,
    /// Serves IPv4.
    #[config(default = true, flag = "enable-ipv4")]
    pub ipv4: bool,
    /// Serves IPv6.
    #[config(default = true, flag = "enable-ipv6")]
    pub ipv6: bool,
    /// Ports of NodePort services: first and last.
    #[config(default = "30000,32767")]
    pub node_port_range: NodePortRange,
    /// Serves local redirect policies.
    #[config(default = false, flag = "enable-local-redirect-policy")]
    pub local_redirect: bool,
    /// Entries of every load-balancer map whose own setting is 0.
    #[config(default = 65536, flag = "bpf-lb-map-max")]
    pub map_max: u32,
    /// Entries of the service maps.
    #[config(default = 0, flag = "bpf-lb-service-map-max", hidden)]
    pub services: u32,
    /// Entries of the backend maps.
    #[config(default = 0, flag = "bpf-lb-service-backend-map-max", hidden)]
    pub backends: u32,
    /// Entries of the reverse NAT maps.
    #[config(default = 0, flag = "bpf-lb-rev-nat-map-max", hidden)]
    pub reverse_nat: u32,
    /// Entries of the affinity maps.
    #[config(default = 0, flag = "bpf-lb-affinity-map-max", hidden)]
    pub affinity: u32,
    /// Entries of the source range maps.
    #[config(default = 0, flag = "bpf-lb-source-range-map-max", hidden)]
    pub source_range: u32,
    /// Entries of the Maglev maps.
    #[config(default = 0, flag = "bpf-lb-maglev-map-max", hidden)]
    pub maglev: u32,
    /// Entries of the maps from sockets to services; 0 chooses by the machine's memory.
    #[config(default = 0, flag = "bpf-sock-rev-map-max")]
    pub reverse_sk: u32,
    /// Takes the memory of hash maps when they are made.
    #[config(default = false, flag = "preallocate-bpf-maps")]
    pub preallocate: bool,
}

impl SettingsConfig {
    fn check(&self, faults: &mut Faults) {
        if !self.ipv4 && !self.ipv6 {
            faults.add(
                "enable-ipv4",
                "and --enable-ipv6 are both off: one address family is needed",
            );
        }
        if self.map_max == 0 {
            faults.add("bpf-lb-map-max", "must be larger than 0");
        }
        if self.reverse_sk != 0 && !(1024..=MAX_REVERSE_SK).contains(&self.reverse_sk) {
            faults.add("bpf-sock-rev-map-max", "must be 0, or from 1024 to 16777216");
        }
    }

    /// Sizes of the maps on a machine with `memory` bytes and `cpus` possible CPUs.
    pub fn sizes(&self, shared: &SharedConfig, memory: u64, cpus: u32) -> LbMapSizes {
        let or_max = |own: u32| if own == 0 { self.map_max } else { own };
        let mut sizes = LbMapSizes::uniform(if self.map_max == 0 {
            DEFAULT_LB_MAP_MAX
        } else {
            self.map_max
        });
        sizes.services = or_max(self.services);
        sizes.backends = or_max(self.backends);
        sizes.reverse_nat = or_max(self.reverse_nat);
        sizes.affinity = or_max(self.affinity);
        sizes.source_range = or_max(self.source_range);
        sizes.maglev = or_max(self.maglev);
        sizes.reverse_sk = if self.reverse_sk == 0 {
            shared.reverse_sk(memory)
        } else {
            self.reverse_sk
        };
        sizes.preallocate = self.preallocate;
        shared.distribute(sizes, cpus)
    }
}

/// Shared settings that are declared here whoever gives the others.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = SharedConfig::check)]
pub struct SharedConfig {
    /// Answers calls to services without backends with an error.
    #[config(default = true, flag = "enable-no-service-endpoints-routable")]
    pub reject_no_endpoints: bool,
    /// Part of the machine's memory for maps that grow with connections.
    #[config(default = 0.0025, flag = "bpf-map-dynamic-size-ratio")]
    pub dynamic_ratio: f64,
    /// Keeps an LRU list for each CPU.
    #[config(default = false, flag = "bpf-distributed-lru")]
    pub distributed_lru: bool,
}

impl SharedConfig {
    fn check(&self, faults: &mut Faults) {
        if !(0.0..=1.0).contains(&self.dynamic_ratio) {
            faults.add("bpf-map-dynamic-size-ratio", "must be from 0 to 1");
        }
        if self.distributed_lru && self.dynamic_ratio <= 0.0 {
            faults.add(
                "bpf-distributed-lru",
                "needs bpf-map-dynamic-size-ratio larger than 0",
            );
        }
    }

    /// Entries of the maps from sockets to services on a machine with `memory` bytes.
    pub fn reverse_sk(&self, memory: u64) -> u32 {
        if self.dynamic_ratio > 0.0 {
            dynamic_reverse_sk(memory, self.dynamic_ratio)
        } else {
            DEFAULT_REVERSE_SK
        }
    }

    /// The same sizes, with LRU maps rounded up so that every one of `cpus` gets its share.
    pub fn distribute(&self, sizes: LbMapSizes, cpus: u32) -> LbMapSizes {
        if !self.distributed_lru {
            return sizes;
        }
        LbMapSizes {
            affinity: round_to_cpus(sizes.affinity, cpus),
            reverse_sk: round_to_cpus(sizes.reverse_sk, cpus),
            distributed_lru: true,
            ..sizes
        }
    }
}

/// Declares the settings that load balancing shares, and gives [`LbSettings`]. For hives without another
/// source of them.
pub fn settings_cell() -> Cell {
    Cell::module("lb-settings", "Settings shared by load balancing")
        .config::<SettingsConfig>()
        .config::<SharedConfig>()
        .provide(settings)
}

fn settings(config: Cfg<SettingsConfig>, shared: Cfg<SharedConfig>) -> LbSettings {
    LbSettings {
        kube_proxy_replacement: config.kube_proxy_replacement,
        ipv4: config.ipv4,
        ipv6: config.ipv6,
        node_port_range: config.node_port_range,
        reject_no_endpoints: shared.reject_no_endpoints,
        local_redirect: config.local_redirect,
        sizes: config.sizes(&shared, memory(), possible_cpus()),
    }
}

/// Bytes of the machine's memory; 0, which makes the smallest maps, if unknown.
pub(crate) fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes: Option<u64> = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .trim()
            .strip_suffix(" kB")?
            .parse()
            .ok()
    });
    kibibytes.unwrap_or(0) * 1024
}
