// SPDX-License-Identifier: Apache-2.0

//! How long packets wait on a processor that does something else.
//!
//! One thread sends packets over the loopback interface, whose packets are received on the other processor
//! (receive packet steering), and waits for each without sleeping. Between two of them is a pause: the kernel leaves a flood of packets
//! to a thread, `ksoftirqd`, which waits for its turn beside the one that works.

use std::{
    fs, io,
    net::UdpSocket,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::mount::{MountFlags, mount};

use crate::usage::pin;

const SENDER: usize = 0;
/// The processor that receives packets, and works.
const WORKER: usize = 1;
/// From the arrival of a packet until the next one is sent.
const PAUSE: Duration = Duration::from_micros(50);
/// A packet that does not arrive within this time is lost.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Delays {
    pub(super) longest: Duration,
    pub(super) packets: u32,
}

/// Lets packets of the loopback interface of this thread's namespace be received on the processor that works. `folder` is
/// for a mount.
pub(super) fn steer(folder: &Path) -> anyhow::Result<()> {
    let root = folder.join("sys");
    fs::create_dir_all(&root)?;
    // That of the node shows interfaces of its own namespace.
    mount("sysfs", &root, "sysfs", MountFlags::empty(), None).context("mounting sysfs")?;
    let setting = root.join("class/net/lo/queues/rx-0/rps_cpus");
    fs::write(&setting, format!("{:x}", 1 << WORKER)).with_context(|| setting.display().to_string())
}

/// Runs `work` on the processor that receives, and packets meanwhile.
pub(super) fn during<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Delays)> {
    let (has_begun, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    pin(WORKER)?;
    std::thread::scope(|scope| {
        let packets = scope.spawn(|| send(&has_begun, &is_done));
        while !has_begun.load(Ordering::Acquire) && !packets.is_finished() {
            std::thread::yield_now();
        }
        let done = work();
        is_done.store(true, Ordering::Release);
        let delays = packets
            .join()
            .map_err(|_| anyhow::anyhow!("the thread that sends packets panicked"))?;
        Ok((done?, delays.context("packets over loopback")?))
    })
}

fn send(has_begun: &AtomicBool, is_done: &AtomicBool) -> io::Result<Delays> {
    pin(SENDER)?;
    let receiver = UdpSocket::bind("127.0.0.1:0")?;
    receiver.set_nonblocking(true)?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    sender.connect(receiver.local_addr()?)?;
    let mut delays = Delays::default();
    while !is_done.load(Ordering::Acquire) {
        let sent = Instant::now();
        sender.send(&[0])?;
        while let Err(error) = receiver.recv(&mut [0]) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            if sent.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        // Neighbours and caches are cold at first.
        if delays.packets > 0 {
            delays.longest = delays.longest.max(sent.elapsed());
        }
        delays.packets += 1;
        has_begun.store(true, Ordering::Release);
        let arrived = Instant::now();
        while arrived.elapsed() < PAUSE {
            std::hint::spin_loop();
        }
    }
    Ok(delays)
}
