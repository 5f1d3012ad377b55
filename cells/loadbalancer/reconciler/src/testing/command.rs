// SPDX-License-Identifier: Apache-2.0

//! Commands for tests: maps that outlive an agent, restarts of the reconciler, health reports.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hive::Members;
use hive_script::{Command, CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Spec};
use parking_lot::Mutex;
use skep_k8s_types::slim::NodeAddressType;
use skep_loadbalancer_model::Writer;
use skep_loadbalancer_model::types::{L3n4Addr, ServiceName};
use skep_node_local::LocalNodeStore;

use super::snapshot::MapSnapshot;
use crate::maps::LoadBalancerMaps;
use crate::{InitWait, Ops};

/// The commands.
pub(super) fn commands(
    maps: Arc<LoadBalancerMaps>,
    writer: Writer,
    ops: Arc<Mutex<Ops>>,
    reconciled: InitWait,
    node: Option<LocalNodeStore>,
) -> Members<CommandHandle> {
    let shared = Arc::new(Shared {
        maps,
        writer,
        ops,
        reconciled,
        node,
        snapshot: Mutex::default(),
    });
    let command = |action: Action, spec: Spec| -> CommandHandle {
        Arc::new(TestCommand {
            spec,
            action,
            shared: shared.clone(),
        })
    };
    let any_proto = Flag::bool("any-proto", "Write services and backends with protocol ANY");
    Members(vec![
        command(
            Action::MapsEmpty,
            Spec::new(
                "lb/maps-empty",
                "Check that the load-balancing BPF maps are empty",
            ),
        ),
        command(
            Action::MapsSnapshot,
            Spec::new(
                "lb/maps-snapshot",
                "Take a snapshot of the load-balancing BPF maps",
            ),
        ),
        command(
            Action::MapsRestore,
            Spec::new(
                "lb/maps-restore",
                "Restore the load-balancing BPF maps from the snapshot",
            )
            .flag(any_proto),
        ),
        command(
            Action::BackendHealth,
            Spec::new("test/update-backend-health", "Report the health of a backend")
                .args("service-name backend-addr healthy"),
        ),
        command(
            Action::Reset,
            Spec::new(
                "test/bpfops-reset",
                "Restore the state of the reconciler from the maps, as after a restart",
            ),
        ),
        command(
            Action::Summary,
            Spec::new("test/bpfops-summary", "Show the sizes of the reconciler's state"),
        ),
        command(
            Action::HealthChecked,
            Spec::new(
                "test/set-is-service-healthchecked",
                "Set the annotation of health-checked services",
            )
            .args("annotation"),
        ),
        command(
            Action::InitWait,
            Spec::new("test/init-wait", "Wait for the initial reconciliation"),
        ),
        command(
            Action::NodeLabels,
            Spec::new("test/set-node-labels", "Replace the labels of the local node").args("key=value..."),
        ),
        command(
            Action::NodeIp,
            Spec::new("test/set-node-ip", "Set the address of the local node").args("ip"),
        ),
    ])
}

#[derive(Clone, Copy)]
enum Action {
    MapsEmpty,
    MapsSnapshot,
    MapsRestore,
    BackendHealth,
    Reset,
    Summary,
    HealthChecked,
    InitWait,
    NodeLabels,
    NodeIp,
}

struct Shared {
    maps: Arc<LoadBalancerMaps>,
    writer: Writer,
    ops: Arc<Mutex<Ops>>,
    reconciled: InitWait,
    node: Option<LocalNodeStore>,
    snapshot: Mutex<MapSnapshot>,
}

struct TestCommand {
    spec: Spec,
    action: Action,
    shared: Arc<Shared>,
}

