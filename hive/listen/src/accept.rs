// SPDX-License-Identifier: Apache-2.0

//! Errors of `accept(2)`: which end one connection, and how long to wait after the others.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;

/// The first pause.
const FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// Errors of the connection that was to be accepted: the next one may be fine. (`accept(2)` returns errors of the network
/// that are pending on the new socket.)
const OF_CONNECTION: [Errno; 11] = [
    Errno::CONNABORTED,
    Errno::CONNRESET,
    Errno::HOSTDOWN,
    Errno::HOSTUNREACH,
    Errno::INTR,
    Errno::NETDOWN,
    Errno::NETUNREACH,
    Errno::NONET,
    Errno::NOPROTOOPT,
    Errno::PROTO,
    Errno::TIMEDOUT,
];

/// Pauses after errors of the process or the system, most often that there are no descriptors left.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    pause: Option<Duration>,
    /// When to accept again; `None` for at once.
    pub(crate) until: Option<Instant>,
}

/// What to log about an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// One connection failed.
    Connection,
    /// Connections are no longer accepted.
    Failing,
    /// They are still not accepted.
    StillFailing,
}

impl Backoff {
    /// Notes an error of `accept`.
    pub(crate) fn failed(&mut self, error: &io::Error) -> Severity {
        if Errno::from_io_error(error).is_some_and(|errno| OF_CONNECTION.contains(&errno)) {
            return Severity::Connection;
        }
        let last = self.pause;
        let pause = last.map_or(FIRST, |pause| (pause * 2).min(LONGEST));
        self.pause = Some(pause);
        self.until = Some(Instant::now() + pause);
        match last {
            None => Severity::Failing,
            Some(_) => Severity::StillFailing,
        }
    }

    /// Notes an accepted connection; whether errors came before it.
    pub(crate) fn succeeded(&mut self) -> bool {
        self.until = None;
        self.pause.take().is_some()
    }

    /// Accepts at once: a connection ended, so that there are descriptors.
    pub(crate) fn retry(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_and_are_logged_once() {
        let mut backoff = Backoff::default();
        let full = io::Error::from(Errno::MFILE);
        let mut pauses = Vec::new();

        assert_eq!(backoff.failed(&full), Severity::Failing);
        for _ in 0..8 {
            assert_eq!(backoff.failed(&full), Severity::StillFailing);
            pauses.push(backoff.until.unwrap().duration_since(Instant::now()).as_millis());
        }

        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert!(backoff.succeeded());
        assert!(!backoff.succeeded());
        assert_eq!(backoff.failed(&full), Severity::Failing);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_failed_delays_no_other() {
        let mut backoff = Backoff::default();

        let severity = backoff.failed(&io::Error::from(Errno::CONNABORTED));

        assert_eq!((severity, backoff.until), (Severity::Connection, None));
    }
}
