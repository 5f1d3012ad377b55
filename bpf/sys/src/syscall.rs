// SPDX-License-Identifier: Apache-2.0

//! `bpf(2)`: the few commands this crate needs, each a checked function, and a count of calls; an option of sockets.

use std::{
    ffi::CString,
    io,
    mem::size_of,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Calls of `bpf(2)` that this process has made through this crate (those of libbpf, which only loads
/// programs, are not counted).
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// `ENOTSUPP`, which the kernel leaks to user space where a map type lacks an operation.
pub(crate) const ENOTSUPP: i32 = 524;

/// Commands of `bpf(2)`, by their numbers in `linux/bpf.h`.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(crate) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    #[cfg(feature = "testing")]
    ProgLoad = 5,
    ObjPin = 6,
    ObjGet = 7,
    ProgFdById = 13,
    MapFdById = 14,
    ObjInfo = 15,
    ProgQuery = 16,
    MapLookupBatch = 24,
    MapUpdateBatch = 26,
    MapDeleteBatch = 27,
    LinkCreate = 28,
    LinkUpdate = 29,
    IterCreate = 33,
    LinkDetach = 34,
}

/// Calls `bpf(2)`; the result is what the command returns (a descriptor or 0).
///
/// # Safety
///
/// `attr` must be laid out as the command's part of `union bpf_attr`, and every pointer in it must be
/// valid for what the kernel reads or writes there.
unsafe fn call<T>(command: Command, attr: &mut T) -> io::Result<RawFd> {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `attr` lives across the call; its contents are the caller's promise.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as RawFd)
    }
}

/// Takes ownership of a descriptor that a command has just returned.
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just opened it for us, it has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Kernel names of BPF objects have 15 characters.
fn kernel_name(name: &str) -> [u8; 16] {
    let mut short = [0; 16];
    for (to, from) in short.iter_mut().zip(name.bytes().take(15)) {
        *to = if from.is_ascii_alphanumeric() || from == b'_' || from == b'.' {
            from
        } else {
            b'_'
        };
    }
    short
}

#[derive(Default)]
#[repr(C)]
struct MapCreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
    map_ifindex: u32,
    btf_fd: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
}

/// Names of the fields of keys and values: types in BTF that the kernel has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryTypes<'a> {
    pub(crate) btf: BorrowedFd<'a>,
    pub(crate) key: u32,
    pub(crate) value: u32,
}

/// What a map is created with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MapShape {
    pub(crate) kind: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) max_entries: u32,
    pub(crate) flags: u32,
}

pub(crate) fn map_create(
    name: &str,
    shape: MapShape,
    inner: Option<BorrowedFd<'_>>,
    types: Option<EntryTypes<'_>>,
) -> io::Result<OwnedFd> {
    let mut attr = MapCreateAttr {
        map_type: shape.kind,
        key_size: shape.key_size,
        value_size: shape.value_size,
        max_entries: shape.max_entries,
        map_flags: shape.flags,
        inner_map_fd: inner.map_or(0, |fd| fd.as_raw_fd() as u32),
        numa_node: 0,
        map_name: kernel_name(name),
        map_ifindex: 0,
        btf_fd: types.map_or(0, |types| types.btf.as_raw_fd() as u32),
        btf_key_type_id: types.map_or(0, |types| types.key),
        btf_value_type_id: types.map_or(0, |types| types.value),
    };
    // SAFETY: layout of BPF_MAP_CREATE, no pointers.
    unsafe { call(Command::MapCreate, &mut attr) }.map(owned)
}

#[repr(C)]
struct ElementAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr() as u64
}

fn address_mut(bytes: &mut [u8]) -> u64 {
    bytes.as_mut_ptr() as u64
}

impl ElementAttr {
    fn new(map: BorrowedFd<'_>, key: u64, value: u64, flags: u64) -> Self {
        Self {
            map_fd: map.as_raw_fd() as u32,
            pad: 0,
            key,
            value,
            flags,
        }
    }
}

// In the element commands the slices' lengths are the key and value size of the map: `Map` has compared
// its types with the kernel's description of the map when it was opened.

pub(crate) fn map_lookup(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<()> {
    let mut attr = ElementAttr::new(map, address(key), address_mut(value), 0);
    // SAFETY: layout of the element commands; the kernel reads a key and writes a value, see above.
    unsafe { call(Command::MapLookup, &mut attr) }.map(drop)
}

pub(crate) fn map_update(map: BorrowedFd<'_>, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
    let mut attr = ElementAttr::new(map, address(key), address(value), flags);
    // SAFETY: layout of the element commands; the kernel reads a key and a value, see above.
    unsafe { call(Command::MapUpdate, &mut attr) }.map(drop)
}

pub(crate) fn map_delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    let mut attr = ElementAttr::new(map, address(key), 0, 0);
    // SAFETY: layout of the element commands; the kernel reads a key, see above.
    unsafe { call(Command::MapDelete, &mut attr) }.map(drop)
}

