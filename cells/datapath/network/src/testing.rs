// SPDX-License-Identifier: Apache-2.0

//! Script suites `device`, `route` and `neighbor`.

mod commands;
mod scriptnet;

use std::{sync::Arc, time::Duration};

use hive::{Cell, Hive};
use hive_script::{
    Condition, Conditions,
    testing::{Assembling, Assembly, AssemblyError, Setup, Suite, ThreadStart},
};
use skep_base_health::testing::base_cells;
use skep_base_net::{LinkSpec, Neighbour, Netlink, netns::Namespace, packet::neighbour::NeighbourExtFlags};

use crate::{CalculatorInterval, cells};
use scriptnet::Scriptnet;

const RETRY: Duration = Duration::from_millis(10);
const TIME: Duration = Duration::from_secs(60);

hive_script::suite!(
    Suite::new(
        "device",
        "Desired devices in a network namespace",
        "testdata/device",
        device
    )
    .retry_interval(RETRY)
    .threads(new_namespace)
);

hive_script::suite!(
    Suite::new(
        "route",
        "Desired routes in a network namespace",
        "testdata/route",
        route
    )
    .timeout(TIME)
    .threads(new_namespace)
);

hive_script::suite!(
    Suite::new(
        "neighbor",
        "Desired neighbours in a network namespace",
        "testdata/neighbor",
        neighbor
    )
    .retry_interval(RETRY)
    .timeout(TIME)
    .threads(new_namespace)
);

/// Threads in a new network namespace.
fn new_namespace() -> Result<ThreadStart, AssemblyError> {
    skep_base_net::testing::thread_start().map_err(prepare("a network namespace"))
}

fn prepare<E>(what: &'static str) -> impl FnOnce(E) -> AssemblyError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |cause| AssemblyError::Prepare {
        what,
        cause: cause.into(),
    }
}

fn device(setup: Setup) -> Assembling {
    assemble(&setup, || {
        [
            cells::devices(),
            Cell::module("device-commands", "Commands on desired devices").provide(commands::devices),
        ]
    })
}

fn route(setup: Setup) -> Assembling {
    assemble(&setup, || {
        [
            cells::routes(),
            Cell::module("route-commands", "Commands on desired routes").provide(commands::routes),
        ]
    })
}

fn assemble(setup: &Setup, cells: fn() -> [Cell; 2]) -> Assembling {
    let assembly = Assembly::new(move || hive(cells()))
        .flags(setup)
        .ignore_arguments()
        .preset("state-dir", setup.state_dir.to_string_lossy())
        .recreatable();
    finish(assembly)
}

fn neighbor(setup: Setup) -> Assembling {
    let cells = || {
        [
            cells::neighbors(),
            Cell::module("neighbor-commands", "Commands on forwardable addresses")
                .provide(commands::neighbors),
        ]
    };
    Box::pin(async move {
        let can_manage = can_manage_neighbours().map_err(prepare("a neighbour"))?;
        let mut conditions = Conditions::new();
        conditions.insert(
            "kernel-can-manage-arp-ping".to_owned(),
            Condition::fixed("the kernel keeps neighbours up to date by itself", can_manage),
        );
        let assembly = Assembly::new(move || hive(cells()).replace(|| CalculatorInterval(RETRY)))
            .flags(&setup)
            .ignore_arguments()
            .preset("enable-l2-neigh-discovery", "true")
            .conditions(conditions)
            .recreatable();
        finish(assembly).await
    })
}

/// Adds the variables and the commands on the network.
fn finish(assembly: Assembly) -> Assembling {
    let path = std::env::var("PATH").unwrap_or_default();
    let assembly = assembly.variable("PATH", path);
    Box::pin(async move {
        let net = Scriptnet::new().map_err(prepare("the network namespace"))?;
        let mut parts = assembly.build().await?;
        let commands = scriptnet::commands(Arc::new(net));
        parts
            .commands
            .extend(commands.into_iter().map(hive_script::named));
        Ok(parts)
    })
}

fn hive(cells: [Cell; 2]) -> Hive {
    Hive::new(base_cells())
        .with(skep_base_settings::cell())
        .with(skep_node_local::cells::devices())
        .with(Cell::group(cells))
}

/// Whether the kernel knows `NTF_EXT_MANAGED` (Linux 5.16).
fn can_manage_neighbours() -> Result<bool, skep_base_net::netns::NetnsError> {
    Namespace::new()?.inside(|| {
        let net = Netlink::open()?;
        net.add_link(LinkSpec::veth("probe0", LinkSpec::new().name("probe1")))?;
        let link = net.link("probe0")?;
        net.set_link(&net.link("probe1")?, LinkSpec::new().up())?;
        net.set_link(&link, LinkSpec::new().up())?;
        let mut wanted = Neighbour::new(link.index, [192, 0, 2, 1].into());
        wanted.flags = skep_base_net::packet::neighbour::NeighbourFlags::ExtLearned;
        wanted.ext_flags = NeighbourExtFlags::Managed;
        net.set_neighbour(&wanted)?;
        net.neighbour(wanted.device, wanted.address)
    })
    .map(|found: Result<_, skep_base_net::NetError>| {
        matches!(found, Ok(Some(neighbour)) if neighbour.ext_flags.contains(NeighbourExtFlags::Managed))
    })
}
