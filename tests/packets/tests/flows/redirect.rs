// SPDX-License-Identifier: Apache-2.0

//! Services of local redirect policies, which the policy's own backends reach untranslated.

use std::net::SocketAddr;

use run_packets::{
    Error,
    node::{PacketNode, with_node},
};
use skep_bpf_maps::{
    endpoint::Endpoint,
    lb::{LbMapSizes, ServiceFlags},
    testing::{Frontend, LbMaps},
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{dsr::*, frame::*, packet::*};

const COOKIE: u64 = 0xdead_beef_0000_4711;

/// Sets the cookie of the pod behind an interface.
fn set_cookie(node: &PacketNode, ifindex: u32, cookie: u64) -> Result<(), Error> {
    let entries = node.entries("skep_endpoints")?;
    let value = &entries[ifindex.as_bytes()];
    let mut endpoint = Endpoint::read_from_bytes(value).unwrap();
    endpoint.netns_cookie = cookie;
    node.write("skep_endpoints", ifindex.as_bytes(), endpoint.as_bytes())
}

/// Where a new flow of a pod to `service` goes.
fn destination(
    node: &PacketNode,
    family: Family,
    proto: u8,
    service: SocketAddr,
) -> Result<SocketAddr, Error> {
    node.forget_flows()?;
    let client = SocketAddr::from((family.local_pod(), 40_000));
    let request = Frame::new(proto, client, service);
    let ran = node.run("cil_from_container", &request.bytes(), &at(P2_IFINDEX))?;
    Ok(read_back(&ran).destination)
}

#[test]
fn pods_in_the_skip_map_reach_the_service_itself() {
    let done = with_node(&facts(), |node| {
        let maps = LbMaps::open(&node.store(), LbMapSizes::uniform(4096)).unwrap();
        each(|family, proto| {
            let service = SocketAddr::from((family.pick([203, 0, 113, 80].into(), "2001:db8:80::1"), 80));
            let backend = SocketAddr::from((family.remote_pod(), 8080));
            let reached = || destination(node, family, proto, service);
            let mut frontend =
                Frontend::new(900, service, proto, &[backend]).flags(ServiceFlags::LOCAL_REDIRECT);
            maps.upsert(&frontend).unwrap();
            set_cookie(node, P2_IFINDEX, COOKIE)?;
            assert_eq!(reached()?, backend, "no pod skips");

            maps.skip(COOKIE + 1, service).unwrap();
            assert_eq!(reached()?, backend, "another pod skips");
            maps.skip(COOKIE, (service.ip(), 81).into()).unwrap();
            assert_eq!(reached()?, backend, "another service is skipped");

            maps.skip(COOKIE, service).unwrap();
            assert_eq!(reached()?, service, "{family:?} {proto}");
            frontend.flags = ServiceFlags::EXTERNAL_IP;
            maps.upsert(&frontend).unwrap();
            assert_eq!(reached()?, backend, "the service is of no redirect policy");
            frontend.flags = ServiceFlags::LOCAL_REDIRECT;
            maps.upsert(&frontend).unwrap();

            maps.skip(0, service).unwrap();
            set_cookie(node, P2_IFINDEX, 0)?;
            assert_eq!(reached()?, backend, "the cookie is unknown");
            maps.skip4.clear().unwrap();
            maps.skip6.clear().unwrap();
            Ok(())
        })
    });
    done.unwrap();
}
