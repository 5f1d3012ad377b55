// SPDX-License-Identifier: Apache-2.0

//! Signals to the agent, without a packet that would make a program send one.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
};

use libbpf_rs::libbpf_sys;
use skep_bpf_maps::event::SIGNALS;
use skep_bpf_sys::{MapError, MapStore, RawMap as _};

use super::run::{SkBuff, run_tc};

#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The map of signals is not pinned.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The program that sends it was not loaded, or did not run.
    #[error("no signal was sent")]
    Run(#[from] io::Error),
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    code as u64 | ((from << 4 | to) as u64) << 8 | (offset as u16 as u64) << 16 | (value as u32 as u64) << 32
}

/// Sends a signal as programs do: `kind` and address family as in `bpf/include/event/signal.h`.
///
/// # Errors
///
/// [`SendError`] without the map, or the privileges to load a program.
pub fn send_signal(store: &MapStore, kind: u32, ipv6: u32) -> Result<(), SendError> {
    let map = store.open_raw(SIGNALS.name)?;
    let fd = map.fd().map_or(-1, |fd| fd.as_raw_fd());
    let instructions = [
        // The signal, on the stack.
        instruction(0x62, 10, 0, -8, kind as i32),
        instruction(0x62, 10, 0, -4, ipv6 as i32),
        // The map; its descriptor.
        instruction(0x18, 2, 1, 0, fd),
        0,
        // The ring of this CPU.
        instruction(0xb4, 3, 0, 0, -1),
        instruction(0xbf, 4, 10, 0, 0),
        instruction(0x07, 4, 0, 0, -8),
        instruction(0xb7, 5, 0, 0, 8),
        // bpf_perf_event_output(ctx, map, flags, data, size)
        instruction(0x85, 0, 0, 0, 25),
        // TC_ACT_OK
        instruction(0xb7, 0, 0, 0, 0),
        instruction(0x95, 0, 0, 0, 0),
    ];
    // SAFETY: the instructions are as many as said, and live until the call returns; there are no options.
    let program = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            c"signal".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as libbpf_sys::size_t,
            std::ptr::null_mut(),
        )
    };
    if program < 0 {
        return Err(io::Error::from_raw_os_error(-program).into());
    }
    // SAFETY: the kernel just opened this descriptor, and nothing else owns it.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    run_tc(program.as_fd(), &[0; 64], &SkBuff::default(), 1)?;
    Ok(())
}
