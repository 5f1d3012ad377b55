// SPDX-License-Identifier: Apache-2.0

//! Links of iterator programs, and their runs.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use crate::syscall as sys;

/// `BPF_TRACE_ITER` of `enum bpf_attach_type`.
const TRACE_ITER: u32 = 28;

/// Makes a link of an iterator program, for [`iterate`].
pub fn iterator(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    sys::link_create(program, None, TRACE_ITER)
}

/// Makes a link of an iterator program over the entries of a map, for [`iterate`].
///
/// # Errors
///
/// What the kernel says; `EINVAL` on kernels before 5.9, and for kinds of maps that it does not iterate over.
pub fn map_iterator(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    sys::map_iter_link(program, map, TRACE_ITER)
}

/// Opens one run of an iterator: reading the descriptor runs the program on every element of the calling thread's
/// network namespace.
pub fn iterate(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    sys::iter_create(link)
}
