// SPDX-License-Identifier: Apache-2.0

//! Cell: names in policies, and the DNS proxy.
//! Requires: [`Repository`], the ipcache, table `policy-maps`; for the proxy `Arc<dyn ProxyEndpoints>`; optionally the maps and
//! `Arc<dyn FlowPasses>`, without which addresses are kept for as long as answers say. Provides: [`Names`].

use std::{sync::Arc, time::Duration};

use hickory_proto::op::ResponseCode;
use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::{AddressFamilies, AttachConfig, StateConfig};
use skep_datapath_hooks::FlowPasses;
use skep_datapath_maps::Maps;
use skep_datapath_monitor::Monitor;
use skep_identity_cache::{LocalIdentities, SecurityIdentity};
use skep_ipcache::Writer;
use skep_policy_maps::EndpointPolicy;
use skep_policy_repository::Repository;
use statedb::{Db, Table};
use tokio::sync::Semaphore;

use crate::{
    Config, Names, ProxyEndpoints,
    access_log::AccessLog,
    connections::Connections,
    jobs::{self, Passes, Removed, Selectors},
    metrics::{NameMetrics, ProxyMetrics, QueryMetrics},
    proxy::{DnsProxy, Upstream},
    server::ProxyServer,
};

/// Time between two garbage collections.
const COLLECT: Duration = Duration::from_secs(60);
/// Name of the source of claims.
const SOURCE: &str = "fqdn";

/// Names in policies, and the DNS proxy.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("fqdn", "DNS names in policies and the DNS proxy")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<NameMetrics>)
        .provide(skep_base_metrics::provided::<ProxyMetrics>)
        .provide(skep_base_metrics::provided::<QueryMetrics>)
        .provide(names)
        .run(start)
}

fn names(
    config: Cfg<Config>,
    families: Cfg<AddressFamilies>,
    ipcache: Writer,
    identities: Option<LocalIdentities>,
    repository: Repository,
) -> Names {
    Names::new((*config).clone(), &families, ipcache, identities, repository)
}

/// Why the cell does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Table(#[from] statedb::Error),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    state: Cfg<StateConfig>,
    families: Cfg<AddressFamilies>,
    attach: Cfg<AttachConfig>,
    names: Names,
    repository: Repository,
    ipcache: Writer,
    policies: Table<EndpointPolicy>,
    endpoints: Option<Arc<dyn ProxyEndpoints>>,
    maps: Option<Arc<Maps>>,
    passes: Option<Arc<dyn FlowPasses>>,
    monitor: Option<Arc<Monitor>>,
    identities: Table<SecurityIdentity>,
    name_metrics: Arc<NameMetrics>,
    proxy_metrics: Arc<ProxyMetrics>,
    query_metrics: Arc<QueryMetrics>,
    db: Db,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), StartError> {
    let StartParams {
        config,
        state,
        families,
        attach,
        names,
        repository,
        ipcache,
        policies,
        endpoints,
        maps,
        passes,
        monitor,
        identities,
        name_metrics,
        proxy_metrics,
        query_metrics,
        db,
        jobs,
    } = params;
    names.register();
    let selectors = Selectors {
        names: names.clone(),
        repository: repository.clone(),
        guard: ipcache.register_source(SOURCE)?,
        ipcache: ipcache.clone(),
        names_metrics: name_metrics.clone(),
        proxy_metrics: proxy_metrics.clone(),
    };
    jobs.keep("follow-selectors", Arc::new(selectors), Selectors::follow)?;
    let removed = Removed {
        names: names.clone(),
        db: db.clone(),
        endpoints: policies,
    };
    jobs.keep("follow-endpoints", Arc::new(removed), Removed::follow)?;
    let (of_job, metrics) = (names.clone(), name_metrics.clone());
    jobs.spawn(Job::every(
        COLLECT,
        "dns-garbage-collector-job",
        move |cx: JobCtx| {
            let (names, metrics) = (of_job.clone(), metrics.clone());
            async move { tokio::task::spawn_blocking(move || jobs::collect(&names, &metrics, &cx)).await }
        },
    ))?;
    let Some(endpoints) = endpoints else {
        return Ok(());
    };
    if let (Some(maps), Some(passes)) = (maps, passes) {
        let passes = Passes {
            names: names.clone(),
            passes,
            connections: Arc::new(Connections {
                maps,
                endpoints: endpoints.clone(),
            }),
        };
        jobs.keep("follow-connections", Arc::new(passes), Passes::follow)?;
    }
    if !config.enable_l7_proxy {
        return Ok(());
    }
    // There, replies of servers to a pod do not meet a program that could assign them to the proxy.
    let is_transparent =
        config.transparent_mode && !attach.enable_endpoint_routes && !attach.enable_host_legacy_routing;
    let linger = u64::try_from(config.linger).ok().map(Duration::from_secs);
    let proxy = DnsProxy {
        endpoints,
        ipcache,
        is_dual_stack: families.ipv4 && families.ipv6,
        upstream: Upstream::new(is_transparent, linger),
        log: monitor.map(|monitor| AccessLog {
            monitor,
            identities,
            db,
        }),
        reject_code: match config.reject_code.as_str() {
            "nameError" => ResponseCode::NXDomain,
            _ => ResponseCode::Refused,
        },
        permits: (config.concurrency_limit > 0).then(|| Semaphore::new(config.concurrency_limit)),
        names,
        name_metrics,
        proxy_metrics,
        query_metrics,
    };
    let server = ProxyServer {
        proxy: Arc::new(proxy),
        repository,
        ipv4: families.ipv4,
        ipv6: families.ipv6,
        file: state.directory().join("proxy_ports_state.json"),
    };
    jobs.keep("dns-proxy", Arc::new(server), ProxyServer::run)?;
    Ok(())
}
