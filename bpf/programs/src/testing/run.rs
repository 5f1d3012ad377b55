// SPDX-License-Identifier: Apache-2.0

//! Runs a program once on a packet, without an interface that it is attached to (`BPF_PROG_TEST_RUN`).

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    time::Duration,
};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, libbpf_sys};

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
    /// `skb->tstamp`.
    pub tstamp: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub verdict: u32,
    pub packet: Vec<u8>,
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
    rest: [u32; 21],
    tstamp: u64,
    last: [u32; 8],
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
        tstamp: context.tstamp,
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
            tstamp: after.tstamp,
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
    pub verdict: u32,
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

/// How large a loaded program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramSize {
    /// Instructions that the verifier processed, some of them many times.
    pub verified: u32,
    /// Bytes of the instructions that it left.
    pub translated: u32,
    pub native: u32,
}

/// The size of a loaded program.
pub fn program_size(program: BorrowedFd<'_>) -> io::Result<ProgramSize> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has zeros where it would follow pointers.
    let failed =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ProgramSize {
        verified: info.verified_insns,
        translated: info.xlated_prog_len,
        native: info.jited_prog_len,
    })
}

/// A tc program that does nothing: what a run costs without one.
pub fn empty_tc() -> io::Result<OwnedFd> {
    empty(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS)
}

/// An XDP program that does nothing, as [`empty_tc`].
pub fn empty_xdp() -> io::Result<OwnedFd> {
    empty(libbpf_sys::BPF_PROG_TYPE_XDP)
}

fn empty(kind: libbpf_sys::bpf_prog_type) -> io::Result<OwnedFd> {
    // r0 = 0; exit
    load(kind, c"empty", &[instruction(0xb7, 0, 0, 0, 0), EXIT])
}

/// A tc program that writes a tunnel's key into a packet and calls another one: `BPF_PROG_TEST_RUN` makes packets
/// without.
#[derive(Debug)]
pub struct FromTunnel {
    program: OwnedFd,
    /// Held so that the called program lives.
    _next: MapHandle,
}

impl FromTunnel {
    /// Packets have this tunnel id; `next` is called with them. `None`: what the key costs alone.
    pub fn new(tunnel_id: u32, next: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let (program, map) = chain(c"from_tunnel", next, |map| from_tunnel(tunnel_id, map))?;
        Ok(Self { program, _next: map })
    }

    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// A tc program that sets the queue mapping of a packet and calls another one: `BPF_PROG_TEST_RUN` takes none.
#[derive(Debug)]
pub struct FromQueue {
    program: OwnedFd,
    /// Held so that the called program lives.
    _next: MapHandle,
}

impl FromQueue {
    pub fn new(queue: u16, next: BorrowedFd<'_>) -> io::Result<Self> {
        let (program, map) = chain(c"from_queue", Some(next), |map| from_queue(queue, map))?;
        Ok(Self { program, _next: map })
    }

    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// Loads a tc program that calls `next` through a map, which its instructions name.
fn chain(
    name: &CStr,
    next: Option<BorrowedFd<'_>>,
    instructions: impl FnOnce(BorrowedFd<'_>) -> Vec<u64>,
) -> io::Result<(OwnedFd, MapHandle)> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let map =
        MapHandle::create(MapType::ProgArray, Some("next"), 4, 4, 1, &options).map_err(io::Error::other)?;
    let instructions = instructions(map.as_fd());
    let program = load(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, name, &instructions)?;
    if let Some(next) = next {
        map.update(&[0; 4], &next.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .map_err(io::Error::other)?;
    }
    Ok((program, map))
}

/// The call of the program in a map, with the context in register 1.
fn call_next(next: BorrowedFd<'_>) -> [u64; 6] {
    const TAIL_CALL: u32 = 12;
    [
        // The map's descriptor, in two halves.
        instruction(0x18, 2, 1, 0, next.as_raw_fd() as u32),
        0,
        instruction(0xb7, 3, 0, 0, 0),
        instruction(0x85, 0, 0, 0, TAIL_CALL),
        // Reached if there is no program to call.
        instruction(0xb7, 0, 0, 0, 0),
        EXIT,
    ]
}

fn from_queue(queue: u16, next: BorrowedFd<'_>) -> Vec<u64> {
    /// Of `queue_mapping` in `struct __sk_buff`.
    const QUEUE_MAPPING: i16 = 12;
    let set = [
        instruction(0xb7, 2, 0, 0, queue.into()),
        instruction(0x63, 1, 2, QUEUE_MAPPING, 0),
    ];
    set.into_iter().chain(call_next(next)).collect()
}

/// A tc program that tags what leaves an interface with this VLAN id, as an interface of the VLAN does.
pub fn vlan_tagger(id: u16) -> io::Result<OwnedFd> {
    const VLAN_PUSH: u32 = 18;
    /// `ETH_P_8021Q`, in network byte order.
    const PROTOCOL: u16 = 0x8100_u16.to_be();
    let load_value = |to, value| instruction(0xb7, to, 0, 0, value);
    let instructions = [
        load_value(2, PROTOCOL.into()),
        load_value(3, id.into()),
        instruction(0x85, 0, 0, 0, VLAN_PUSH),
        load_value(0, 0),
        EXIT,
    ];
    load(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, c"vlan_tagger", &instructions)
}

const EXIT: u64 = 0x95;

/// An instruction as the kernel has it: registers in halves of the second byte.
const fn instruction(code: u64, to: u64, from: u64, offset: i16, value: u32) -> u64 {
    code | to << 8 | from << 12 | (offset as u16 as u64) << 16 | (value as u64) << 32
}

fn from_tunnel(tunnel_id: u32, next: BorrowedFd<'_>) -> Vec<u64> {
    const SET_TUNNEL_KEY: u32 = 21;
    const KEY_SIZE: u32 = 28;
    const ZERO_CSUM_TX: u32 = 2;
    let zero = |offset| instruction(0x7a, 10, 0, offset, 0);
    let set = |offset, value| instruction(0x62, 10, 0, offset, value);
    let copy = |to, from| instruction(0xbf, to, from, 0, 0);
    let load = |to, value| instruction(0xb7, to, 0, 0, value);
    let call = |helper| instruction(0x85, 0, 0, 0, helper);
    let set_key = [
        copy(6, 1),
        zero(-32),
        zero(-24),
        zero(-16),
        zero(-8),
        set(-32, tunnel_id),
        // The remote node, 172.30.0.2.
        set(-28, 0xac1e_0002),
        copy(2, 10),
        instruction(0x07, 2, 0, 0, -32_i32 as u32),
        load(3, KEY_SIZE),
        load(4, ZERO_CSUM_TX),
        call(SET_TUNNEL_KEY),
        copy(1, 6),
    ];
    set_key.into_iter().chain(call_next(next)).collect()
}

fn load(kind: libbpf_sys::bpf_prog_type, name: &CStr, instructions: &[u64]) -> io::Result<OwnedFd> {
    // SAFETY: name and instructions live until the call returns; there are no options.
    let program = unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as libbpf_sys::size_t,
            std::ptr::null_mut(),
        )
    };
    if program < 0 {
        return Err(io::Error::from_raw_os_error(-program));
    }
    // SAFETY: the kernel just opened this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(program) })
}
