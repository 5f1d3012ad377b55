// SPDX-License-Identifier: Apache-2.0

//! Notifies the service manager of the state of the program: the protocol of `sd_notify(3)`.
//!
//! For units of `Type=notify`: `READY=1` once the hive is ready, `STOPPING=1` when it is asked to stop, and with
//! `WatchdogSec=` a sign of life twice per period. Without `NOTIFY_SOCKET` in the environment nothing is sent.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::engine::Engine;

/// The socket of the service manager.
#[derive(Clone)]
pub(super) struct Notifier(Arc<UnixDatagram>);

impl Notifier {
    /// The one that the environment names. A name that cannot be used is logged: the program runs without.
    pub(super) fn from_env(env: &[(String, String)]) -> Option<Self> {
        let name = value(env, "NOTIFY_SOCKET")?;
        match open(name) {
            Ok(socket) => Some(Self(Arc::new(socket))),
            Err(error) => {
                tracing::warn!(%error, socket = name, "Cannot notify the service manager");
                None
            }
        }
    }

    /// Sends assignments such as `READY=1`, one a line. What cannot be sent is logged.
    pub(super) fn send(&self, state: &str) {
        if let Err(error) = self.0.send(state.as_bytes()) {
            tracing::debug!(%error, state, "Service manager does not receive notifications");
        }
    }

    /// Notifies of readiness, of the request to stop, and that the program lives. The task ends with the notification of the
    /// request to stop.
    pub(super) fn follow(&self, engine: &Engine, env: &[(String, String)]) -> JoinHandle<()> {
        let (readiness, shutdown) = (engine.readiness.clone(), engine.shutdown.clone());
        let phases = self.clone();
        let notifying = tokio::spawn(async move {
            phases.send("STATUS=Starting\n");
            let cause = tokio::select! {
                biased;
                cause = shutdown.wait() => cause,
                () = readiness.ready() => {
                    phases.send("READY=1\nSTATUS=Running\n");
                    shutdown.wait().await
                }
            };
            // One line each: the text of an error may have several.
            let cause = cause.to_string().replace('\n', " ");
            phases.send(&format!("STOPPING=1\nSTATUS=Stopping: {cause}\n"));
        });
        if let Some(interval) = watchdog_interval(env, std::process::id()) {
            let alive = self.clone();
            tokio::spawn(async move {
                loop {
                    alive.send("WATCHDOG=1\n");
                    tokio::time::sleep(interval).await;
                }
            });
        }
        notifying
    }
}

/// Waits until the service manager is notified of the request to stop, which has been made: a stop may take less time than
/// the task that notifies it.
pub(super) async fn notified_of_stop(notifying: Option<JoinHandle<()>>) {
    if let Some(notifying) = notifying {
        // It can only end; a panic in it is printed.
        let _ = notifying.await;
    }
}

fn open(name: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold up the program.
    socket.set_nonblocking(true)?;
    match name.strip_prefix('@') {
        Some(name) => socket.connect_addr(&abstract_address(name)?)?,
        None => socket.connect(name)?,
    }
    Ok(socket)
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_name: &str) -> io::Result<SocketAddr> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "names in the abstract namespace are of Linux only",
    ))
}

/// How often the service manager wants a sign of life: twice in its period, if it watches this process.
fn watchdog_interval(env: &[(String, String)], process: u32) -> Option<Duration> {
    let micros: u64 = value(env, "WATCHDOG_USEC")?.parse().ok()?;
    let watched = value(env, "WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(process));
    (watched && micros > 0).then(|| Duration::from_micros(micros) / 2)
}

fn value<'a>(env: &'a [(String, String)], name: &str) -> Option<&'a str> {
    env.iter()
        .find(|(key, value)| key == name && !value.is_empty())
        .map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn watchdog_is_for_the_process_that_is_named() {
        let of = |pairs: &[(&str, &str)]| watchdog_interval(&env(pairs), 7);
        assert_eq!(
            of(&[("WATCHDOG_USEC", "3000000")]),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(
            of(&[("WATCHDOG_USEC", "2000"), ("WATCHDOG_PID", "7")]),
            Some(Duration::from_millis(1))
        );
        assert_eq!(of(&[("WATCHDOG_USEC", "2000"), ("WATCHDOG_PID", "8")]), None);
        assert_eq!(of(&[("WATCHDOG_USEC", "0")]), None);
        assert_eq!(of(&[("WATCHDOG_USEC", "soon")]), None);
        assert_eq!(of(&[]), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn speaks_to_sockets_of_the_abstract_namespace() {
        let name = format!("hive-notify-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&abstract_address(&name).unwrap()).unwrap();
        let notifier = Notifier::from_env(&env(&[("NOTIFY_SOCKET", &format!("@{name}"))])).unwrap();

        notifier.send("READY=1\n");

        let mut text = [0; 64];
        let length = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1\n");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn manager_that_does_not_read_holds_nobody_up() {
        let name = format!("hive-notify-busy-{}", std::process::id());
        let _manager = UnixDatagram::bind_addr(&abstract_address(&name).unwrap()).unwrap();
        let notifier = Notifier::from_env(&env(&[("NOTIFY_SOCKET", &format!("@{name}"))])).unwrap();

        // Far more than the queue of the socket takes.
        let (done, waiting) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            (0..5_000).for_each(|_| notifier.send("WATCHDOG=1\n"));
            let _ = done.send(());
        });

        assert!(waiting.recv_timeout(Duration::from_secs(10)).is_ok(), "it waits");
    }

    #[test]
    fn socket_that_is_not_there_is_no_reason_to_fail() {
        assert!(Notifier::from_env(&env(&[("NOTIFY_SOCKET", "/nowhere/notify")])).is_none());
    }
}
