// SPDX-License-Identifier: Apache-2.0

//! Settings of names and of the DNS proxy.

use std::{path::PathBuf, time::Duration};

use hive::config::Faults;

/// Names in policies, and the DNS proxy.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Run the DNS proxy. Without it, DNS queries that policies redirect to a proxy are dropped.
    #[config(default = true)]
    pub enable_l7_proxy: bool,
    /// First port of redirects to L7 proxies, in the status: the DNS proxy has a port of its own.
    #[config(default = 10000, flag = "proxy-portrange-min")]
    pub port_min: u16,
    /// Last port of redirects to L7 proxies, in the status.
    #[config(default = 20000, flag = "proxy-portrange-max")]
    pub port_max: u16,
    /// Envoy runs outside of the agent, in the status: neither uses one.
    #[config(default = false, flag = "external-envoy-proxy")]
    pub external_envoy: bool,
    /// Minimum TTL of DNS answers in caches, in seconds.
    #[config(default = 0, flag = "tofqdns-min-ttl")]
    pub min_ttl: u32,
    /// Maximum number of addresses of a name that an endpoint's cache keeps.
    #[config(default = 1000, flag = "tofqdns-endpoint-max-ip-per-hostname")]
    pub max_ips_per_name: usize,
    /// Maximum number of expired addresses of an endpoint that connections may keep.
    #[config(default = 10000, flag = "tofqdns-max-deferred-connection-deletes")]
    pub max_deferred_deletes: usize,
    /// Time that idle connections keep expired addresses.
    #[config(default = "0s", flag = "tofqdns-idle-connection-grace-period")]
    pub idle_grace: Duration,
    /// File with DNS answers in the form of `DNSHistory`, loaded at start.
    #[config(default = "", flag = "tofqdns-pre-cache")]
    pub pre_cache: PathBuf,
    /// Port of the DNS proxy; 0: the one of the last run, or any.
    #[config(default = 0, flag = "tofqdns-proxy-port")]
    pub proxy_port: u16,
    /// Maximum delay of a DNS answer until policies allow its addresses.
    #[config(default = "100ms", flag = "tofqdns-proxy-response-max-delay")]
    pub response_max_delay: Duration,
    /// Response code of DNS queries that policies deny: `refused` or `nameError`.
    #[config(default = "refused", flag = "tofqdns-dns-reject-response-code")]
    pub reject_code: String,
    /// Compress DNS answers that are larger than the client accepts.
    #[config(default = true, flag = "tofqdns-enable-dns-compression")]
    pub compression: bool,
    /// Allocate the identity of an FQDN selector before the first answer.
    #[config(default = true, flag = "tofqdns-preallocate-identities")]
    pub preallocate_identities: bool,
    /// Maximum number of servers of a DNS rule in the state file of an endpoint.
    #[config(default = 1000, flag = "dns-max-ips-per-restored-rule")]
    pub max_ips_per_rule: usize,
    /// Maximum number of DNS queries in flight; 0: no limit.
    #[config(default = 0, flag = "dnsproxy-concurrency-limit")]
    pub concurrency_limit: usize,
    /// Time that a DNS query waits for others at the limit.
    #[config(default = "0s", flag = "dnsproxy-concurrency-processing-grace-period")]
    pub concurrency_grace: Duration,
    /// Number of locks that serialize DNS answers by name.
    #[config(default = 131, flag = "dnsproxy-lock-count")]
    pub lock_count: usize,
    /// Time of waiting for such a lock that is worth a warning.
    #[config(default = "500ms", flag = "dnsproxy-lock-timeout")]
    pub lock_timeout: Duration,
    /// Seconds that TCP connections to DNS servers linger; negative: not at all.
    #[config(default = 10, flag = "dnsproxy-socket-linger-timeout")]
    pub linger: i64,
    /// DNS servers in the cluster see the address and the port of the pod.
    #[config(default = false, flag = "dnsproxy-enable-transparent-mode")]
    pub transparent_mode: bool,
    /// Accept the transparent mode with IPsec. No effect: there is no IPsec.
    #[config(
        default = false,
        flag = "dnsproxy-insecure-skip-transparent-mode-check",
        hidden
    )]
    pub skip_transparent_mode_check: bool,
    /// Maximum number of compiled expressions of names; 0: 16,000,000.
    #[config(default = 1024, flag = "fqdn-regex-compile-lru-size")]
    pub regex_cache_size: usize,
    /// Maximum age of `proxy_ports_state.json`, in minutes: an older one is ignored.
    #[config(default = 15, flag = "restored-proxy-ports-age-limit")]
    pub port_age_limit: u64,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if !matches!(self.reject_code.as_str(), "refused" | "nameError") {
            faults.add("tofqdns-dns-reject-response-code", "must be refused or nameError");
        }
        if self.lock_count == 0 {
            faults.add("dnsproxy-lock-count", "must be at least 1");
        }
    }

    pub(crate) fn regex_cache(&self) -> usize {
        match self.regex_cache_size {
            0 => 16_000_000,
            size => size,
        }
    }
}
