// SPDX-License-Identifier: Apache-2.0

//! Frontends whose backends are of the other address family.
//!
//! Programs serve them in IPv6 alone: an IPv4 frontend has, besides its own entries, those of an IPv6 frontend at its
//! embedded address (RFC 6052); IPv4 backends of an IPv6 frontend are written as their embedded addresses.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use skep_loadbalancer_model::types::{Backend, BackendParams, BackendSet, Frontend, L3n4Addr};
use smallvec::SmallVec;

/// Embeds IPv4 addresses behind a prefix of 96 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding(Ipv6Addr);

impl Embedding {
    /// The embedding in a network of 96 bits.
    pub const fn new(network: Ipv6Addr) -> Self {
        Self(network)
    }

    fn embed(self, address: Ipv4Addr) -> Ipv6Addr {
        Ipv6Addr::from(u128::from(self.0) | u128::from(u32::from(address)))
    }

    fn contains(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => false,
            IpAddr::V6(address) => u128::from(address) >> 32 == u128::from(self.0) >> 32,
        }
    }

    /// The frontend with backends that its IPv6 entries can name.
    pub(super) fn view(self, frontend: &Frontend) -> Cow<'_, Frontend> {
        if frontend.address().is_ipv4() || !crosses(frontend) {
            return Cow::Borrowed(frontend);
        }
        let embedded = frontend.backends.iter().map(|row| {
            let address = row.params.address;
            let ip = address.ipv4().map_or(address.ip(), |ip| self.embed(ip).into());
            row.with_object(Backend {
                params: BackendParams {
                    address: address.with_ip(ip),
                    ..row.params.clone()
                },
                ..Backend::clone(row)
            })
        });
        Cow::Owned(Frontend {
            backends: embedded.collect::<BackendSet>(),
            ..frontend.clone()
        })
    }

    /// Embedded addresses at which an IPv4 frontend is served, too.
    pub(super) fn twins(self, frontend: &Frontend) -> SmallVec<[IpAddr; 2]> {
        if !frontend.address().is_ipv4() || !crosses(frontend) {
            return SmallVec::new();
        }
        let own = frontend.address().ip();
        let others = frontend.node_addresses.as_deref().unwrap_or_default();
        let all = std::iter::once(&own).chain(others);
        all.filter_map(|ip| match ip {
            IpAddr::V4(ip) if !ip.is_unspecified() => Some(self.embed(*ip).into()),
            _ => None,
        })
        .collect()
    }

    /// Whether packets to the frontend change their family, at this one of its addresses.
    pub(super) fn translates(self, frontend: &Frontend, address: &L3n4Addr) -> bool {
        let is_own = address.is_ipv4() == frontend.address().is_ipv4();
        let mut backends = frontend.backends.iter();
        is_own
            && backends.next().is_some_and(|row| {
                crosses(frontend) || (address.is_ipv6() && self.contains(row.params.address.ip()))
            })
    }
}

/// A frontend has backends of one family.
fn crosses(frontend: &Frontend) -> bool {
    let mut backends = frontend.backends.iter();
    backends
        .next()
        .is_some_and(|row| row.params.address.is_ipv4() != frontend.address().is_ipv4())
}
