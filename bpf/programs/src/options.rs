// SPDX-License-Identifier: Apache-2.0

//! Options of the node: read-only globals of the programs, set before they are loaded.

use std::{sync::OnceLock, time::Duration};

use libbpf_rs::{ProgramType, libbpf_sys};

use super::{object::LoadError, skeleton::socketlb::types};

/// Which network namespace is the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostNetns {
    /// The one of the thread that loads the programs.
    #[default]
    Current,
    /// The one with this cookie.
    Cookie(u64),
}

/// Options of the node for all programs. Constant once loaded: the verifier removes code that they rule out. C twin:
/// `bpf/include/node/options.h`.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeOptions {
    /// The host's network namespace: its sockets reach services on loopback addresses and may not take
    /// the ports of services.
    pub host_netns: HostNetns,
    /// Translate IPv4, also in IPv6 sockets with mapped addresses.
    pub ipv4: bool,
    /// Translate IPv6.
    pub ipv6: bool,
    /// Serve NodePort and HostPort services on node and loopback addresses.
    pub nodeport: bool,
    /// First and last port of NodePort services.
    pub nodeport_range: (u16, u16),
    /// Translate only sockets of the host's network namespace.
    pub host_only: bool,
    /// Calls to services without backends always fail with EHOSTUNREACH; if false, only with the traffic
    /// policy Local, and others go out untranslated.
    pub reject_no_endpoints: bool,
    /// ExternalIP services are only translated for addresses of this node.
    pub external_ip_mitigation: bool,
    /// Heed the skip-LB maps for services of local redirect policies.
    pub local_redirect: bool,
    /// Sockets with the class id of the MKE host extension count as the host's.
    pub mke: bool,
    /// Send socket trace events.
    pub trace: bool,
    /// Monitor aggregation: 0 all events, 1 no reverse events, 3 only those of connect.
    pub trace_aggregation: u8,
    /// Least time between two events when aggregating.
    pub trace_interval: Duration,
    /// Rejected calls return the error that fits; `None`: if the kernel lets programs choose it (Linux 5.18).
    pub chooses_errors: Option<bool>,
    /// Affinity times are jiffies / 256 instead of seconds; the number is ticks a second.
    pub jiffies: Option<u32>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            host_netns: HostNetns::Current,
            ipv4: true,
            ipv6: true,
            nodeport: true,
            nodeport_range: (30_000, 32_767),
            host_only: false,
            reject_no_endpoints: true,
            external_ip_mitigation: true,
            local_redirect: false,
            mke: false,
            trace: true,
            trace_aggregation: 0,
            trace_interval: Duration::from_secs(5),
            chooses_errors: None,
            jiffies: None,
        }
    }
}

impl NodeOptions {
    pub(crate) fn fill(&self, object: &'static str, raw: &mut types::node_options) -> Result<(), LoadError> {
        raw.host_netns_cookie = match self.host_netns {
            HostNetns::Cookie(cookie) => cookie,
            HostNetns::Current => {
                skep_bpf_sys::netns::cookie().map_err(|source| LoadError::Probe { object, source })?
            }
        };
        raw.trace_interval = u64::try_from(self.trace_interval.as_nanos()).unwrap_or(u64::MAX);
        raw.kernel_hz = self.jiffies.unwrap_or(0);
        (raw.nodeport_min, raw.nodeport_max) = self.nodeport_range;
        raw.ipv4 = self.ipv4.into();
        raw.ipv6 = self.ipv6.into();
        raw.nodeport = self.nodeport.into();
        raw.host_only = self.host_only.into();
        raw.reject_no_endpoints = self.reject_no_endpoints.into();
        raw.external_ip_mitigation = self.external_ip_mitigation.into();
        raw.local_redirect = self.local_redirect.into();
        raw.mke = (self.mke && has_class_ids()).into();
        raw.trace = self.trace.into();
        raw.trace_aggregation = self.trace_aggregation;
        raw.clock_jiffies = self.jiffies.is_some().into();
        raw.has_set_retval = self.chooses_errors.unwrap_or_else(has_set_retval).into();
        Ok(())
    }
}

/// The kernel lets programs choose the error of a rejected call (Linux 5.18). Without it callers see EPERM.
pub fn has_set_retval() -> bool {
    static PROBED: OnceLock<bool> = OnceLock::new();
    *PROBED.get_or_init(|| has_helper(libbpf_sys::BPF_FUNC_set_retval))
}

/// The kernel gives sockets class ids by control group (`CONFIG_CGROUP_NET_CLASSID`).
fn has_class_ids() -> bool {
    static PROBED: OnceLock<bool> = OnceLock::new();
    *PROBED.get_or_init(|| has_helper(libbpf_sys::BPF_FUNC_get_cgroup_classid))
}

/// Programs at sockets' calls may call the helper of this number.
fn has_helper(number: u32) -> bool {
    // SAFETY: probes a helper by loading a two-instruction program; takes no pointers.
    let probed = unsafe {
        libbpf_sys::libbpf_probe_bpf_helper(ProgramType::CgroupSockAddr as u32, number, std::ptr::null())
    };
    probed == 1
}

/// The kernel can translate what `getpeername(2)` returns (Linux 5.8).
pub fn has_getpeername() -> bool {
    kernel_version().is_none_or(|version| version >= (5, 8))
}

fn kernel_version() -> Option<(u32, u32)> {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
