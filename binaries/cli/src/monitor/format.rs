// SPDX-License-Identifier: Apache-2.0

//! Events as lines, in the form of Cilium's command.

use std::{
    collections::HashMap,
    io::{self, Write},
    time::{Duration, Instant},
};

use skep_identity::{NumericIdentity, Reserved};
use skep_monitor_events::{
    agent::AgentNotify,
    event::{
        DebugCapture, DebugMsg, DropNotify, Event, MessageType, PacketFlags, PolicyVerdictNotify,
        TraceNotify, TraceSockNotify,
    },
    names::{self, point},
    packet::{Encapsulation, Packet, Start},
    payload::Payload,
};

use super::{access_log, json, verbose};

/// How much is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// One line an event, without messages of programs.
    Info,
    /// One line an event.
    Debug,
    /// Packets with all layers.
    Verbose,
    /// An object a line.
    Json,
}

/// Which events are printed: those that match all that is not empty.
#[derive(Debug, Default)]
pub(super) struct Filter {
    pub(super) types: Vec<MessageType>,
    pub(super) from: Vec<u16>,
    pub(super) to: Vec<u16>,
    pub(super) related: Vec<u16>,
}

impl Filter {
    fn matches(&self, kind: MessageType, from: u16, to: u16) -> bool {
        (self.types.is_empty() || self.types.contains(&kind))
            && (self.from.is_empty() || self.from.contains(&from))
            && (self.to.is_empty() || self.to.contains(&to))
            && (self.related.is_empty() || self.related.contains(&from) || self.related.contains(&to))
    }
}

/// Prints events.
pub(super) struct Formatter {
    pub(super) level: Level,
    pub(super) hex: bool,
    numeric: bool,
    filter: Filter,
    interfaces: Interfaces,
}

impl Formatter {
    pub(super) fn new(level: Level, hex: bool, numeric: bool, filter: Filter) -> Self {
        Self {
            level,
            hex,
            numeric,
            filter,
            interfaces: Interfaces::default(),
        }
    }

    /// Prints an event, if it is one of those to print.
    pub(super) fn print(&mut self, payload: &Payload, out: &mut impl Write) -> io::Result<()> {
        let (cpu, data) = match payload {
            Payload::Lost { cpu, count } => return writeln!(out, "CPU {cpu:02}: Lost {count} events"),
            Payload::Unknown { kind, cpu, count } => {
                return writeln!(
                    out,
                    "Unknown payload type: {kind}, CPU {cpu:02}: Lost {count} events"
                );
            }
            Payload::Event { cpu, data } => (cpu, data),
        };
        let cpu = format!("CPU {cpu:02}:");
        self.interfaces.forget_old();
        match Event::decode(data) {
            Ok(event) => self.event(&cpu, &event, out),
            Err(error) => match data.first() {
                Some(first) if MessageType::from_number(*first).is_some() => {
                    let error = causes(&error);
                    writeln!(out, "cannot decode message type '{first}': {error}")
                }
                _ => {
                    let bytes: Vec<String> = data.iter().map(u8::to_string).collect();
                    writeln!(out, "{cpu} Unknown event: [{}]", bytes.join(" "))
                }
            },
        }
    }

