// SPDX-License-Identifier: Apache-2.0

//! The master entry of a frontend: flags, and what the datapath cannot do.

use skep_bpf_maps::lb::{ServiceFlags, ServiceValue};
use skep_loadbalancer_model::types::{Frontend, FrontendKind, L3n4Addr, SourceRangesPolicy, TrafficPolicy};

use super::super::ReconcileError;
use super::Ops;

impl Ops {
    pub(super) fn flags(&self, frontend: &Frontend, address: &L3n4Addr) -> ServiceFlags {
        let (service, settings) = (&frontend.service, &self.settings);
        let kind = frontend.effective_kind();
        let is_host_port = kind == FrontendKind::HostPort;
        let has_ranges = service
            .source_ranges
            .as_deref()
            .is_some_and(|ranges| !ranges.is_empty());
        // Packets for an embedded address were checked before they changed their family.
        let is_twin = address.is_ipv6() != frontend.address().is_ipv6();
        let checks_ranges = has_ranges
            && !is_twin
            && (settings.source_range_all_types
                || matches!(kind, FrontendKind::LoadBalancer | FrontendKind::ExternalIps));
        let is_routable =
            !address.is_unspecified() && (kind != FrontendKind::ClusterIp || settings.external_cluster_ip);
        let is_local = |policy| policy == TrafficPolicy::Local;
        let denies = service.source_ranges_policy() == SourceRangesPolicy::Deny;
        let is_bypassed = if is_host_port {
            service.loopback_host_port
        } else {
            service.delegates_if_local()
        };
        kind_flag(kind)
            .with(ServiceFlags::EXT_LOCAL, is_local(service.ext_traffic_policy))
            .with(ServiceFlags::INT_LOCAL, is_local(service.int_traffic_policy))
            .with(ServiceFlags::TWO_SCOPES, service.has_two_scopes(kind))
            .with(ServiceFlags::AFFINITY, service.session_affinity)
            .with(ServiceFlags::ROUTABLE, is_routable)
            .with(ServiceFlags::SOURCE_RANGE, checks_ranges)
            .with(ServiceFlags::SOURCE_RANGE_DENY, checks_ranges && denies)
            .with(
                ServiceFlags::L7_LOAD_BALANCER,
                service.proxy_redirect(frontend.params.service_port).is_some(),
            )
            .with(ServiceFlags::LOOPBACK, is_bypassed)
            .with(
                ServiceFlags::NAT46X64,
                settings
                    .embedding
                    .is_some_and(|embedding| embedding.translates(frontend, address)),
            )
            .with(ServiceFlags::FORWARD_DSR, settings.forwards_dsr(frontend))
    }

    // The master entry without counts and id.
    pub(super) fn master(
        &self,
        frontend: &Frontend,
        flags: ServiceFlags,
    ) -> Result<ServiceValue, ReconcileError> {
        let service = &frontend.service;
        let value = ServiceValue::master(0, 0, 0, flags);
        if let Some(redirect) = service.proxy_redirect(frontend.params.service_port) {
            return Ok(value.with_l7_port(redirect.proxy_port));
        }
        let algorithm = if self.settings.algorithm_annotation {
            service.explicit_algorithm() as u8
        } else {
            0
        };
        let seconds = if service.session_affinity {
            service.session_affinity_timeout.as_secs()
        } else {
            0
        };
        let too_long = ReconcileError::AffinityTimeout(seconds);
        let seconds = u32::try_from(seconds).map_err(|_| too_long.clone())?;
        Ok(value
            .with_affinity_timeout(seconds)
            .ok_or(too_long)?
            .with_algorithm(algorithm))
    }
}

/// Refuses combinations of features that the datapath cannot serve.
pub(super) fn check_features(frontend: &Frontend) -> Result<(), ReconcileError> {
    let service = &frontend.service;
    if service.session_affinity && service.proxy_redirect(frontend.params.service_port).is_some() {
        return Err(ReconcileError::AffinityWithProxy);
    }
    let is_host_port = frontend.params.kind == FrontendKind::HostPort;
    if is_host_port && service.loopback_host_port && service.delegates_if_local() {
        return Err(ReconcileError::LoopbackWithDelegation);
    }
    Ok(())
}

/// Flag of a frontend kind.
pub(super) fn kind_flag(kind: FrontendKind) -> ServiceFlags {
    match kind {
        FrontendKind::ClusterIp => ServiceFlags::empty(),
        FrontendKind::NodePort => ServiceFlags::NODE_PORT,
        FrontendKind::ExternalIps => ServiceFlags::EXTERNAL_IP,
        FrontendKind::LoadBalancer => ServiceFlags::LOAD_BALANCER,
        FrontendKind::HostPort => ServiceFlags::HOST_PORT,
        FrontendKind::LocalRedirect => ServiceFlags::LOCAL_REDIRECT,
    }
}
