// SPDX-License-Identifier: Apache-2.0

//! Events as lines, in the form of Cilium's command.

use std::io::{self, Write};

use skep_datapath_monitor_events::{
    agent::AgentNotify,
    event::{
        DebugCapture, DropNotify, Event, MessageType, PolicyVerdictNotify, TraceNotify, TraceSockNotify,
    },
    names,
    packet::{Packet, Start},
    payload::Payload,
};

use super::view::{View, packet, trace_summary};
use super::{access_log, json, verbose};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// One line an event, without messages of programs.
    Info,
    Debug,
    Verbose,
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

pub(super) struct Formatter {
    pub(super) level: Level,
    view: View,
    filter: Filter,
}

impl Formatter {
    pub(super) fn new(level: Level, hex: bool, numeric: bool, filter: Filter) -> Self {
        Self {
            level,
            view: View::new(hex, numeric),
            filter,
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
        self.view.forget_old_names();
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
            (Event::Drop(event), Level::Verbose) => verbose::dropped(&self.view, cpu, event),
            (Event::Drop(event), _) => self.dropped(event),
            (Event::Trace(event), Level::Json) => json::trace(&self.view, cpu, event),
            (Event::Trace(event), Level::Verbose) => verbose::trace(&self.view, cpu, event),
            (Event::Trace(event), _) => self.trace(event),
            (Event::Capture(event), Level::Json) => json::capture(&self.view, cpu, event),
            (Event::Capture(event), Level::Verbose) => verbose::capture(&self.view, cpu, event),
            (Event::Capture(event), _) => match self.capture(event) {
                Some(line) => line,
                None => return Ok(()),
            },
            (Event::Debug(event), Level::Json) => json::debug(cpu, &self.view.debug(event)),
            (Event::Debug(_), Level::Info) => return Ok(()),
            (Event::Debug(event), _) => format!(
                "{cpu} MARK {:#x} FROM {} DEBUG: {}",
                event.hash,
                event.source,
                self.view.debug(event)
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
            self.view.identity(event.source_identity),
            self.view.identity(event.destination_identity),
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
            self.view.identity(event.source_identity),
            self.view.identity(event.destination_identity),
            trace_id(event.ip_trace_id),
            names::trace_reason(event.trace_reason()),
            self.view.interface(event.ifindex),
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
            self.view.identity(event.remote_identity),
            event.proto,
            if event.is_ingress() { "ingress" } else { "egress" },
            event.action().name(),
            names::auth_type(event.auth),
            names::policy_match(event.policy_match()),
            Packet::dissect(event.packet, start, None).connection()
        )
    }

    fn capture(&self, event: &DebugCapture<'_>) -> Option<String> {
        let prefix = self.view.capture_prefix(event)?;
        let packet = Packet::dissect(event.packet, Start::Ethernet, None);
        Some(format!("{prefix}: {}", packet.connection()))
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

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}