#[async_trait]
impl Command for TestCommand {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let shared = &*self.shared;
        match self.action {
            Action::MapsEmpty => shared.maps_empty(),
            Action::MapsSnapshot => {
                let result = shared.snapshot.lock().take(&shared.maps);
                result.map_err(|error| CommandError::chain(&error))?;
                Ok(Outcome::Silent)
            }
            Action::MapsRestore => {
                let result = shared
                    .snapshot
                    .lock()
                    .restore(&shared.maps, inv.bool("any-proto"));
                result.map_err(|error| CommandError::chain(&error))?;
                Ok(Outcome::Silent)
            }
            Action::BackendHealth => shared.backend_health(inv.args()),
            Action::Reset => {
                let mut ops = shared.ops.lock();
                ops.reset();
                ops.restore().map_err(|error| CommandError::chain(&error))?;
                Ok(Outcome::Silent)
            }
            Action::Summary => Ok(Outcome::stdout(shared.ops.lock().summary().to_string())),
            Action::HealthChecked => {
                let [annotation] = inv.args() else {
                    return Err(CommandError::usage("expected an annotation"));
                };
                let annotation = annotation.clone();
                shared.writer.set_health_checked(move |service| {
                    service
                        .annotations
                        .get(&annotation)
                        .is_some_and(|value| !value.is_empty())
                });
                Ok(Outcome::Silent)
            }
            Action::NodeLabels => {
                let log = shared.set_node_labels(inv.args())?;
                cx.log(log);
                Ok(Outcome::Silent)
            }
            Action::NodeIp => {
                let log = shared.set_node_ip(inv.args())?;
                cx.log(log);
                Ok(Outcome::Silent)
            }
            Action::InitWait => {
                let interrupted = cx.interrupted();
                tokio::select! {
                    () = shared.reconciled.wait() => Ok(Outcome::Silent),
                    interruption = interrupted => Err(interruption.into()),
                }
            }
        }
    }
}

impl Shared {
    fn maps_empty(&self) -> Result<Outcome, CommandError> {
        match self.maps.count().map_err(|error| CommandError::chain(&error))? {
            0 => Ok(Outcome::Silent),
            n => Err(CommandError::new(format!("{n} entries remain in LBMaps"))),
        }
    }

    fn node(&self) -> Result<&LocalNodeStore, CommandError> {
        self.node
            .as_ref()
            .ok_or_else(|| CommandError::new("this hive has no local node"))
    }

    fn set_node_labels(&self, args: &[String]) -> Result<String, CommandError> {
        let mut labels = BTreeMap::new();
        for arg in args {
            let (key, value) = arg
                .split_once('=')
                .ok_or_else(|| CommandError::new(format!("bad key=value: {arg:?}")))?;
            labels.insert(key, value);
        }
        let new = labels.iter().map(|(key, value)| (*key, *value)).collect();
        self.node()?
            .update(|node| node.labels = new)
            .map_err(|error| CommandError::chain(&error))?;
        let texts: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}:{value}"))
            .collect();
        Ok(format!("Labels set to map[{}]\n", texts.join(" ")))
    }

    fn set_node_ip(&self, args: &[String]) -> Result<String, CommandError> {
        let [ip] = args else {
            return Err(CommandError::usage("expected an IP address"));
        };
        let ip: IpAddr = ip.parse().map_err(|error| CommandError::chain(&error))?;
        let addresses = vec![(NodeAddressType::ExternalIp, ip)];
        self.node()?
            .update(|node| node.addresses = addresses)
            .map_err(|error| CommandError::chain(&error))?;
        Ok(format!("NodeIP set to {ip}\n"))
    }

    fn backend_health(&self, args: &[String]) -> Result<Outcome, CommandError> {
        let [service, address, is_healthy] = args else {
            return Err(CommandError::usage(
                "expected service name, backend address and health",
            ));
        };
        let service: ServiceName = service.parse().map_err(|error| CommandError::chain(&error))?;
        let address: L3n4Addr = address.parse().map_err(|error| CommandError::chain(&error))?;
        let is_healthy: bool = is_healthy.parse().map_err(|error| CommandError::chain(&error))?;
        let mut txn = self.writer.write();
        let result = self
            .writer
            .set_backend_health(&mut txn, &service, &address, is_healthy);
        result.map_err(|error| CommandError::chain(&error))?;
        txn.commit();
        Ok(Outcome::Silent)
    }
}
