// SPDX-License-Identifier: Apache-2.0

//! A small world for one test: network namespace, cgroup and BPF file system of its own.
//!
//! [`Node::run`] runs a closure on a thread that lives in such a world; threads it starts are born there,
//! too. Sockets they make belong to the cgroup, so programs attached to it translate their calls and no
//! others. Everything is gone when the closure returns or panics. Needs root and cgroup v2; tests can run
//! side by side, in one process or several.
//!
//! ```no_run
//! use skep_bpf_sys::testing::Node;
//!
//! Node::run("example", |node| {
//!     node.add_address("10.244.0.1".parse()?)?;
//!     let pod = node.pod("client")?;
//!     pod.run(|| println!("in another network namespace"));
//!     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

mod calls;
mod program;

use std::{
    fs, io,
    net::{IpAddr, UdpSocket},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    mount::mount_bind,
    thread::{UnshareFlags, unshare_unsafe},
};

use skep_base_net::{LinkSpec, Netlink, netns};

pub use self::{
    calls::{CallWatch, Calls, Watched},
    program::{ProgramKind, pin, program},
};
use crate::{mount, store::MapStore};

/// Brings loopback up in the network namespace of the calling thread.
fn bring_up_loopback() -> io::Result<()> {
    let net = Netlink::open()?;
    Ok(net.set_link(&net.link("lo")?, LinkSpec::new().up())?)
}

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// How many times slower than usual this machine is, as `SKEP_TEST_SLOWNESS` says where it is emulated; 1 elsewhere.
///
/// # Panics
///
/// If the variable is not a number.
#[must_use]
pub fn slowness() -> u32 {
    match std::env::var("SKEP_TEST_SLOWNESS") {
        Ok(times) => times.parse().expect("SKEP_TEST_SLOWNESS is a number"),
        Err(_) => 1,
    }
}

/// The world of one test, seen from inside.
#[derive(Debug)]
pub struct Node {
    directory: PathBuf,
    cgroup: PathBuf,
    netns_cookie: u64,
}

/// A network namespace beside the node's, in the same cgroup.
#[derive(Debug, Clone)]
pub struct Pod {
    path: PathBuf,
    netns_cookie: u64,
}

fn named(what: impl AsRef<str>) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", what.as_ref()))
}

impl Node {
    /// Runs `work` in a new world named after `name` and takes the world down.
    ///
    /// # Errors
    ///
    /// What `work` fails with, or the `io::Error` that kept the world from being made.
    ///
    /// # Panics
    ///
    /// If `work` does.
    pub fn run<T, E>(name: &str, work: impl FnOnce(&Self) -> Result<T, E> + Send) -> Result<T, E>
    where
        T: Send,
        E: From<io::Error> + Send,
    {
        let (unique, cgroup) = loop {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let unique = format!("skep-{name}-{}-{serial}", std::process::id());
            match Cgroup::create(&unique) {
                // Of a test that was killed, whose process id this process has got.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => break (unique, created?),
            }
        };
        let directory = std::env::temp_dir().join(&unique);
        let result = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn_scoped(scope, || {
                    let node = Self::enter(&directory, &cgroup)?;
                    work(&node)
                });
            match thread.map(std::thread::ScopedJoinHandle::join) {
                Ok(joined) => joined,
                Err(error) => Ok(Err(E::from(error))),
            }
        });
        // The mounts went with the thread's mount namespace.
        drop(cgroup);
        let _ = fs::remove_dir_all(&directory);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn enter(directory: &Path, cgroup: &Cgroup) -> io::Result<Self> {
        fs::create_dir_all(directory).map_err(named(format!("directory {}", directory.display())))?;
        // SAFETY: this thread was just started and shares no file descriptors or cwd that anybody relies on.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::FS) }
            .map_err(io::Error::from)
            .map_err(named("unshare"))?;
        cgroup.enter()?;
        mount::private_bpffs(&directory.join("bpf")).map_err(io::Error::other)?;
        bring_up_loopback().map_err(named("loopback interface"))?;
        let netns_cookie = netns::cookie().map_err(io::Error::other)?;
        Ok(Self {
            directory: directory.to_owned(),
            cgroup: cgroup.path.clone(),
            netns_cookie,
        })
    }

    /// Root of the BPF file system.
    pub fn bpf_root(&self) -> PathBuf {
        self.directory.join("bpf")
    }

    /// The cgroup, to attach programs to.
    pub fn cgroup_root(&self) -> &Path {
        &self.cgroup
    }

    /// Directory for files of the test; removed at the end.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Cookie of the node's network namespace.
    pub fn netns_cookie(&self) -> u64 {
        self.netns_cookie
    }

    /// A store on the node's BPF file system.
    pub fn store(&self) -> Arc<MapStore> {
        MapStore::new(self.bpf_root())
    }

    /// Makes `address` one of the node's own, on its loopback interface.
    #[allow(clippy::unused_self, reason = "whoever holds a node is in its namespace")]
    pub fn add_address(&self, address: IpAddr) -> io::Result<()> {
        let added = Netlink::open().and_then(|net| net.add_address(&net.link("lo")?, address.into()));
        added.map_err(|error| named(format!("address {address}"))(error.into()))?;
        // The route to an IPv6 address comes a moment later.
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            match UdpSocket::bind((address, 0)).and_then(|socket| socket.connect((address, 9))) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                result => return result.map_err(named(format!("address {address}"))),
            }
        }
    }

    /// Makes another network namespace, with loopback up.
    pub fn pod(&self, name: &str) -> io::Result<Pod> {
        let path = self.directory.join(format!("netns-{name}"));
        fs::write(&path, "").map_err(named(path.display().to_string()))?;
        let made = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    // SAFETY: a new thread that only makes the namespace; it ends right after.
                    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
                    bring_up_loopback()?;
                    mount_bind("/proc/thread-self/ns/net", &path)?;
                    netns::cookie().map_err(io::Error::other)
                })
                .join()
        });
        let netns_cookie = made
            .map_err(|_| io::Error::other("thread panicked"))
            .flatten()
            .map_err(named(format!("pod {name}")))?;
        Ok(Pod { path, netns_cookie })
    }
}

