// SPDX-License-Identifier: Apache-2.0

//! Cell: endpoints of the node, in a table, in files, in the maps and at their interfaces.
//! Requires: the maps, [`PolicyMaps`], `Arc<dyn EndpointHooks>`, the ipcache, the addresses of the node; optionally `Arc<dyn EndpointFlows>`,
//! `Arc<dyn Interfaces>`, `Arc<dyn EndpointRoutes>`, the local node; for identities an [`Allocator`], for labels tables `k8s-pods` and
//! `k8s-namespaces`, for addresses an [`Ipam`].
//! Optionally [`Names`], which their files have.
//! Provides: `Arc<dyn ProxyEndpoints>`, [`Endpoints`], [`MetadataResolver`](crate::MetadataResolver), `Arc<dyn AddressUsers>`, read-only table `endpoints`.

use std::{sync::Arc, time::Duration};

use hive::{Backoff, Cell, Cfg, Job, JobCtx, Jobs, Params, Retry, SpawnError};
use skep_base_metrics::workqueue::{WorkqueueMetrics, WorkqueueRecorder};
use skep_base_settings::{AttachConfig, MonitorConfig, PacketConfig, StateConfig};
use skep_datapath_hooks::{EndpointFlows, EndpointHooks, EventSwitch};
use skep_endpoint_ipam::Ipam;
use skep_identity_allocator::Allocator;
use skep_identity_labels::LabelConfig;
use skep_ipcache::{Publisher, Writer};
use skep_node_local::{LocalNode, NodeAddress};
use skep_policy_fqdn::Names;
use skep_policy_maps::PolicyMaps;
use statedb::{Db, RwTable, Table, reconciler::Reconciler};

use crate::{
    Config, Endpoint, EndpointMaps, EndpointMetrics, EndpointOps, EndpointOptions, EndpointRoutes,
    EndpointRouting, Endpoints, Interfaces, KernelInterfaces, KernelRoutes, MetadataResolver,
    addresses::{self, Takeover},
    claims,
    collect::{Collector, Removal},
    endpoint,
    events::EndpointEvents,
    host::HostAddresses,
    host_endpoint::HostEndpoint,
    identities::{self, IdentityReconciler},
    ingress_endpoint::IngressEndpoint,
    maps, metadata, names, policies,
    queue::DeletionQueue,
    reconciler,
    restore::Restore,
    state_dir::StateDir,
    unreachable::UnreachableRoutes,
};

#[must_use]
pub fn cell() -> Cell {
    Cell::module("endpoint", "Endpoints of this node")
        .config::<Config>()
        .config::<LabelConfig>()
        .provide_private(endpoint::new_table)
        .provide_private(state_dir)
        .provide(skep_base_metrics::provided::<EndpointMetrics>)
        .provide(endpoint::read_only)
        .provide(writer)
        .provide(metadata::resolver)
        .provide(addresses::users)
        .provide(names::by_address)
        .provide(maps::handles)
        .provide(maps::owner)
        .run(start)
        .library() // other cells create endpoints and read the table
}

fn state_dir(config: Cfg<StateConfig>, names: Option<Names>) -> Arc<StateDir> {
    Arc::new(StateDir::new(&config.state_dir).with_names(names))
}

fn writer(
    db: Db,
    table: RwTable<Endpoint>,
    files: Arc<StateDir>,
    policies: PolicyMaps,
    config: Cfg<Config>,
    packets: Option<Cfg<PacketConfig>>,
    monitor: Option<Cfg<MonitorConfig>>,
) -> Endpoints {
    let options = EndpointOptions::of_node(&config, packets.as_deref(), monitor.as_deref());
    let has_firewall = packets.is_some_and(|packets| packets.host_firewall);
    Endpoints::new(db, table, (*files).clone(), policies)
        .with_options(options, config.keep_config)
        .with_host_firewall(has_firewall)
}