pub(crate) fn map_next_key(map: BorrowedFd<'_>, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<()> {
    let mut attr = ElementAttr::new(map, key.map_or(0, address), address_mut(next), 0);
    // SAFETY: layout of the element commands; the kernel reads a key and writes one, see above.
    unsafe { call(Command::MapNextKey, &mut attr) }.map(drop)
}

#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Result of a batch: how many elements were processed, and why it ended early.
pub(crate) type BatchResult = (usize, io::Result<()>);

pub(crate) fn map_update_batch(map: BorrowedFd<'_>, keys: &[u8], values: &[u8], count: usize) -> BatchResult {
    let mut attr = BatchAttr {
        in_batch: 0,
        out_batch: 0,
        keys: address(keys),
        values: address(values),
        count: count as u32,
        map_fd: map.as_raw_fd() as u32,
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: layout of the batch commands; `keys` and `values` hold `count` elements.
    let result = unsafe { call(Command::MapUpdateBatch, &mut attr) }.map(drop);
    (attr.count as usize, result)
}

pub(crate) fn map_delete_batch(map: BorrowedFd<'_>, keys: &[u8], count: usize) -> BatchResult {
    let mut attr = BatchAttr {
        in_batch: 0,
        out_batch: 0,
        keys: address(keys),
        values: 0,
        count: count as u32,
        map_fd: map.as_raw_fd() as u32,
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: layout of the batch commands; `keys` holds `count` keys.
    let result = unsafe { call(Command::MapDeleteBatch, &mut attr) }.map(drop);
    (attr.count as usize, result)
}

/// One step of a batched walk. `position` is the kernel's opaque place in the map (as long as a key, at
/// least 4 bytes); `started` says if it holds one.
pub(crate) fn map_lookup_batch(
    map: BorrowedFd<'_>,
    position: &mut [u8],
    started: bool,
    keys: &mut [u8],
    values: &mut [u8],
    count: usize,
) -> BatchResult {
    let position = address_mut(position);
    let mut attr = BatchAttr {
        in_batch: if started { position } else { 0 },
        out_batch: position,
        keys: address_mut(keys),
        values: address_mut(values),
        count: count as u32,
        map_fd: map.as_raw_fd() as u32,
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: layout of the batch commands; the buffers have room for `count` elements, and the kernel
    // reads `in_batch` before it writes `out_batch`.
    let result = unsafe { call(Command::MapLookupBatch, &mut attr) }.map(drop);
    (attr.count as usize, result)
}

#[repr(C)]
struct ObjectAttr {
    path: u64,
    bpf_fd: u32,
    file_flags: u32,
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "path contains a zero byte"))
}

/// Pins a map, program or link at `path` on a BPF file system.
pub(crate) fn obj_pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attr = ObjectAttr {
        path: path.as_ptr() as u64,
        bpf_fd: object.as_raw_fd() as u32,
        file_flags: 0,
    };
    // SAFETY: layout of the object commands; the path is a C string that outlives the call.
    unsafe { call(Command::ObjPin, &mut attr) }.map(drop)
}

/// Opens the object pinned at `path`.
pub(crate) fn obj_get(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attr = ObjectAttr {
        path: path.as_ptr() as u64,
        bpf_fd: 0,
        file_flags: 0,
    };
    // SAFETY: layout of the object commands; the path is a C string that outlives the call.
    unsafe { call(Command::ObjGet, &mut attr) }.map(owned)
}

/// Whether a descriptor is a map (and not a program or a link).
pub(crate) fn is_map(object: BorrowedFd<'_>) -> bool {
    object_kind(object).is_ok_and(|kind| kind == "anon_inode:bpf-map")
}

/// Whether a descriptor is a link.
pub(crate) fn is_link(object: BorrowedFd<'_>) -> bool {
    object_kind(object).is_ok_and(|kind| kind == "anon_inode:bpf_link" || kind == "anon_inode:bpf-link")
}

/// What kind of object a descriptor is: the kernel says so only in the name of its inode.
fn object_kind(object: BorrowedFd<'_>) -> io::Result<String> {
    let target = std::fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd()))?;
    Ok(target.to_string_lossy().into_owned())
}

/// What the kernel says about a map (`struct bpf_map_info`, its first fields).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MapInfo {
    /// Type, `enum bpf_map_type`.
    pub kind: u32,
    pub id: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    /// Name in the kernel: at most 15 characters, then zeros.
    pub name: [u8; 16],
}

