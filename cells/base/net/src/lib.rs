// SPDX-License-Identifier: Apache-2.0

//! Links, addresses, routes, neighbours and network namespaces of Linux, without an async runtime.
//!
//! [`Netlink`] is a connection to the kernel, in the network namespace of the thread that opened it:
//!
//! - links: [`Link`], [`LinkSpec`];
//! - addresses: [`Address`];
//! - routes: [`Route`], [`RouteFilter`]; to single addresses: [`host_route`];
//! - neighbours: [`Neighbour`];
//! - everything else by messages of [`packet`]: [`Netlink::change`], [`Netlink::list`].
//!
//! [`netns`] has namespaces, [`sysctl`] their settings, [`transparent`] sockets of proxies. Requests wait for the kernel's acknowledgement; async code calls them
//! off its workers.

mod address;
mod error;
pub mod host_route;
mod link;
mod neighbour;
mod netlink;
pub mod netns;
mod qdisc;
mod route;
mod rule;
pub mod sysctl;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transparent;

pub use address::Address;
pub use error::NetError;
pub use link::{Link, LinkSpec};
pub use neighbour::Neighbour;
pub use netlink::{CREATE, EXCLUSIVE, Netlink, REPLACE};
pub use netlink_packet_route as packet;
pub use qdisc::{FqOptions, Qdisc};
pub use route::{Hop, Route, RouteFilter};
pub use rule::MarkRule;
