// SPDX-License-Identifier: Apache-2.0

//! Clients of services hear that nobody listens at the backend.

use std::{io, net::SocketAddr};

use skep_bpf_programs::{DirectReturn, DsrDispatch, NodeOptions};

use crate::{
    node::{self, Member, Setup, UDP, outside, pod_address, router},
    traffic::udp_call,
    ways::no_drops,
};

fn with_cluster(
    is_routed: bool,
    change: impl Fn(&mut NodeOptions) + Sync,
    work: impl Fn(&[Member; 2]) + Send,
) {
    let setup = Setup {
        is_underlay_ipv6: false,
        is_routed,
        change: &change,
    };
    node::with_cluster("errors", setup, move |members| {
        work(members);
        no_drops(members);
    });
}

#[track_caller]
fn assert_refused(to: SocketAddr) {
    let refused = udp_call(to, 100).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{to}");
}

/// The client, with a backend on the node that it sends to and with one on the other node.
fn ask_outside(members: &[Member; 2]) {
    for is_ipv6 in [false, true] {
        let frontend = SocketAddr::from((outside(1, is_ipv6), 30_080));
        for n in [1, 2] {
            for member in members {
                member.serve(frontend, UDP, (pod_address(n, is_ipv6), 80).into());
            }
            assert_refused(frontend);
        }
    }
}

#[test]
fn through_the_node_that_was_asked() {
    with_cluster(true, |_| {}, ask_outside);
}

#[test]
fn through_the_tunnel() {
    with_cluster(false, |_| {}, ask_outside);
}

#[test]
fn by_direct_return() {
    let change = |options: &mut NodeOptions| {
        options.packets.dsr = Some(DirectReturn {
            dispatch: DsrDispatch::IpOption,
            all_services: true,
            icmp_errors: false,
        });
    };
    with_cluster(true, change, ask_outside);
}

#[test]
fn behind_the_tunnel() {
    with_cluster(
        false,
        |_| {},
        |members| {
            let [one, two] = members;
            for is_ipv6 in [false, true] {
                let frontend = SocketAddr::from((router(1, is_ipv6), 30_080));
                one.serve(frontend, UDP, (pod_address(1, is_ipv6), 80).into());
                two.netns.run(|| assert_refused(frontend));
            }
        },
    );
}
