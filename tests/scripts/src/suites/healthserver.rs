// SPDX-License-Identifier: Apache-2.0

//! Health-check servers of services, on a loopback address of the script's own.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use hive::Cell;
use hive_script::Retry;
use skep_healthserver::ListenAddress;

use super::loadbalancer::{cells, with_presets};
use crate::{Assembly, AssemblyError, Parts, Setup, Suite};

pub(super) const SUITE: Suite = Suite {
    name: "healthserver",
    summary: "Health-check node ports of services",
    retry: Retry {
        interval: Duration::from_millis(20),
        max_interval: Duration::from_millis(500),
        limit: None,
    },
    timeout: Duration::from_secs(10),
    assemble,
};

fn assemble(setup: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    let (address, maps) = (own_address(), setup.maps);
    with_presets(Assembly::new(move || {
        let mut cells = cells(maps);
        cells.extend([
            skep_loadbalancer_reconciler::testing::testing_cell(),
            skep_healthserver::cell(),
            skep_healthserver::testing(),
            Cell::module("test-address", "Where health-check servers listen")
                .provide(move || ListenAddress(address)),
        ]);
        cells
    }))
    .preset("lb-test-fault-probability", "0")
    .preset("enable-health-check-loadbalancer-ip", "true")
    .preset("bpf-root", setup.bpf_root().to_string_lossy())
    .flags(&setup)
    .variable("HEALTHADDR", address.to_string())
    .build()
}

/// A loopback address that no other script of this or another process on the machine is likely to use now.
fn own_address() -> IpAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % 250;
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, high.max(1), low, number as u8 + 1))
}
