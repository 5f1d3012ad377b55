// SPDX-License-Identifier: Apache-2.0

//! How the keys of conntrack and NAT maps of one flow follow from each other.

use std::net::IpAddr;

use skep_bpf_sys::map::Plain;

use crate::{
    conntrack::{CtKey4, CtKey6},
    nat::{NatEntry4, NatEntry6, NatKey4, NatKey6},
};

/// Bit of the flags of a NAT key: answers.
const REVERSE: u8 = 1;

/// The key of a conntrack map, with what it says of the NAT map of its address family.
pub trait FlowKey: Plain {
    type NatKey: Plain;
    type NatEntry: Plain;

    fn addresses(&self) -> [IpAddr; 2];

    /// Whether it is of a flow that an endpoint, or this node, has opened, and not of errors about it.
    fn is_egress(&self) -> bool;

    /// Whether the entry is one of TCP.
    fn is_tcp(&self) -> bool;

    /// How packets of an egress flow are translated.
    fn nat_forward(&self) -> Self::NatKey;

    /// Where old releases wrote the address that answers of a flow with direct server return come from.
    fn nat_dsr(&self) -> Self::NatKey;

    /// How answers to translated packets are translated.
    fn nat_answers(forward: &Self::NatKey, entry: &Self::NatEntry) -> Self::NatKey;

    /// Whether the entry of answers is the other half of `forward`.
    fn is_answer_to(answers: &Self::NatEntry, forward: &Self::NatKey) -> bool;

    /// Whether a NAT entry is of answers.
    fn is_nat_reverse(key: &Self::NatKey) -> bool;

    /// When a NAT entry was made.
    fn nat_created(entry: &Self::NatEntry) -> u64;

    /// Key of the flow that a NAT entry belongs to.
    fn of_nat(key: &Self::NatKey, entry: &Self::NatEntry) -> Self;

    /// Key of the flow with direct server return that a forward NAT entry may belong to.
    fn of_nat_dsr(key: &Self::NatKey) -> Self;
}

macro_rules! flow_key {
    ($key:ident, $nat:ident, $entry:ident) => {
        impl FlowKey for $key {
            type NatKey = $nat;
            type NatEntry = $entry;

            fn addresses(&self) -> [IpAddr; 2] {
                [self.daddr.into(), self.saddr.into()]
            }

            fn is_egress(&self) -> bool {
                self.flags == 0
            }

            fn is_tcp(&self) -> bool {
                self.proto == 6
            }

            fn nat_forward(&self) -> $nat {
                $nat {
                    daddr: self.saddr,
                    saddr: self.daddr,
                    dport: self.dport,
                    sport: self.sport,
                    proto: self.proto,
                    flags: 0,
                }
            }

            fn nat_dsr(&self) -> $nat {
                $nat {
                    daddr: self.daddr,
                    saddr: self.saddr,
                    dport: self.sport,
                    sport: self.dport,
                    proto: self.proto,
                    flags: 0,
                }
            }

            fn nat_answers(forward: &$nat, entry: &$entry) -> $nat {
                $nat {
                    daddr: entry.address,
                    saddr: forward.daddr,
                    dport: entry.port,
                    sport: forward.dport,
                    proto: forward.proto,
                    flags: REVERSE,
                }
            }

            fn is_answer_to(answers: &$entry, forward: &$nat) -> bool {
                answers.address == forward.saddr && answers.port == forward.sport
            }

            fn is_nat_reverse(key: &$nat) -> bool {
                key.flags & REVERSE != 0
            }

            fn nat_created(entry: &$entry) -> u64 {
                entry.created
            }

            fn of_nat(key: &$nat, entry: &$entry) -> Self {
                let (daddr, saddr, dport, sport) = if Self::is_nat_reverse(key) {
                    (entry.address, key.saddr, key.sport, entry.port)
                } else {
                    (key.saddr, key.daddr, key.dport, key.sport)
                };
                Self {
                    daddr,
                    saddr,
                    dport,
                    sport,
                    proto: key.proto,
                    flags: 0,
                }
            }

            fn of_nat_dsr(key: &$nat) -> Self {
                Self {
                    daddr: key.daddr,
                    saddr: key.saddr,
                    dport: key.sport,
                    sport: key.dport,
                    proto: key.proto,
                    flags: 0,
                }
            }
        }
    };
}

flow_key!(CtKey4, NatKey4, NatEntry4);
flow_key!(CtKey6, NatKey6, NatEntry6);
