// SPDX-License-Identifier: Apache-2.0

//! What the agent is made of.

use std::sync::Arc;

use hive::Cell;

use crate::{
    cgroups, cluster,
    configuration::{self, Configuration},
    debug_info, feature_metrics, map_states, pods, prefilter, status, unsupported,
};

/// All cells of the agent; `configuration` is what its API shows as such.
#[must_use]
pub fn cells(configuration: Arc<Configuration>) -> Vec<Cell> {
    vec![
        infrastructure(configuration),
        control_plane(),
        datapath(),
        cluster::mesh(),
    ]
}

/// What every feature stands on: logs, tables, health, metrics, the shell and the API.
fn infrastructure(configuration: Arc<Configuration>) -> Cell {
    Cell::group([
        skep_base_logging::cell(),
        statedb::cell(),
        skep_base_health::cell(),
        skep_base_health::history_cell(),
        skep_base_metrics::cell(),
        skep_base_metrics::endpoint::cell(),
        skep_base_metrics::process::cell(),
        skep_base_limiter::cell(),
        skep_shell::cell(),
        skep_base_api::cell(),
        status::cell(),
        configuration::cell(),
        skep_base_alloc::cell(),
        Cell::group([]).provide(move || configuration.clone()),
    ])
}

/// Kubernetes and the node in, services in tables out.
fn control_plane() -> Cell {
    Cell::group([
        skep_k8s_client::remote::cell(),
        skep_base_settings::node_name::cell(),
        skep_k8s_dynamicconfig::cell(),
        skep_k8s_reflectors::tables::cell(),
        statedb::readiness::cell(),
        skep_k8s_client::status::cell(),
        skep_node_local::cell(),
        skep_loadbalancer_maglev::cell(),
        skep_loadbalancer_model::cell(),
        skep_loadbalancer_model::api::cell(),
        skep_loadbalancer_sources::cell(),
        skep_loadbalancer_reconciler::cell(),
        skep_loadbalancer_redirectpolicy::cell(),
        skep_loadbalancer_redirectpolicy::api::cell(),
        skep_loadbalancer_healthserver::cell(),
        skep_loadbalancer_healthserver::kube_proxy_healthz(),
    ])
}

/// The kernel: pinned maps, programs at sockets and interfaces and what they report, identities of addresses, nodes.
fn datapath() -> Cell {
    Cell::group([
        skep_base_settings::cell(),
        skep_datapath_maps::cell(),
        skep_datapath_maps::api::cell(),
        skep_loadbalancer_reconciler::sockets::cell(),
        skep_datapath_socketlb::cell(),
        skep_datapath_loader::cell(),
        skep_datapath_ipmasq::cell(),
        skep_datapath_conntrack::cell(),
        skep_datapath_natstats::cell(),
        skep_datapath_network::cell(),
        skep_loadbalancer_reconciler::neighbors::cell(),
        skep_datapath_monitor::cell(),
        skep_datapath_monitor::api::cell(),
        skep_ipcache::cell(),
        skep_ipcache::api::cell(),
        skep_identity_cache::cell(),
        skep_base_settings::identity::cell(),
        skep_identity_cache::own::cell(),
        skep_identity_cache::api::cell(),
        skep_identity_allocator::cell(),
        skep_node_manager::cell(),
        skep_node_manager::api::cell(),
        skep_node_health::cell(),
        skep_node_routes::cell(),
        skep_endpoint_watcher::cell(),
        skep_endpoint_ipam::cell(),
        skep_endpoint_ipam::sources::cell(),
        skep_endpoint_ipam::sources::infrastructure::cell(),
        skep_endpoint_ipam::api::cell(),
        skep_endpoint_sync::node::cell(),
        skep_endpoint_sync::endpoints::cell(),
        skep_policy_sources::cell(),
        skep_policy_repository::cell(),
        skep_policy_repository::api::cell(),
        map_states::cell(),
        skep_policy_maps::cell(),
        skep_policy_fqdn::cell(),
        skep_policy_fqdn::api::cell(),
        skep_endpoint::cell(),
        skep_endpoint_bandwidth::cell(),
        skep_endpoint::api::cell(),
        skep_endpoint::cookies::cell(),
        skep_endpoint_cniconf::cell(),
        skep_endpoint_health::cell(),
        unsupported::cell(),
        cgroups::cell(),
        debug_info::cell(),
        feature_metrics::cell(),
        prefilter::cell(),
        pods::cell(),
    ])
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings, testing};
    use skep_base_metrics::Registry;

    use super::*;

    #[test]
    fn every_cell_is_in_the_catalogue() {
        let missing = testing::not_in_catalogue(&cells(Arc::default()));

        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn reports_name_the_cell_that_would_help() {
        let hive = Hive::new(cells(Arc::default())).without("maglev");

        let report = hive.plan(Settings::new()).unwrap_err().to_string();

        assert!(report.contains("nothing provides `Maglev`"), "{report}");
        assert!(
            report.contains("help: `skep_loadbalancer_maglev::cell` provides it; add `skep_loadbalancer_maglev::cell()` to the cells"),
            "{report}"
        );
    }

    #[test]
    fn the_agent_is_planned_without_findings_and_in_the_same_order_each_time() {
        // How long it takes is measured, not asserted: `skep-agent hive check --stats`.
        let plan = || testing::plan(Hive::new(cells(Arc::default())), Settings::new());
        let (first, second) = (plan(), plan());

        let findings: Vec<_> = first
            .report()
            .findings()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(findings, [""; 0]);
        assert_eq!(first.order(), second.order());
    }

    #[test]
    fn every_metric_can_be_enabled() {
        let hive = Hive::new(cells(Arc::default())).root::<Arc<Registry>>();
        let built = hive
            .plan(Settings::new())
            .expect("a plan")
            .build()
            .expect("a hive");
        let registry = built.get::<Arc<Registry>>().expect("it is provided");
        let all: Vec<String> = registry.all().map(|(name, _)| format!("+{name}")).collect();

        let settings = Settings::new().flag("metrics", all.join(","));

        let plan = testing::plan(Hive::new(cells(Arc::default())), settings);
        assert!(plan.report().errors().next().is_none());
    }

    #[test]
    fn every_combination_of_conditions_is_planned() {
        let variants = Hive::new(cells(Arc::default())).variants();
        assert!(variants.len() > 1, "some cells have conditions");

        for (name, hive) in variants {
            let report = hive.plan(Settings::new()).err().map(|report| report.to_string());

            assert_eq!(report, None, "with {name}");
        }
    }
}