impl Pod {
    /// File of the network namespace, visible inside the node's mount namespace.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn netns_cookie(&self) -> u64 {
        self.netns_cookie
    }

    /// Runs `work` on a thread inside the namespace.
    ///
    /// # Panics
    ///
    /// If the namespace cannot be entered, or `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match netns::inside(&self.path, work) {
            Ok(value) => value,
            Err(error) => panic!(
                "{error}: {}",
                std::error::Error::source(&error).map_or_else(String::new, ToString::to_string)
            ),
        }
    }
}

/// A cgroup for the threads of one test, below the one of this process.
#[derive(Debug)]
struct Cgroup {
    path: PathBuf,
    parent: PathBuf,
    /// Single threads can be moved; if not, the whole process is.
    threaded: bool,
}

impl Cgroup {
    fn create(name: &str) -> io::Result<Self> {
        let root = mount::cgroup2(None).map_err(io::Error::other)?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .unwrap_or_default();
        let parent = root.join(own);
        let path = parent.join(name);
        fs::create_dir(&path).map_err(named(format!("cgroup {}", path.display())))?;
        let threaded = fs::write(path.join("cgroup.type"), "threaded").is_ok();
        Ok(Self {
            path,
            parent,
            threaded,
        })
    }

    fn enter(&self) -> io::Result<()> {
        let (file, id) = if self.threaded {
            ("cgroup.threads", rustix::thread::gettid().as_raw_nonzero().get())
        } else {
            ("cgroup.procs", std::process::id() as i32)
        };
        fs::write(self.path.join(file), id.to_string())
            .map_err(named(format!("cgroup {}", self.path.display())))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if !self.threaded {
            let _ = fs::write(self.parent.join("cgroup.procs"), std::process::id().to_string());
        }
        // Threads leave a moment after they were joined; those that were not go on outside.
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.path).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
            && Instant::now() < deadline
        {
            let threads = fs::read_to_string(self.path.join("cgroup.threads")).unwrap_or_default();
            for thread in threads.lines() {
                let _ = fs::write(self.parent.join("cgroup.threads"), thread);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_that_a_killed_test_left_is_skipped() {
        let cgroup = || Node::run("left", |node| Ok::<_, io::Error>(node.cgroup_root().to_owned()));
        let first = cgroup().unwrap();
        let (prefix, serial) = first.to_str().unwrap().rsplit_once('-').unwrap();
        let serial: u32 = serial.parse().unwrap();
        // In a process of many tests, others may take the first of these serials.
        let left: Vec<PathBuf> = (1..=8)
            .map(|n| PathBuf::from(format!("{prefix}-{}", serial + n)))
            .collect();
        for path in &left {
            fs::create_dir(path).unwrap();
        }

        let next = cgroup();

        for path in &left {
            fs::remove_dir(path).unwrap();
        }
        assert!(!left.contains(&next.unwrap()));
    }
}
