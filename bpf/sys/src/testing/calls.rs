// SPDX-License-Identifier: Apache-2.0

//! Stops a program before a certain system call, to see what is left when it ends there, or what it makes of a world that
//! changes meanwhile.
//!
//! The kernel asks this process about each of the [`Calls`] (seccomp user notification): the program itself needs no code
//! for it, and runs as it always does.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often is looked whether waiting still makes sense.
const LOOK: Duration = Duration::from_millis(10);

/// Offsets in `struct seccomp_data`: the number of the call, and its first argument (its lower half).
const CALL: u32 = 0;
#[cfg(target_endian = "little")]
const FIRST: u32 = 16;
#[cfg(target_endian = "big")]
const FIRST: u32 = 20;

/// The calls that are asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Writes to maps: updates and deletions, of one entry or many.
    Writes,
    /// Links and pins are made, changed and removed.
    Links,
    /// The same, and netlink is opened: for a change of filters, or a question.
    LinksAndNetlink,
    /// Whatever others see of a program: maps, links, pins, files by name, namespaces, connections, messages.
    Effects,
    /// The same, and open files are read and written.
    EffectsAndFiles,
}

impl Calls {
    /// Commands of `bpf(2)`.
    const fn commands(self) -> &'static [u32] {
        match self {
            Self::Writes => &[2, 3, 26, 27],
            // BPF_OBJ_PIN, BPF_LINK_CREATE, BPF_LINK_UPDATE, BPF_LINK_DETACH
            Self::Links | Self::LinksAndNetlink => &[6, 28, 29, 34],
            // And BPF_MAP_CREATE.
            Self::Effects | Self::EffectsAndFiles => &[0, 2, 3, 6, 26, 27, 28, 29, 34],
        }
    }

    /// Other calls, whatever their arguments are.
    const fn others(self) -> &'static [libc::c_long] {
        match self {
            Self::Writes => &[],
            #[cfg(target_arch = "x86_64")]
            Self::Links | Self::LinksAndNetlink => &[
                libc::SYS_rename,
                libc::SYS_renameat2,
                libc::SYS_unlink,
                libc::SYS_unlinkat,
            ],
            #[cfg(not(target_arch = "x86_64"))]
            Self::Links | Self::LinksAndNetlink => &[libc::SYS_renameat2, libc::SYS_unlinkat],
            Self::Effects => EFFECTS,
            Self::EffectsAndFiles => EFFECTS_AND_FILES,
        }
    }

    /// The filter: what is not asked about is allowed.
    fn filter(self) -> Vec<libc::sock_filter> {
        let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
        let answer = |verdict| statement(libc::BPF_RET | libc::BPF_K, verdict);
        let asked = || answer(libc::SECCOMP_RET_USER_NOTIF);
        let mut program = vec![load(CALL)];
        for call in self.others() {
            program.extend([skip_unless(*call as u32, 1), asked()]);
        }
        if self == Self::LinksAndNetlink {
            let netlink = libc::AF_NETLINK as u32;
            program.extend([
                skip_unless(libc::SYS_socket as u32, 4),
                load(FIRST),
                skip_unless(netlink, 1),
                asked(),
                answer(libc::SECCOMP_RET_ALLOW),
            ]);
        }
        let commands = self.commands();
        program.extend([
            skip_unless(libc::SYS_bpf as u32, (1 + 2 * commands.len()) as u8),
            load(FIRST),
        ]);
        for command in commands {
            program.extend([skip_unless(*command, 1), asked()]);
        }
        program.push(answer(libc::SECCOMP_RET_ALLOW));
        program
    }
}

macro_rules! effects {
    ($($more:expr),*) => {
        &[
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rmdir,
            libc::SYS_renameat2,
            libc::SYS_unlinkat,
            libc::SYS_mkdirat,
            libc::SYS_setns,
            libc::SYS_connect,
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_writev,
            $($more),*
        ]
    };
}

const EFFECTS: &[libc::c_long] = effects!();
const EFFECTS_AND_FILES: &[libc::c_long] = effects!(libc::SYS_read, libc::SYS_write);

/// What became of a watched program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// It has made so many calls, and stands before the next one.
    Stopped,
    Done,
    Ended,
}

/// Is asked about the calls of a program and its children.
#[derive(Debug)]
pub struct CallWatch {
    listener: OwnedFd,
    /// The call that is held back.
    held: Cell<Option<u64>>,
}

