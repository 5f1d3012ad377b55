// SPDX-License-Identifier: Apache-2.0

//! Suite `healthserver`: health-check servers of services, on a loopback address of the script's own.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use hive::{Cell, Hive};
use hive_script::testing::{Assembling, Choices, Setup, Suite};
use skep_loadbalancer_healthserver::ListenAddress;

use crate::cells::{assemble, load_balancer, quick};
use crate::maps::{self, MAPS};

hive_script::suite!(
    Suite::new(
        "healthserver",
        "Health-check node ports of services",
        "testdata/healthserver",
        assemble_suite
    )
    .retry_interval(Duration::from_millis(20))
    .choices(&[MAPS])
    .prepare(maps::hide_mounts)
);

fn assemble_suite(setup: Setup) -> Assembling {
    let address = own_address();
    quick(assemble(&setup, move |choices| hive(choices, address)))
        .preset("lb-test-fault-probability", "0")
        .preset("enable-health-check-loadbalancer-ip", "true")
        .variable("HEALTHADDR", address.to_string())
        .build()
}

fn hive(choices: &Choices, address: IpAddr) -> Hive {
    let listen = Cell::module("test-address", "Where health-check servers listen")
        .provide(move || ListenAddress(address));
    load_balancer(choices)
        .with(skep_loadbalancer_healthserver::testing())
        .with(listen)
}

/// A loopback address that no other script of this or another process on the machine is likely to use now.
fn own_address() -> IpAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % 250;
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, high.max(1), low, number as u8 + 1))
}
