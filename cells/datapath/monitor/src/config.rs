// SPDX-License-Identifier: Apache-2.0

//! Settings of the monitor.

use std::path::PathBuf;

/// Settings of the monitor.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Enable the monitor: events of programs and of the agent on a unix socket.
    #[config(default = true, flag = "enable-monitor")]
    pub enabled: bool,
    /// Size of a listener's event queue; further events are lost. 0: 1024 per CPU, at most 16384.
    #[config(default = 0, flag = "monitor-queue-size")]
    pub queue_size: u32,
    /// Path of the monitor's socket.
    #[config(default = "/var/run/cilium/monitor1_2.sock", flag = "monitor-socket-path")]
    pub socket: PathBuf,
}

/// Most events that wait for a listener if the setting does not say how many.
const MOST: usize = 16384;

impl Config {
    /// Events that wait for a listener, on a machine with this many CPUs.
    pub(crate) fn queue(&self, cpus: usize) -> usize {
        match self.queue_size {
            0 => cpus.saturating_mul(1024).clamp(1, MOST),
            size => size as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_grows_with_the_machine() {
        let queue = |queue_size, cpus| {
            Config {
                enabled: true,
                queue_size,
                socket: PathBuf::new(),
            }
            .queue(cpus)
        };
        assert_eq!(queue(0, 2), 2048);
        assert_eq!(queue(0, 64), 16384);
        assert_eq!(queue(50_000, 2), 50_000);
    }
}
