// SPDX-License-Identifier: Apache-2.0

//! Stops a program before a certain write to a map, to see what is left when it ends there.
//!
//! The kernel asks this process about each `bpf(2)` call that writes map entries (seccomp user notification): the
//! program itself needs no code for it, and runs as it always does.

use std::{
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
const COMMAND: u32 = 16;
#[cfg(target_endian = "big")]
const COMMAND: u32 = 20;
/// Commands of `bpf(2)` that write entries: one or many, update or delete.
const WRITES: [u32; 4] = [2, 3, 26, 27];

/// What became of a watched program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// It has made all writes but one, and stands before that.
    Stopped,
    /// It was done before.
    Done,
    /// It ended before.
    Ended,
}

/// Is asked about the writes of a program and its children.
#[derive(Debug)]
pub struct WriteWatch {
    listener: OwnedFd,
}

impl WriteWatch {
    /// Runs `start` on a thread whose child processes are watched from their first instruction. Needs root.
    ///
    /// # Errors
    ///
    /// What keeps the kernel from asking.
    ///
    /// # Panics
    ///
    /// If `start` does.
    pub fn start<T: Send>(start: impl FnOnce() -> T + Send) -> io::Result<(T, Self)> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("watched".to_owned())
                .spawn_scoped(scope, || {
                    let listener = listen()?;
                    Ok((start(), Self { listener }))
                })?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Lets `count` writes pass and holds the next one back. Ends early if there are none to come:
    /// because `is_done` says so while nothing is asked, or since the program has ended.
    ///
    /// # Errors
    ///
    /// What the kernel says instead of asking.
    pub fn stop_before(&self, count: u64, is_done: impl Fn() -> bool) -> io::Result<Watched> {
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

/// Has the kernel ask about the calling thread's writes, and those of threads and processes it will start.
fn listen() -> io::Result<OwnedFd> {
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |verdict| statement(libc::BPF_RET | libc::BPF_K, verdict);
    let [one, other, third, fourth] = WRITES;
    let mut program = [
        load(CALL),
        skip_unless(libc::SYS_bpf as u32, 5),
        load(COMMAND),
        skip_if(one, 4),
        skip_if(other, 3),
        skip_if(third, 2),
        skip_if(fourth, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_USER_NOTIF),
    ];
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

/// Skips so many instructions if the loaded word is `value`.
fn skip_if(value: u32, instructions: u8) -> libc::sock_filter {
    libc::sock_filter {
        jt: instructions,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value)
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
        let (writer, watch) = WriteWatch::start(|| {
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
        let (idle, watch) = WriteWatch::start(|| std::thread::spawn(move || wait.recv())).unwrap();

        assert_eq!(watch.stop_before(0, || true).unwrap(), Watched::Done);
        drop(go);
        let _ = idle.join();
        assert_eq!(watch.stop_before(0, || false).unwrap(), Watched::Ended);
    }
}