/// What the kernel says about a program (`struct bpf_prog_info`, its first fields).
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ProgInfo {
    kind: u32,
    pub(crate) id: u32,
    tag: [u8; 8],
    jited_len: u32,
    xlated_len: u32,
    /// Where to write instructions to: nowhere.
    instructions: [u64; 2],
    load_time: u64,
    created_by_uid: u32,
    map_count: u32,
    /// Where to write the ids of its maps to: nowhere.
    map_ids: u64,
    /// Name in the kernel: at most 15 characters, then zeros.
    pub(crate) name: [u8; 16],
}

const _: () = assert!(size_of::<ProgInfo>() == 80 && std::mem::offset_of!(ProgInfo, name) == 64);

/// What the kernel says about a link (`struct bpf_link_info`, for links of cgroups and interfaces).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct LinkInfo {
    kind: u32,
    id: u32,
    /// Id of the program it runs.
    pub(crate) prog_id: u32,
    pad: u32,
    /// Of cgroups: the halves of the id of the cgroup, and where on it. Of interfaces: index, and where, if the kind does
    /// not say it.
    target: [u32; 3],
    pad2: u32,
}

impl LinkInfo {
    const CGROUP: u32 = 3;
    const XDP: u32 = 6;
    const TCX: u32 = 11;

    /// The id of the cgroup and the number of the hook; `None` once the cgroup is gone.
    pub(crate) fn cgroup(&self) -> Option<(u64, u32)> {
        let [first, second, hook] = self.target;
        let [[a, b, c, d], [e, f, g, h]] = [first.to_ne_bytes(), second.to_ne_bytes()];
        let id = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        (self.kind == Self::CGROUP && id != 0).then_some((id, hook))
    }

    /// The index of the interface and the number of the hook; `None` once the interface is gone.
    pub(crate) fn interface(&self) -> Option<(u32, u32)> {
        let [index, hook, _] = self.target;
        let hook = match self.kind {
            Self::TCX => hook,
            Self::XDP => XDP_HOOK,
            _ => return None,
        };
        (index != 0).then_some((index, hook))
    }

    /// Whether what the link is on still exists.
    pub(crate) fn is_alive(&self) -> bool {
        match self.kind {
            Self::CGROUP => self.cgroup().is_some(),
            Self::XDP | Self::TCX => self.interface().is_some(),
            _ => true,
        }
    }
}

/// `BPF_XDP` of `enum bpf_attach_type`.
pub(crate) const XDP_HOOK: u32 = 37;

#[repr(C)]
struct InfoAttr {
    fd: u32,
    len: u32,
    info: u64,
}

/// # Safety
///
/// `T` must be a prefix of the kernel's info structure for the kind of object behind `object`.
unsafe fn object_info<T: Default>(object: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::default();
    let mut attr = InfoAttr {
        fd: object.as_raw_fd() as u32,
        len: size_of::<T>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: layout of BPF_OBJ_GET_INFO_BY_FD; the kernel writes at most `len` bytes.
    unsafe { call(Command::ObjInfo, &mut attr) }?;
    Ok(info)
}

/// Asks the kernel about a map. `map` must be one.
pub(crate) fn map_info(map: BorrowedFd<'_>) -> io::Result<MapInfo> {
    // SAFETY: `MapInfo` is a prefix of `struct bpf_map_info`, all integers.
    unsafe { object_info(map) }
}

/// Asks the kernel about a link. `link` must be one.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    // SAFETY: `LinkInfo` is a prefix of `struct bpf_link_info`, all integers.
    unsafe { object_info(link) }
}

/// Asks the kernel about a program. `program` must be one.
pub(crate) fn prog_info(program: BorrowedFd<'_>) -> io::Result<ProgInfo> {
    // SAFETY: `ProgInfo` is a prefix of `struct bpf_prog_info`, all integers; its lengths and addresses are zero, so
    // that the kernel follows none.
    unsafe { object_info(program) }
}

#[repr(C)]
struct IdAttr {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

/// Opens a map by its id.
pub(crate) fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    by_id(Command::MapFdById, id)
}

/// Opens a program by its id.
pub(crate) fn prog_by_id(id: u32) -> io::Result<OwnedFd> {
    by_id(Command::ProgFdById, id)
}

fn by_id(command: Command, id: u32) -> io::Result<OwnedFd> {
    let mut attr = IdAttr {
        id,
        next_id: 0,
        open_flags: 0,
    };
    // SAFETY: layout of BPF_MAP_GET_FD_BY_ID and BPF_PROG_GET_FD_BY_ID, no pointers.
    unsafe { call(command, &mut attr) }.map(owned)
}

