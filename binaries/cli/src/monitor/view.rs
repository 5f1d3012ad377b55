// SPDX-License-Identifier: Apache-2.0

//! What every form says of an event alike: names of identities and interfaces, the layers of its packet.

use std::{
    cell::RefCell,
    collections::HashMap,
    time::{Duration, Instant},
};

use skep_datapath_monitor_events::{
    event::{DebugCapture, DebugMsg, PacketFlags, TraceNotify},
    names::{self, point},
    packet::{Encapsulation, Packet, Start},
};
use skep_identity::{NumericIdentity, Reserved};

/// How identities, interfaces and packets are shown.
pub(super) struct View {
    /// Packets as bytes, not as layers.
    pub(super) hex: bool,
    numeric: bool,
    interfaces: Interfaces,
}

impl View {
    pub(super) fn new(hex: bool, numeric: bool) -> Self {
        Self {
            hex,
            numeric,
            interfaces: Interfaces::default(),
        }
    }

    /// Interfaces may have other names after a while.
    pub(super) fn forget_old_names(&mut self) {
        self.interfaces.forget_old();
    }

    /// An identity: the name of a reserved one, unless numbers are asked for.
    pub(super) fn identity(&self, number: u32) -> String {
        let reserved = Reserved::ALL
            .into_iter()
            .find(|reserved| reserved.identity() == NumericIdentity::new(number));
        match reserved {
            _ if self.numeric => number.to_string(),
            None if number == 0 => "unknown".to_owned(),
            None => number.to_string(),
            Some(reserved) => reserved.name().to_owned(),
        }
    }

    /// The name of an interface, or its number.
    pub(super) fn interface(&self, index: u32) -> String {
        self.interfaces.name(index).unwrap_or_else(|| index.to_string())
    }

    /// The text of a debug message.
    pub(super) fn debug(&self, event: &DebugMsg) -> String {
        event.text(&|index| self.interfaces.name(index))
    }

    /// What a capture was taken for.
    pub(super) fn capture_prefix(&self, event: &DebugCapture<'_>) -> Option<String> {
        event.prefix(&|index| self.interfaces.name(index))
    }
}

/// The layers of a packet, by the flags of its event.
pub(super) fn packet(bytes: &[u8], flags: PacketFlags) -> Packet<'_> {
    let encapsulation = match (flags.is_vxlan(), flags.is_geneve()) {
        (true, _) => Some(Encapsulation::Vxlan),
        (false, true) => Some(Encapsulation::Geneve),
        (false, false) => None,
    };
    Packet::dissect(
        bytes,
        Start::of(flags.is_l3_device(), flags.is_ipv6()),
        encapsulation,
    )
}

/// Where a packet goes, or comes from.
pub(super) fn trace_summary(event: &TraceNotify<'_>) -> String {
    match event.point {
        point::TO_ENDPOINT => format!("-> endpoint {}", event.destination),
        point::TO_PROXY if event.destination == 0 => "-> proxy".to_owned(),
        point::TO_PROXY => format!("-> proxy port {}", event.destination),
        point::TO_HOST => "-> host from".to_owned(),
        point::FROM_ENDPOINT => format!("<- endpoint {}", event.header.source),
        other => {
            let name = names::observation_point(other);
            match name.split_once('-') {
                Some(("to", place)) => format!("-> {place}"),
                Some(("from", place)) => format!("<- {place}"),
                _ => "unknown trace".to_owned(),
            }
        }
    }
}

/// How long the name of an interface is believed.
const NAMES_FOR: Duration = Duration::from_secs(15);

/// Names of interfaces of this network namespace.
struct Interfaces {
    known: RefCell<HashMap<u32, Option<String>>>,
    since: Instant,
}

impl Default for Interfaces {
    fn default() -> Self {
        Self {
            known: RefCell::default(),
            since: Instant::now(),
        }
    }
}

impl Interfaces {
    fn forget_old(&mut self) {
        if self.since.elapsed() > NAMES_FOR {
            *self = Self::default();
        }
    }

    fn name(&self, index: u32) -> Option<String> {
        let mut known = self.known.borrow_mut();
        known.entry(index).or_insert_with(|| lookup(index)).clone()
    }
}

fn lookup(index: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};

    if index == 0 {
        return None;
    }
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(&any, index).ok()
}
