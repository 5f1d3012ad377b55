// SPDX-License-Identifier: Apache-2.0

//! Runs a program once on a packet, without an interface that it is attached to (`BPF_PROG_TEST_RUN`).

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    time::Duration,
};

use libbpf_rs::libbpf_sys;

/// The fields of `__sk_buff` that a test sets before a run and reads after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SkBuff {
    /// `skb->mark`.
    pub mark: u32,
    /// Interface that the program runs at; it must exist in the network namespace of the caller.
    pub ifindex: u32,
    /// Interface that the packet came by, 0 if it is about to leave.
    pub ingress_ifindex: u32,
    /// `skb->cb`.
    pub cb: [u32; 5],
    /// `skb->priority`.
    pub priority: u32,
}

/// What one run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// What the program returned.
    pub verdict: u32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
    /// What became of the rest.
    pub context: SkBuff,
    /// How long it took, the average of all repetitions.
    pub duration: Duration,
}

/// `struct __sk_buff` in `linux/bpf.h`; what is not named is of no use here.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct RawSkBuff {
    len: u32,
    pkt_type: u32,
    mark: u32,
    queue_mapping: u32,
    protocol: u32,
    vlan_present: u32,
    vlan_tci: u32,
    vlan_proto: u32,
    priority: u32,
    ingress_ifindex: u32,
    ifindex: u32,
    tc_index: u32,
    cb: [u32; 5],
    rest: [u32; 31],
}
const _: () = assert!(size_of::<RawSkBuff>() == 192);

/// Room for what a program adds to the packet.
const HEADROOM: usize = 4096;

/// Runs a program on a packet, and returns packet and context afterwards, the verdict, and how long it took.
fn test_run<C: Copy + Default>(
    program: BorrowedFd<'_>,
    packet: &[u8],
    before: &mut C,
    repeat: u32,
) -> io::Result<(Vec<u8>, C, u32, Duration)> {
    let mut after = C::default();
    let mut out = vec![0_u8; packet.len() + HEADROOM];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ctx_in: std::ptr::from_mut(before).cast(),
        ctx_size_in: size_of::<C>() as u32,
        ctx_out: std::ptr::from_mut(&mut after).cast(),
        ctx_size_out: size_of::<C>() as u32,
        repeat: repeat as i32,
        ..Default::default()
    };
    // SAFETY: all buffers live until the call returns, and their sizes are those given; contexts are plain C structures.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    out.truncate(options.data_size_out as usize);
    let duration = Duration::from_nanos(options.duration.into());
    Ok((out, after, options.retval, duration))
}

/// Runs a tc program on a packet that begins with its Ethernet header, `repeat` times.
///
/// # Errors
///
/// What the kernel says: `EINVAL` for packets shorter than the headers that its protocol has at least.
pub fn run_tc(program: BorrowedFd<'_>, packet: &[u8], context: &SkBuff, repeat: u32) -> io::Result<Ran> {
    let mut before = RawSkBuff {
        mark: context.mark,
        ifindex: context.ifindex,
        ingress_ifindex: context.ingress_ifindex,
        cb: context.cb,
        priority: context.priority,
        ..RawSkBuff::default()
    };
    let (out, after, verdict, duration) = test_run(program, packet, &mut before, repeat)?;
    Ok(Ran {
        verdict,
        packet: out,
        context: SkBuff {
            mark: after.mark,
            ifindex: after.ifindex,
            ingress_ifindex: after.ingress_ifindex,
            cb: after.cb,
            priority: after.priority,
        },
        duration,
    })
}

/// `struct xdp_md` in `linux/bpf.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct RawXdp {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// What one run of an XDP program did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RanXdp {
    /// What the program returned.
    pub verdict: u32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
    /// What it left in front of the packet for the tc program.
    pub metadata: Vec<u8>,
    /// How long it took, the average of all repetitions.
    pub duration: Duration,
}

/// Runs an XDP program on a packet that begins with its Ethernet header, `repeat` times, as if it came by this
/// interface, at which an XDP program must be attached in the driver; 0: no interface.
///
/// # Errors
///
/// What the kernel says: `EINVAL` for packets shorter than an Ethernet header, and interfaces without XDP.
pub fn run_xdp(program: BorrowedFd<'_>, packet: &[u8], interface: u32, repeat: u32) -> io::Result<RanXdp> {
    let mut before = RawXdp {
        data_end: packet.len() as u32,
        ingress_ifindex: interface,
        ..RawXdp::default()
    };
    let (mut out, after, verdict, duration) = test_run(program, packet, &mut before, repeat)?;
    let packet = out.split_off(out.len().min((after.data - after.data_meta) as usize));
    Ok(RanXdp {
        verdict,
        packet,
        metadata: out,
        duration,
    })
}

/// A tc program that does nothing: what a run costs without one.
///
/// # Errors
///
/// What the kernel says.
pub fn empty_tc() -> io::Result<OwnedFd> {
    empty(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS)
}

/// An XDP program that does nothing, as [`empty_tc`].
///
/// # Errors
///
/// What the kernel says.
pub fn empty_xdp() -> io::Result<OwnedFd> {
    empty(libbpf_sys::BPF_PROG_TYPE_XDP)
}

fn empty(kind: libbpf_sys::bpf_prog_type) -> io::Result<OwnedFd> {
    // r0 = 0; exit
    const INSTRUCTIONS: [u64; 2] = [0xb7, 0x95];
    // SAFETY: the instructions are two, and live until the call returns; there are no options.
    let program = unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            c"empty".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            INSTRUCTIONS.as_ptr().cast(),
            INSTRUCTIONS.len() as libbpf_sys::size_t,
            std::ptr::null_mut(),
        )
    };
    if program < 0 {
        return Err(io::Error::from_raw_os_error(-program));
    }
    // SAFETY: the kernel just opened this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(program) })
}
