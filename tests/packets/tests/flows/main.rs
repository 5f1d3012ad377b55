// SPDX-License-Identifier: Apache-2.0

//! Packets that nobody recorded, through the programs on the node of the facts.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod accounting;
mod apart;
mod arp;
mod checksums;
mod dsr;
mod echo;
mod errors;
mod events;
mod firewall;
mod frame;
mod garbage;
mod histories;
mod ipip;
mod itself;
mod kept;
mod marks;
mod mtu;
mod nat;
mod nat46x64;
mod no_backend;
mod packet;
mod policies;
mod pressure;
mod protocols;
mod random;
mod rates;
mod redirect;
mod sctp;
mod termination;
mod to_container;
mod tunnel;
