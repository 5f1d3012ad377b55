// SPDX-License-Identifier: Apache-2.0

//! Cell: sends traffic for an address or a service to pods of this node.
//! Requires: the load balancer's [`Writer`], a Kubernetes client, the pods of this node, the maps. Provides: tables
//! `localredirectpolicies` and `desired-skiplbmap`, [`NetnsCookies`], command `skiplbmap`.

use std::sync::Arc;

use hive::{BoxError, Cell, Cfg, Jobs, Params};
use ipnet::IpNet;
use parking_lot::Mutex;
use skep_base_settings::AddressFamilies;
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::Reflector;
use skep_k8s_reflectors::tables::LocalPod;
use skep_k8s_types::slim::CiliumLocalRedirectPolicy;
use skep_loadbalancer_model::Writer;
use statedb::{Db, RwTable, Table};

use crate::config::Config;
use crate::controller::{Controller, Rejected, State};
use crate::metrics::{PolicyMetrics, supply_metrics};
use crate::sync::Sync;
use crate::{NetnsCookies, Policy, SkipMaps, SkipRedirects, command, skipmap, table};

/// Serves local redirect policies. The skip maps are where [`Maps`](skep_datapath_maps::Maps) has them.
pub fn cell() -> Cell {
    Cell::module(
        "local-redirect-policies",
        "Redirects traffic to pods of this node",
    )
    .config::<Config>()
    .when(|config: &Config| config.enabled)
    .provide_private(table::policies)
    .provide_private(table::skips)
    .provide(supply_metrics)
    .provide(statedb::read_only::<Policy>)
    .provide(statedb::read_only::<SkipRedirects>)
    .provide(cookies)
    .provide(skipmap::handles)
    .provide(can_skip)
    .provide(command::skiplbmap)
    .run(start)
}

/// Whether the kernel has cookies of network namespaces, by which programs recognize the backends of a policy.
#[derive(Debug, Clone, Copy, hive::Value)]
struct CanSkip(bool);

fn can_skip() -> CanSkip {
    // Needs Linux 5.14.
    CanSkip(skep_base_net::netns::cookie().is_ok())
}

fn cookies(db: Db, skips: RwTable<SkipRedirects>) -> NetnsCookies {
    NetnsCookies::new(db, skips)
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    families: Cfg<AddressFamilies>,
    db: Db,
    writer: Writer,
    client: Arc<dyn Client>,
    pods: Table<LocalPod>,
    policies: RwTable<Policy>,
    skips: RwTable<SkipRedirects>,
    maps: Arc<SkipMaps>,
    can_skip: CanSkip,
    cookies: NetnsCookies,
    metrics: Arc<PolicyMetrics>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), BoxError> {
    let StartParams {
        config,
        families,
        db,
        writer,
        client,
        pods,
        policies,
        skips,
        maps,
        can_skip,
        cookies,
        metrics,
        jobs,
    } = params;
    if !client.is_enabled() {
        return Ok(());
    }
    let rejected = Rejected::default();
    reflect(&config, &client, &policies, &rejected).register(&jobs, &db)?;
    let controller = Arc::new(Controller {
        db: db.clone(),
        initializer: writer.register_initializer("lrp-controller")?,
        writer,
        policies: policies.reader(),
        pods: pods.clone(),
        skips: skips.clone(),
        families: (families.ipv4, families.ipv6),
        can_skip: can_skip.0,
        rejected,
        cookies: cookies.sources(),
        metrics,
        state: Mutex::new(State::default()),
    });
    let complete = {
        let controller = controller.clone();
        Box::new(move |_: &_| controller.is_complete() && cookies.are_complete())
    };
    jobs.keep("controller", controller, Controller::run)?;
    let sync = Sync {
        db,
        table: skips,
        maps,
        complete,
    };
    Ok(jobs.keep("skip-maps", sync, Sync::run)?)
}

/// Policies into their table; a wrong one is as good as none.
fn reflect(
    config: &Config,
    client: &Arc<dyn Client>,
    policies: &RwTable<Policy>,
    rejected: &Rejected,
) -> Reflector<CiliumLocalRedirectPolicy, Policy> {
    let allowed: Vec<IpNet> = config.address_networks.clone();
    let source = Arc::new(Api::<CiliumLocalRedirectPolicy>::all(client.clone()));
    let rejected = rejected.clone();
    let transform =
        move |resource: &Arc<CiliumLocalRedirectPolicy>, is_gone: bool, rows: &mut Vec<Policy>| {
            let name = format!("{}/{}", resource.metadata.namespace, resource.metadata.name);
            match Policy::new(resource, &allowed) {
                _ if is_gone => rejected.clear(&name),
                Ok(policy) => {
                    rejected.clear(&name);
                    rows.push(policy);
                }
                Err(error) => {
                    tracing::warn!(
                        policy = name,
                        error = hive::error_chain(&error),
                        "Ignoring local redirect policy"
                    );
                    rejected.set(name, &error);
                }
            }
            Ok(())
        };
    Reflector::many("lrps", policies.clone(), source, transform).skip_same(|old, new| old == new)
}
