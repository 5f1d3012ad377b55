// SPDX-License-Identifier: Apache-2.0

//! `skep monitor`: events of programs and of the agent, as they happen.

mod access_log;
mod format;
mod json;
mod verbose;
mod view;

use std::{
    io::{self, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use clap::{ArgAction, Args};
use skep_base_api_client::Client;
use skep_base_api_types::{Endpoint, StatusResponse};
use skep_datapath_monitor_events::{event::MessageType, gob::GobError, payload::PayloadReader};

use crate::status;
use format::{Filter, Formatter, Level};

/// Pause before a connection that was closed is opened again: the agent restarts.
const RECONNECT: Duration = Duration::from_secs(12);
/// How often the agent is asked whether it reads events by now.
const ASK: usize = 5;
/// Pause between two of those.
const ASK_PAUSE: Duration = Duration::from_millis(40);

/// Options of `skep monitor`.
#[derive(Debug, Args)]
pub(crate) struct MonitorCommand {
    /// Filter by event type: drop, debug, capture, trace, policy-verdict, trace-sock, l7, agent.
    #[arg(short = 't', long = "type", value_name = "TYPE", value_delimiter = ',', value_parser = message_type)]
    types: Vec<MessageType>,
    /// Filter by source endpoint.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    from: Vec<u16>,
    /// Filter by destination endpoint.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    to: Vec<u16>,
    /// Filter by source or destination endpoint.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    related_to: Vec<u16>,
    /// Show debug and socket events; twice: all packet layers.
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Print packets in hex (with -vv).
    #[arg(long)]
    hex: bool,
    /// Print JSON lines.
    #[arg(short, long)]
    json: bool,
    /// Print numeric reserved identities.
    #[arg(short, long)]
    numeric: bool,
    /// The monitor's socket.
    #[arg(
        long,
        env = "CILIUM_MONITOR_SOCK",
        default_value = "/var/run/cilium/monitor1_2.sock"
    )]
    monitor_socket: PathBuf,
}

/// Why there are no more events.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MonitorError {
    /// Is the agent running, and enable-monitor on? Has the socket another path?
    #[error("Cannot open monitor socket {} (is the agent running? see --monitor-socket)", path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// `skep endpoint list` has the ids.
    #[error("no endpoint of --from, --to and --related-to exists")]
    NoEndpoint,
    /// It sends what no monitor sends: is it the monitor's socket?
    #[error("decoding error")]
    Decode(#[from] GobError),
    /// The connection broke.
    #[error("cannot read from the monitor")]
    Read(#[source] io::Error),
    /// What was read cannot be printed.
    #[error("cannot write the output")]
    Write(#[source] io::Error),
}

fn message_type(name: &str) -> Result<MessageType, String> {
    let found = MessageType::ALL.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| {
        let names = MessageType::ALL.map(MessageType::name);
        format!("types are {}", names.join(", "))
    })
}

impl MonitorCommand {
    fn formatter(&self, is_json: bool) -> Formatter {
        Formatter::new(
            match self.verbose {
                _ if self.json || is_json => Level::Json,
                0 => Level::Info,
                1 => Level::Debug,
                _ => Level::Verbose,
            },
            self.hex,
            self.numeric,
            Filter {
                types: self.types.clone(),
                from: self.from.clone(),
                to: self.to.clone(),
                related: self.related_to.clone(),
            },
        )
    }
}

/// Id of the host in events.
const HOST: u16 = 0;

impl MonitorCommand {
    /// Names endpoints of filters that are not there; fails if none is. Without an answer of the agent, events are
    /// printed as they come.
    fn check_endpoints(&self, agent: &Client) -> Result<(), MonitorError> {
        let filters = [&self.from, &self.to, &self.related_to];
        let mut wanted: Vec<u16> = filters.into_iter().flatten().copied().collect();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            return Ok(());
        }
        let Ok(there) = agent.get::<Vec<Endpoint>>("endpoint", &[]) else {
            return Ok(());
        };
        let is_missing = |id: &u16| *id != HOST && there.iter().all(|endpoint| endpoint.id != *id);
        let missing: Vec<u16> = wanted.iter().copied().filter(is_missing).collect();
        for id in &missing {
            eprintln!("endpoint {id} not found");
        }
        match missing.len() < wanted.len() {
            true => Ok(()),
            false => Err(MonitorError::NoEndpoint),
        }
    }
}

/// Prints events until the connection breaks or the output is closed; opens it again when the agent closes it.
pub(crate) fn run(command: &MonitorCommand, agent: &Client, is_json: bool) -> Result<(), MonitorError> {
    let mut formatter = command.formatter(is_json);
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut stream = open(&command.monitor_socket)?;
    if let Some(line) = listening(agent) {
        eprintln!("{line}");
    }
    command.check_endpoints(agent)?;
    eprintln!("Press Ctrl-C to quit");
    loop {
        follow(stream, &mut formatter, &mut out)?;
        eprintln!("connection closed, connecting again in {} s", RECONNECT.as_secs());
        thread::sleep(RECONNECT);
        stream = open(&command.monitor_socket)?;
    }
}

fn open(path: &Path) -> Result<UnixStream, MonitorError> {
    UnixStream::connect(path).map_err(|cause| MonitorError::Open {
        path: path.to_owned(),
        cause,
    })
}

/// How the agent reads events; `None` if it does not say so: events are printed without.
fn listening(agent: &Client) -> Option<String> {
    for _ in 0..ASK {
        let status: StatusResponse = agent.get("healthz", &[]).ok()?;
        if let Some(rings) = status.node_monitor {
            return Some(status::monitor(&rings));
        }
        // The agent opens the event rings once it has noticed the new listener.
        thread::sleep(ASK_PAUSE);
    }
    None
}

/// Prints events until the other side closes the connection.
fn follow(
    mut stream: impl io::Read,
    formatter: &mut Formatter,
    out: &mut impl Write,
) -> Result<(), MonitorError> {
    let mut reader = PayloadReader::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        while let Some(payload) = reader.next_payload()? {
            formatter.print(&payload, out).map_err(MonitorError::Write)?;
        }
        // What was printed is seen before the next event is waited for.
        out.flush().map_err(MonitorError::Write)?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => reader.push(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(MonitorError::Read(error)),
        }
    }
}

#[cfg(test)]
mod tests;
