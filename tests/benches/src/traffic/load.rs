// SPDX-License-Identifier: Apache-2.0

//! Loads: connections, requests, bytes. Both ends are served by one thread on one processor, and packets go their way
//! within its system calls: nothing sleeps or wakes another, so what is measured is the path.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use rustix::time::ClockId;

use crate::usage;

const KEPT: usize = 16;
/// Bytes of a request, and of a response.
const REQUEST: usize = 64;
/// Bytes that are written at once in a transfer.
const CHUNK: usize = 64 << 10;
/// Rounds between two looks at the clock.
const BETWEEN: u32 = 16;
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Send as much as they can over one connection.
    Transfer,
    /// Ask and get an answer, over connections that are kept.
    Requests,
    /// Connect; the server closes, then the client does.
    Connections,
}

impl Load {
    pub(super) const ALL: [Self; 3] = [Self::Transfer, Self::Requests, Self::Connections];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Transfer => "transfer",
            Self::Requests => "requests",
            Self::Connections => "connections",
        }
    }

    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Transfer => "Gbit/s",
            Self::Requests | Self::Connections => "1/s",
        }
    }
}

/// The clock of rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Clock {
    /// Wall-clock time.
    Wall,
    /// Processor time of the thread, for machines that do other things as well. Packets must count as work of the thread:
    /// a kernel without CONFIG_IRQ_TIME_ACCOUNTING.
    Processor,
}

impl Clock {
    fn now(self) -> Duration {
        usage::clock(match self {
            Self::Wall => ClockId::Monotonic,
            Self::Processor => ClockId::ThreadCPUTime,
        })
    }
}

/// Measures for how long a load runs.
#[derive(Debug, Clone, Copy)]
struct Watch {
    clock: Clock,
    start: Duration,
}

impl Watch {
    fn start(clock: Clock) -> Self {
        Self {
            clock,
            start: clock.now(),
        }
    }

    fn elapsed(self) -> Duration {
        self.clock.now() - self.start
    }
}

/// Where clients connect to, and what gets the connection.
pub(super) type Served = (SocketAddr, TcpListener);

/// The address that a server sees.
pub(super) fn source((target, server): &Served) -> io::Result<SocketAddr> {
    server.set_nonblocking(true)?;
    let client = TcpStream::connect_timeout(target, PATIENCE)?;
    let accepted = server.accept();
    server.set_nonblocking(false)?;
    drop(client);
    Ok(accepted?.1)
}

/// Clients in the namespace of the calling thread ask `targets` in turn. Returns how much was done a second, in the unit of
/// the load.
pub(super) fn run(load: Load, targets: &[Served], time: Duration, clock: Clock) -> io::Result<f64> {
    match load {
        Load::Transfer => transfer(&targets[0], time, clock),
        Load::Requests => requests(targets, time, clock),
        Load::Connections => connections(targets, time, clock),
    }
}

/// A connection: the client's end, and the server's.
fn connect((target, server): &Served) -> io::Result<(TcpStream, TcpStream)> {
    let client = TcpStream::connect(target)?;
    let (served, _) = server.accept()?;
    for end in [&client, &served] {
        end.set_nodelay(true)?;
    }
    Ok((client, served))
}

/// Repeats `step` for a time; returns how often a second.
fn repeat(time: Duration, clock: Clock, mut step: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let start = Watch::start(clock);
    let mut count = 0_u32;
    loop {
        for _ in 0..BETWEEN {
            step()?;
        }
        count += BETWEEN;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok(f64::from(count) / elapsed.as_secs_f64());
        }
    }
}

fn connections(targets: &[Served], time: Duration, clock: Clock) -> io::Result<f64> {
    let mut turns = targets.iter().cycle();
    repeat(time, clock, || {
        let Some((target, server)) = turns.next() else {
            return Ok(());
        };
        let mut client = TcpStream::connect(target)?;
        // The server closes first, and has the ports in TIME_WAIT: those of the client are free at once.
        drop(server.accept()?);
        match client.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(ErrorKind::InvalidData.into()),
            Err(error) => Err(error),
        }
    })
}

fn requests(targets: &[Served], time: Duration, clock: Clock) -> io::Result<f64> {
    let turns = targets.iter().cycle().take(KEPT.max(targets.len()));
    let mut kept: Vec<_> = turns.map(connect).collect::<io::Result<_>>()?;
    let (mut message, mut next) = ([0x5a; REQUEST], 0);
    repeat(time, clock, || {
        let count = kept.len();
        let (client, served) = &mut kept[next];
        next = (next + 1) % count;
        client.write_all(&message)?;
        served.read_exact(&mut message)?;
        served.write_all(&message)?;
        client.read_exact(&mut message)
    })
}

fn transfer(target: &Served, time: Duration, clock: Clock) -> io::Result<f64> {
    let (mut client, mut served) = connect(target)?;
    client.set_nonblocking(true)?;
    let (chunk, mut buffer) = (vec![0x5a; CHUNK], vec![0; CHUNK]);
    let mut bytes = 0_u64;
    let start = Watch::start(clock);
    loop {
        // Never more than the kernel takes at once: the reader is this thread.
        let written = match client.write(&chunk) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            written => written?,
        };
        served.read_exact(&mut buffer[..written])?;
        bytes += written as u64;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok(bytes as f64 * 8e-9 / elapsed.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_gets_something_done() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = server.local_addr().unwrap();

        let target = (at, server);
        assert_eq!(source(&target).unwrap().ip(), at.ip());
        for load in Load::ALL {
            for clock in [Clock::Wall, Clock::Processor] {
                let time = Duration::from_millis(20);
                let rate = run(load, std::slice::from_ref(&target), time, clock).unwrap();
                assert!(rate > 0.0, "{load:?} by {clock:?}");
            }
        }
    }
}