#[cfg(feature = "testing")]
#[derive(Default)]
#[repr(C)]
struct ProgLoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

/// Loads a program that returns a number.
#[cfg(feature = "testing")]
pub(crate) fn prog_load(kind: u32, name: &str, result: i32) -> io::Result<OwnedFd> {
    // r0 = result; exit
    let [a, b, c, d] = result.to_ne_bytes();
    let instructions: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, a, b, c, d], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let mut attr = ProgLoadAttr {
        prog_type: kind,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        prog_name: kernel_name(name),
        ..ProgLoadAttr::default()
    };
    // SAFETY: layout of BPF_PROG_LOAD; instructions and license outlive the call, there is no log.
    unsafe { call(Command::ProgLoad, &mut attr) }.map(owned)
}

#[repr(C)]
struct LinkCreateAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}

/// Attaches a program to a cgroup (or opens an iterator link with `target` = `None`).
pub(crate) fn link_create(
    program: BorrowedFd<'_>,
    target: Option<BorrowedFd<'_>>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    let target = target.map_or(0, |fd| fd.as_raw_fd() as u32);
    link_create_at(program, target, attach_type, 0)
}

/// Attaches a program to the interface of this index. `flags`: how, as `attach_type` has it.
pub(crate) fn link_create_at(
    program: BorrowedFd<'_>,
    target: u32,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut attr = LinkCreateAttr {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: target,
        attach_type,
        flags,
    };
    // SAFETY: layout of BPF_LINK_CREATE, no pointers.
    unsafe { call(Command::LinkCreate, &mut attr) }.map(owned)
}

#[repr(C)]
struct IterLinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    iter_info: u64,
    iter_info_len: u32,
    pad: u32,
}

/// Opens a link of an iterator over the entries of a map.
pub(crate) fn map_iter_link(
    program: BorrowedFd<'_>,
    map: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    // `union bpf_iter_link_info`
    let info = map.as_raw_fd() as u32;
    let mut attr = IterLinkAttr {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: 0,
        attach_type,
        flags: 0,
        iter_info: std::ptr::from_ref(&info) as u64,
        iter_info_len: size_of::<u32>() as u32,
        pad: 0,
    };
    // SAFETY: layout of BPF_LINK_CREATE; the kernel reads `iter_info_len` bytes at `iter_info`, which outlives the call.
    unsafe { call(Command::LinkCreate, &mut attr) }.map(owned)
}

#[repr(C)]
struct LinkUpdateAttr {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// Replaces the program of a link, atomically.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = LinkUpdateAttr {
        link_fd: link.as_raw_fd() as u32,
        new_prog_fd: program.as_raw_fd() as u32,
        flags: 0,
        old_prog_fd: 0,
    };
    // SAFETY: layout of BPF_LINK_UPDATE, no pointers.
    unsafe { call(Command::LinkUpdate, &mut attr) }.map(drop)
}

#[repr(C)]
struct LinkDetachAttr {
    link_fd: u32,
}

/// Detaches the program of a link at once (Linux 5.9). A link whose last pin or descriptor goes away is
/// detached only some time later.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = LinkDetachAttr {
        link_fd: link.as_raw_fd() as u32,
    };
    // SAFETY: layout of BPF_LINK_DETACH, no pointers.
    unsafe { call(Command::LinkDetach, &mut attr) }.map(drop)
}

#[repr(C)]
struct IterCreateAttr {
    link_fd: u32,
    flags: u32,
}

/// Opens one run of an iterator; reading the descriptor runs the program on every element of the
/// calling thread's network namespace.
pub(crate) fn iter_create(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = IterCreateAttr {
        link_fd: link.as_raw_fd() as u32,
        flags: 0,
    };
    // SAFETY: layout of BPF_ITER_CREATE, no pointers.
    unsafe { call(Command::IterCreate, &mut attr) }.map(owned)
}

#[repr(C)]
struct QueryAttr {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_count: u32,
    pad: u32,
}

/// Ids of the programs attached to a cgroup at one hook (up to 64).
pub(crate) fn prog_query(target: BorrowedFd<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    prog_query_at(target.as_raw_fd() as u32, attach_type)
}

/// Ids of the programs attached to an interface at one hook, in the order they run (up to 64).
pub(crate) fn prog_query_at(target: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; 64];
    let mut attr = QueryAttr {
        target_fd: target,
        attach_type,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_count: ids.len() as u32,
        pad: 0,
    };
    // SAFETY: layout of BPF_PROG_QUERY; `prog_ids` has room for `prog_count` ids.
    unsafe { call(Command::ProgQuery, &mut attr) }?;
    Ok(ids.iter().copied().take(attr.prog_count as usize).collect())
}