impl CallWatch {
    /// Runs `start` on a thread whose child processes are watched from their first instruction. Needs root.
    ///
    /// # Errors
    ///
    /// What keeps the kernel from asking.
    ///
    /// # Panics
    ///
    /// If `start` does.
    pub fn start<T: Send>(calls: Calls, start: impl FnOnce() -> T + Send) -> io::Result<(T, Self)> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("watched".to_owned())
                .spawn_scoped(scope, || {
                    let listener = listen(calls)?;
                    let held = Cell::new(None);
                    Ok((start(), Self { listener, held }))
                })?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Lets the call that is held back pass, and `count` others, and holds the next one back. Ends early if there are none to
    /// come: because `is_done` says so while nothing is asked, or since the program has ended.
    pub fn stop_before(&self, count: u64, is_done: impl Fn() -> bool) -> io::Result<Watched> {
        if let Some(held) = self.held.take() {
            self.let_pass(held)?;
        }
        let mut passed = 0;
        loop {
            let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: LOOK.as_nanos() as i64,
            };
            match poll(&mut waiting, Some(&wait)) {
                Ok(0) if is_done() => return Ok(Watched::Done),
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            if !waiting[0].revents().contains(PollFlags::IN) {
                return Ok(Watched::Ended);
            }
            let Some(id) = self.question()? else { continue };
            if passed == count {
                self.held.set(Some(id));
                return Ok(Watched::Stopped);
            }
            passed += 1;
            self.let_pass(id)?;
        }
    }

    /// What is asked next; `None` if whoever asked is gone.
    fn question(&self) -> io::Result<Option<u64>> {
        // SAFETY: all integers; the kernel wants it zeroed.
        let mut question: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one structure of this size.
        let result = unsafe {
            libc::ioctl(
                self.listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV as _,
                &raw mut question,
            )
        };
        gone(result).map(|asked| asked.then_some(question.id))
    }

    fn let_pass(&self, id: u64) -> io::Result<()> {
        let mut answer = libc::seccomp_notif_resp {
            id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // SAFETY: the kernel reads one structure of this size.
        let result = unsafe {
            libc::ioctl(
                self.listener.as_fd().as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND as _,
                &raw mut answer,
            )
        };
        gone(result).map(drop)
    }
}

/// Whether a call about a question was answered; false if the asking thread is gone.
fn gone(result: libc::c_int) -> io::Result<bool> {
    if result >= 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EINTR) => Ok(false),
        _ => Err(error),
    }
}

/// Has the kernel ask about the calling thread's calls, and those of threads and processes it will start.
fn listen(calls: Calls) -> io::Result<OwnedFd> {
    let mut program = calls.filter();
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: `filter` describes `program`, both live across the call, which copies them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const filter,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Skips so many instructions if the loaded word is anything but `value`.
fn skip_unless(value: u32, instructions: u8) -> libc::sock_filter {
    libc::sock_filter {
        jf: instructions,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Map, MapFlags, MapKind, MapSpec};

    #[test]
    fn writes_pass_until_the_chosen_one_and_reads_always() {
        let spec = MapSpec::<u32, u32>::new("skep_watched", MapKind::Hash, 8, MapFlags::NO_PREALLOC);
        let map = Map::create(&spec).unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let (writing, thread) = (map.clone(), "born of a watched thread, like a child process");
        let (writer, watch) = CallWatch::start(Calls::Writes, || {
            std::thread::Builder::new()
                .spawn(move || {
                    wait.recv().unwrap();
                    for key in 0..3 {
                        writing.lookup(&key).unwrap();
                        writing.update(&key, &key).unwrap();
                    }
                })
                .expect(thread)
        })
        .unwrap();
        go.send(()).unwrap();

        assert_eq!(watch.stop_before(2, || false).unwrap(), Watched::Stopped);
        assert_eq!(map.entries().unwrap().len(), 2);
        // The other side is gone: the held write fails, and with it the thread.
        drop(watch);
        assert!(writer.join().is_err());
        assert_eq!(map.entries().unwrap().len(), 2);
    }

    #[test]
    fn a_watch_ends_when_there_is_nothing_to_come() {
        let (go, wait) = mpsc::channel::<()>();
        let (idle, watch) =
            CallWatch::start(Calls::Writes, || std::thread::spawn(move || wait.recv())).unwrap();

        assert_eq!(watch.stop_before(0, || true).unwrap(), Watched::Done);
        drop(go);
        let _ = idle.join();
        assert_eq!(watch.stop_before(0, || false).unwrap(), Watched::Ended);
    }
}
