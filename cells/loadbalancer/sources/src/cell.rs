// SPDX-License-Identifier: Apache-2.0

//! Cells of the sources.
//! Requires: [`Writer`], and for Kubernetes a client, the pods of this node and optionally its labels. Provides: the
//! addresses of the node.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hive::{BoxError, Cell, Cfg, Jobs, Params};
use parking_lot::Mutex;
use skep_base_settings::{AddressFamilies, ForwardingConfig, KubeProxyReplacement, NodePorts};
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::tables::LocalPod;
use skep_k8s_types::selector::SelectorError;
use skep_loadbalancer_model::{Config, KUBERNETES_SERVICES, NodeAddresses, Source, Writer};
use skep_node_local::{LocalNodeStore, NodeAddress};
use statedb::{Db, Table};

use super::config::{FileConfig, KubernetesConfig};
use super::document::Format;
use super::file::{FileSource, FileState};
use super::k8s::ApiSource;
use super::metrics::{SourceMetrics, supply_metrics};
use super::node::{LocalAddresses, NodeWatcher};
use super::pods::HostPorts;
use super::podsource::PodSource;
use super::reflector::ServiceReflector;
use crate::convert::Rules;

/// All sources: the node, Kubernetes, if there is a client that is enabled, and the state file, if one is named.
pub fn cell() -> Cell {
    Cell::group([
        node_cell(),
        Cell::module("loadbalancer-reflectors", "Sources of services")
            .with(k8s())
            .with(file()),
    ])
}

/// Name, zone and addresses of this node. (Its health is reported below the name of Cilium's module.)
pub fn node_cell() -> Cell {
    Cell::module(
        "loadbalancer-writer",
        "Facts of the node that decide about services",
    )
    .provide(addresses)
    .run(watch_node)
}

// Read by the writer.
fn addresses(node: Option<LocalNodeStore>, table: Option<Table<NodeAddress>>) -> Arc<dyn NodeAddresses> {
    Arc::new(LocalAddresses::new(node, table))
}

fn watch_node(
    writer: Writer,
    addresses: Option<Table<NodeAddress>>,
    node: Option<LocalNodeStore>,
    config: Cfg<Config>,
    jobs: Jobs,
) -> Result<(), BoxError> {
    NodeWatcher::new(writer, addresses, node)?.spawn(&jobs, config.topology)?;
    Ok(())
}

fn k8s() -> Cell {
    Cell::module("k8s-reflector", "Services of Kubernetes")
        .config::<KubernetesConfig>()
        .provide(supply_metrics)
        .run(start_services)
        .run(start_pods)
}

fn file() -> Cell {
    Cell::module("file-reflector", "Services of a state file")
        .config::<FileConfig>()
        .run(start_file)
}

/// The proxy name makes no selector.
#[derive(Debug, thiserror::Error)]
#[error("k8s-service-proxy-name")]
struct ProxyName(#[source] SelectorError);

/// What conversion depends on.
#[derive(Params)]
struct RuleParams {
    forwarding: Cfg<ForwardingConfig>,
    families: Cfg<AddressFamilies>,
    node_ports: Cfg<NodePorts>,
    replacement: Cfg<KubeProxyReplacement>,
}

impl RuleParams {
    fn rules(&self, source: Source) -> Rules {
        Rules {
            source,
            ipv4: self.families.ipv4,
            ipv6: self.families.ipv6,
            replaces_kube_proxy: self.replacement.enabled,
            forwarding_mode_annotation: self.forwarding.mode_annotation,
            node_ports: self.node_ports.range,
            // Needs Linux 5.14.
            loopback_host_ports: skep_base_net::netns::cookie().is_ok(),
        }
    }
}

#[derive(Params)]
struct ServiceParams {
    config: Cfg<KubernetesConfig>,
    writer: Writer,
    client: Option<Arc<dyn Client>>,
    db: Db,
    node: Option<LocalNodeStore>,
    metrics: Arc<SourceMetrics>,
}

fn start_services(rules: RuleParams, params: ServiceParams, jobs: Jobs) -> Result<(), BoxError> {
    let ServiceParams {
        config,
        writer,
        client,
        db,
        node,
        metrics,
    } = params;
    let Some(client) = client.filter(|client| client.is_enabled()) else {
        return Ok(());
    };
    let source = ApiSource {
        services: Arc::new(Api::all(client.clone()).labels(config.services().map_err(ProxyName)?)),
        slices: Arc::new(Api::all(client).labels(config.slices().map_err(ProxyName)?)),
        db,
        frontends: writer.frontends(),
        node,
        wait: config.wait_time,
        services_done: writer.register_initializer(KUBERNETES_SERVICES)?,
        slices_done: writer.register_initializer("k8s-endpoints")?,
        reflector: Mutex::new(
            ServiceReflector::new(writer, rules.rules(Source::Kubernetes)).measured(metrics),
        ),
        has_run: AtomicBool::new(false),
    };
    Ok(jobs.keep("reflect-services-endpoints", source, ApiSource::run)?)
}

fn start_pods(
    rules: RuleParams,
    writer: Writer,
    client: Option<Arc<dyn Client>>,
    pods: Option<Table<LocalPod>>,
    db: Db,
    jobs: Jobs,
) -> Result<(), BoxError> {
    let (Some(pods), true) = (pods, client.is_some_and(|client| client.is_enabled())) else {
        return Ok(());
    };
    let source = PodSource {
        db,
        pods,
        done: writer.register_initializer("k8s-pods")?,
        frontends: writer.frontends(),
        ports: Mutex::new(HostPorts::new(writer, rules.rules(Source::Kubernetes))),
    };
    Ok(jobs.keep("reflect-pods", source, PodSource::run)?)
}

fn start_file(
    rules: RuleParams,
    config: Cfg<FileConfig>,
    writer: Writer,
    jobs: Jobs,
) -> Result<(), BoxError> {
    if !config.is_enabled() {
        return Ok(());
    }
    let source = FileSource {
        path: config.state_file.clone(),
        format: Format::of(&config.state_file)?,
        settle: config.interval,
        initializer: writer.register_initializer("lb-state-file")?,
        writer,
        rules: rules.rules(Source::Api),
        state: Mutex::new(FileState::default()),
    };
    Ok(jobs.keep("sync", source, FileSource::follow)?)
}
