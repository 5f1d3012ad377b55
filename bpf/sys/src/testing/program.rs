// SPDX-License-Identifier: Apache-2.0

//! Programs that do nothing, to attach, and pins of whatever.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use crate::syscall as sys;

/// What a program is run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ProgramKind {
    /// Packets at tc hooks; goes on with the next program.
    Classifier = 3,
    /// Packets at the driver; lets them pass.
    Xdp = 6,
}

/// Loads a program of this name that does nothing.
pub fn program(kind: ProgramKind, name: &str) -> io::Result<OwnedFd> {
    let verdict = match kind {
        ProgramKind::Classifier => -1, // TCX_NEXT
        ProgramKind::Xdp => 2,         // XDP_PASS
    };
    sys::prog_load(kind as u32, name, verdict)
}

/// Pins a program, map or link at a path on a BPF file system.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    sys::obj_pin(object, path)
}