/// Why the cell does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// A source is registered twice.
    #[error(transparent)]
    Table(#[from] statedb::Error),
    /// The module has stopped.
    #[error(transparent)]
    Job(#[from] SpawnError),
    #[error("node-labels")]
    Labels(#[from] skep_identity_labels::PatternError),
}

#[derive(Params)]
pub(crate) struct StartParams {
    db: Db,
    table: RwTable<Endpoint>,
    endpoints: Endpoints,
    config: Cfg<Config>,
    state: Cfg<StateConfig>,
    routing: Cfg<AttachConfig>,
    files: Arc<StateDir>,
    maps: Arc<EndpointMaps>,
    hooks: Arc<dyn EndpointHooks>,
    flows: Option<Arc<dyn EndpointFlows>>,
    events: Option<Arc<EventSwitch>>,
    interfaces: Option<Arc<dyn Interfaces>>,
    routes: Option<Arc<dyn EndpointRoutes>>,
    ipcache: Writer,
    labels: Cfg<skep_ipcache::Config>,
    addresses: Table<NodeAddress>,
    node: Option<Table<LocalNode>>,
    metrics: Arc<EndpointMetrics>,
    metadata: MetadataResolver,
    allocator: Option<Allocator>,
    ipam: Option<Ipam>,
    queues: Option<Arc<WorkqueueMetrics>>,
    jobs: Jobs,
}

/// Time between two looks for queued deletions.
const QUEUE_INTERVAL: Duration = Duration::from_secs(60);

fn start(params: StartParams) -> Result<(), StartError> {
    let StartParams {
        db,
        table,
        endpoints,
        config,
        state,
        routing,
        files,
        maps,
        hooks,
        flows,
        events,
        interfaces,
        routes,
        ipcache,
        labels,
        addresses,
        node,
        metrics,
        metadata,
        allocator,
        ipam,
        queues,
        jobs,
    } = params;
    let routing = EndpointRouting::new(&routing);
    let routes = routes.unwrap_or_else(|| Arc::new(KernelRoutes));
    let unreachable = UnreachableRoutes {
        is_on: routing.unreachable,
        routes: routes.clone(),
        db: db.clone(),
        node: node.clone(),
    };
    let interfaces = interfaces.unwrap_or_else(|| Arc::new(KernelInterfaces));
    let host_endpoint = Arc::new(HostEndpoint {
        endpoints: endpoints.clone(),
        interfaces: interfaces.clone(),
        node: node.clone(),
        db: db.clone(),
        labels: labels.host_label_filter()?,
    });
    let job = Job::once("keep-host-endpoint", move |cx: JobCtx| {
        let host = host_endpoint.clone();
        async move { cx.until_cancelled(host.follow(&cx)).await.unwrap_or(Ok(())) }
    });
    jobs.spawn(job.retry(retry()))?;
    if let Some(node) = node {
        let ingress = IngressEndpoint {
            endpoints: endpoints.clone(),
            node,
            ipam: ipam.clone(),
        };
        jobs.keep("keep-ingress-endpoint", ingress, IngressEndpoint::follow)?;
    }

    let restore = Arc::new(Restore {
        endpoints: endpoints.clone(),
        files: (*files).clone(),
        interfaces: interfaces.clone(),
        guard: Arc::new(endpoints.await_restore()?),
    });
    let job = Job::once("restore", move |cx: JobCtx| {
        let restore = restore.clone();
        async move { restore.run(&cx).await }
    });
    jobs.spawn(job.retry(retry()))?;

    if let Some(of_endpoints) = files.dns_names().cloned() {
        let files = files.clone();
        jobs.spawn(Job::once("save-names", move |cx: JobCtx| {
            names::save((*files).clone(), of_endpoints.clone(), cx)
        }))?;
    }

    let queue = DeletionQueue::new(&state.state_dir);
    let takeover = Arc::new(Takeover {
        endpoints: endpoints.clone(),
        metadata: metadata.clone(),
        ipam: ipam.clone(),
        queue: queue.clone(),
    });
    jobs.spawn(Job::once("take-over", move |cx: JobCtx| {
        let takeover = takeover.clone();
        async move { cx.until_cancelled(takeover.run(&cx)).await.unwrap_or(Ok(())) }
    }))?;
    let of_queue = endpoints.clone();
    jobs.spawn(Job::every(QUEUE_INTERVAL, "deletion-queue", move |_: JobCtx| {
        let (queue, endpoints) = (queue.clone(), of_queue.clone());
        async move {
            // The first look is part of taking over.
            if endpoints.is_accepting() {
                queue.replay(&endpoints).await;
            }
            Ok::<_, std::convert::Infallible>(())
        }
    }))?;
    if let Some(allocator) = allocator {
        let reconciler = IdentityReconciler {
            endpoints: endpoints.clone(),
            metadata,
            allocator,
            grace: config.identity_change_grace_period,
        };
        let queue = WorkqueueRecorder::new(queues.as_ref(), "endpoint-identity");
        jobs.spawn(skep_k8s_controller::job("allocate-identities", move || {
            identities::controller(reconciler.clone(), queue.clone())
        }))?;
    }

    let of_policies = endpoints.policies().clone();
    let ops = EndpointOps::new(
        maps.clone(),
        of_policies,
        hooks.clone(),
        (*files).clone(),
        interfaces.clone(),
        routing,
        routes,
    );
    let reconciler = Arc::new(Reconciler::new(
        &db,
        table,
        Endpoint::STATUS,
        ops,
        reconciler::config(),
    ));
    let shared = reconciler.clone();
    jobs.spawn(Job::once("reconcile", move |cx: JobCtx| {
        let (reconciler, hooks) = (shared.clone(), hooks.clone());
        async move {
            // Until the programs are loaded nothing can be attached: it would only be an error of each endpoint.
            cx.health.starting("Waiting for the packet programs");
            if cx.until_cancelled(hooks.loaded()).await.is_some() {
                reconciler.run(&cx.token, &cx.health).await;
            }
        }
    }))?;
    jobs.spawn(Job::once("refresh", move |cx: JobCtx| {
        let reconciler = reconciler.clone();
        async move { reconciler.refresh(&cx.token, &cx.health).await }
    }))?;

    if let Some(switch) = events {
        let events = EndpointEvents {
            endpoints: endpoints.clone(),
            switch,
        };
        jobs.keep("follow-event-options", events, EndpointEvents::follow)?;
    }
    jobs.keep("follow-policies", endpoints.clone(), policies::follow)?;

    let publisher = Arc::new(Publisher {
        guard: ipcache.register_source("local-endpoints")?,
        ipcache,
        kind: claims::KIND,
    });
    let reader = endpoints.clone();
    jobs.spawn(Job::once("claim-addresses", move |cx: JobCtx| {
        let (publisher, endpoints) = (publisher.clone(), reader.clone());
        async move {
            let work = claims::follow(&publisher, &endpoints, &cx);
            cx.until_cancelled(work).await.unwrap_or(Ok(()))
        }
    }))?;

    let host = Arc::new(HostAddresses { db, addresses, maps });
    let job = Job::once("write-node-addresses", move |cx: JobCtx| {
        let host = host.clone();
        async move { cx.until_cancelled(host.follow(&cx)).await.unwrap_or(Ok(())) }
    });
    jobs.spawn(job.retry(retry()))?;

    let of_node = unreachable.clone();
    let job = Job::once("remove-unreachable-routes", move |cx: JobCtx| {
        let routes = of_node.clone();
        async move { cx.until_cancelled(routes.follow(&cx)).await.unwrap_or(Ok(())) }
    });
    jobs.spawn(job.retry(retry()))?;
    let removal = Arc::new(Removal {
        endpoints: endpoints.clone(),
        flows,
        ipam,
        unreachable,
        metrics,
    });
    jobs.spawn(Job::once("remove-disconnected", move |cx: JobCtx| {
        let removal = removal.clone();
        async move { cx.until_cancelled(removal.follow(&cx)).await.unwrap_or(Ok(())) }
    }))?;
    if config.endpoint_gc_interval > Duration::ZERO {
        let collector = Arc::new(Collector::new(endpoints, interfaces));
        jobs.spawn(Job::every(
            config.endpoint_gc_interval,
            "endpoint-gc",
            move |_: JobCtx| {
                let collector = collector.clone();
                async move { collector.look() }
            },
        ))?;
    }
    Ok(())
}

fn retry() -> Retry {
    Retry::forever().backoff(Backoff::exponential(
        Duration::from_millis(100),
        Duration::from_secs(10),
    ))
}