    fn event(&self, cpu: &str, event: &Event<'_>, out: &mut impl Write) -> io::Result<()> {
        let (from, to) = ends(event);
        // Sockets have no endpoint: they pass every filter.
        let is_socket = matches!(event, Event::TraceSock(_));
        if !is_socket && !self.filter.matches(event.message_type(), from, to) {
            return Ok(());
        }
        let text = match (event, self.level) {
            (Event::PolicyVerdict(event), _) => self.verdict(event),
            (Event::Drop(event), Level::Json) => json::dropped(cpu, event),
            (Event::Drop(event), Level::Verbose) => verbose::dropped(self, cpu, event),
            (Event::Drop(event), _) => self.dropped(event),
            (Event::Trace(event), Level::Json) => json::trace(self, cpu, event),
            (Event::Trace(event), Level::Verbose) => verbose::trace(self, cpu, event),
            (Event::Trace(event), _) => self.trace(event),
            (Event::Capture(event), Level::Json) => json::capture(self, cpu, event),
            (Event::Capture(event), Level::Verbose) => verbose::capture(self, cpu, event),
            (Event::Capture(event), _) => match self.capture(event) {
                Some(line) => line,
                None => return Ok(()),
            },
            (Event::Debug(event), Level::Json) => json::debug(cpu, &self.debug(event)),
            (Event::Debug(_), Level::Info) => return Ok(()),
            (Event::Debug(event), _) => format!(
                "{cpu} MARK {:#x} FROM {} DEBUG: {}",
                event.hash,
                event.source,
                self.debug(event)
            ),
            (Event::TraceSock(event), Level::Debug) => format!("{cpu} {}", socket(event)),
            (Event::TraceSock(_), _) => return Ok(()),
            (Event::AccessLog(record), Level::Json) => access_log::json(record),
            (Event::AccessLog(record), _) => access_log::line(record),
            (Event::Agent(event), Level::Json) => json::agent(event),
            (Event::Agent(event), _) => agent(event),
        };
        writeln!(out, "{text}")
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

    fn debug(&self, event: &DebugMsg) -> String {
        event.text(&|index| self.interfaces.name(index))
    }

    fn dropped(&self, event: &DropNotify<'_>) -> String {
        format!(
            "xx drop ({}) flow {:#x} to endpoint {}, ifindex {}, file {}:{}, {}, identity {}->{}: {}",
            event.reason_text(),
            event.header.hash,
            event.destination,
            event.ifindex,
            names::source_file(event.file),
            event.line,
            trace_id(event.ip_trace_id),
            self.identity(event.source_identity),
            self.identity(event.destination_identity),
            packet(event.packet, event.flags).connection()
        )
    }

    fn trace(&self, event: &TraceNotify<'_>) -> String {
        let encrypted = if event.is_encrypted() { "encrypted " } else { "" };
        format!(
            "{} {encrypted}{}flow {:#x} , identity {}->{}{} state {} ifindex {} orig-ip {}: {}",
            trace_summary(event),
            // Cilium's form has two blanks here.
            if event.is_encrypted() { " " } else { "" },
            event.header.hash,
            self.identity(event.source_identity),
            self.identity(event.destination_identity),
            trace_id(event.ip_trace_id),
            names::trace_reason(event.trace_reason()),
            self.interface(event.ifindex),
            event.original_source(),
            packet(event.packet, event.flags).connection()
        )
    }

    fn verdict(&self, event: &PolicyVerdictNotify<'_>) -> String {
        let start = Start::of(event.is_l3_device(), event.is_ipv6());
        format!(
            "Policy verdict log: flow {:#x} local EP ID {}, remote ID {}, proto {}, {}, action {}, auth: {}, match {}, {}",
            event.header.hash,
            event.header.source,
            self.identity(event.remote_identity),
            event.proto,
            if event.is_ingress() { "ingress" } else { "egress" },
            event.action().name(),
            names::auth_type(event.auth),
            names::policy_match(event.policy_match()),
            Packet::dissect(event.packet, start, None).connection()
        )
    }

    fn capture(&self, event: &DebugCapture<'_>) -> Option<String> {
        let prefix = self.capture_prefix(event)?;
        let packet = Packet::dissect(event.packet, Start::Ethernet, None);
        Some(format!("{prefix}: {}", packet.connection()))
    }

    pub(super) fn capture_prefix(&self, event: &DebugCapture<'_>) -> Option<String> {
        event.prefix(&|index| self.interfaces.name(index))
    }
}

/// Endpoints that an event is about, as filters compare them: where the packet comes from, and where it goes.
fn ends(event: &Event<'_>) -> (u16, u16) {
    match event {
        Event::Drop(event) => (event.header.source, event.destination as u16),
        Event::Trace(event) => (event.header.source, event.destination),
        Event::PolicyVerdict(event) => (event.header.source, 0),
        Event::Debug(event) => (event.source, 0),
        Event::Capture(event) => (event.header.source, 0),
        Event::AccessLog(record) => (record.source.id as u16, record.destination.id as u16),
        Event::Agent(_) | Event::TraceSock(_) => (0, 0),
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

fn trace_id(id: u64) -> String {
    match id {
        0 => String::new(),
        id => format!(" [ ip-trace-id = {id} ]"),
    }
}

/// A translation of a socket's address. The blank at the end is Cilium's.
fn socket(event: &TraceSockNotify) -> String {
    format!(
        "[{}] cgroup_id: {} sock_cookie: {}, dst [{}]:{} {} ",
        names::socket_point(event.point),
        event.cgroup_id,
        event.cookie,
        event.addr(),
        event.port,
        event.protocol()
    )
}

fn agent(event: &AgentNotify) -> String {
    format!(">> {}: {}", event.name(), event.text)
}

/// An error and its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

/// How long the name of an interface is believed.
const NAMES_FOR: Duration = Duration::from_secs(15);

/// Names of interfaces of this network namespace.
struct Interfaces {
    known: std::cell::RefCell<HashMap<u32, Option<String>>>,
    since: Instant,
}

impl Default for Interfaces {
    fn default() -> Self {
        Self {
            known: std::cell::RefCell::default(),
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
