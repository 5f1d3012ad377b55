// SPDX-License-Identifier: Apache-2.0

//! The flag bits of a service entry and their texts.

use std::fmt;

use bitflags::bitflags;

bitflags! {
    /// Flags of a service, as one 16-bit number: low byte `flags`, high byte `flags2`.
    ///
    /// The master and all slot entries of a frontend carry the same bits. [`fmt::Display`] gives the text
    /// that map dumps show: a type word, then the properties, separated by `, `.
    ///
    /// ```
    /// use skep_bpf_maps::lb::ServiceFlags;
    ///
    /// let flags = ServiceFlags::NODE_PORT | ServiceFlags::EXT_LOCAL | ServiceFlags::ROUTABLE;
    /// assert_eq!(flags.to_string(), "NodePort, Local");
    /// assert_eq!(flags.bits(), 0x46);
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
    pub struct ServiceFlags: u16 {
        /// Frontend of type ExternalIPs.
        const EXTERNAL_IP = 1 << 0;
        /// Frontend of type NodePort, and its surrogate.
        const NODE_PORT = 1 << 1;
        /// `externalTrafficPolicy: Local`.
        const EXT_LOCAL = 1 << 2;
        /// Frontend of type HostPort.
        const HOST_PORT = 1 << 3;
        /// Session affinity by client.
        const AFFINITY = 1 << 4;
        /// Frontend of type LoadBalancer.
        const LOAD_BALANCER = 1 << 5;
        /// Reachable from outside the node.
        const ROUTABLE = 1 << 6;
        /// Source ranges are checked.
        const SOURCE_RANGE = 1 << 7;
        /// Frontend of a local redirect policy.
        const LOCAL_REDIRECT = 1 << 8;
        /// Frontend and backends are of different address families.
        const NAT46X64 = 1 << 9;
        /// Traffic goes to an L7 proxy; the master entry holds its port.
        const L7_LOAD_BALANCER = 1 << 10;
        /// With [`HOST_PORT`](ServiceFlags::HOST_PORT): loopback host IP. Without: hand over unmodified when the
        /// backend is local ("delegate if local").
        const LOOPBACK = 1 << 11;
        /// `internalTrafficPolicy: Local`.
        const INT_LOCAL = 1 << 12;
        /// There is an entry for each [`Scope`](super::Scope).
        const TWO_SCOPES = 1 << 13;
        /// Master: source ranges are a deny list. Slot: quarantined (no longer written).
        const SOURCE_RANGE_DENY = 1 << 14;
        /// Forwarded by direct server return.
        const FORWARD_DSR = 1 << 15;
    }
}

impl ServiceFlags {
    /// These flags, with those of `other` added if `set`.
    #[must_use]
    pub const fn with(self, other: Self, set: bool) -> Self {
        if set { self.union(other) } else { self }
    }

    /// The words of the text form, in order.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let has = |flag| self.contains(flag);
        let kind = [
            (Self::EXTERNAL_IP, "ExternalIPs"),
            (Self::NODE_PORT, "NodePort"),
            (Self::LOAD_BALANCER, "LoadBalancer"),
            (Self::HOST_PORT, "HostPort"),
            (Self::LOCAL_REDIRECT, "LocalRedirect"),
        ]
        .into_iter()
        .find(|(flag, _)| has(*flag))
        .map_or("ClusterIP", |(_, word)| word);
        let ranges = has(Self::SOURCE_RANGE);
        let deny = has(Self::SOURCE_RANGE_DENY);
        let loopback = if has(Self::HOST_PORT) {
            "loopback"
        } else {
            "delegate-if-local"
        };
        let rest = [
            (has(Self::EXT_LOCAL), "Local"),
            (has(Self::INT_LOCAL), "InternalLocal"),
            (has(Self::TWO_SCOPES), "two-scopes"),
            (has(Self::AFFINITY), "sessionAffinity"),
            (!has(Self::ROUTABLE), "non-routable"),
            (ranges, "check source-range"),
            (ranges && deny, "deny"),
            (has(Self::NAT46X64), "46x64"),
            (has(Self::L7_LOAD_BALANCER), "l7-load-balancer"),
            (has(Self::LOOPBACK), loopback),
            (!ranges && deny, "quarantined"),
            (has(Self::FORWARD_DSR), "dsr"),
        ];
        std::iter::once(kind).chain(rest.into_iter().filter_map(|(set, word)| set.then_some(word)))
    }
}

impl fmt::Display for ServiceFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, word) in self.words().enumerate() {
            if n > 0 {
                f.write_str(", ")?;
            }
            f.write_str(word)?;
        }
        Ok(())
    }
}
