// SPDX-License-Identifier: Apache-2.0

//! Garbage collection of conntrack and NAT inside the kernel, by iterators over the maps (Linux 5.9, with BTF).

use std::{
    io::{self, Read},
    mem::{MaybeUninit, offset_of, size_of},
    net::IpAddr,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use libbpf_rs::{
    OpenObject, libbpf_sys,
    skel::{OpenSkel as _, Skel as _, SkelBuilder as _},
};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout};

use super::{
    error::LoadError,
    object::{keep, logged},
    skeleton::flowgc::IterFlowgcSkelBuilder,
};
use skep_bpf_maps::{
    collect::{CollectError, Collected, FlowCollector, FlowMap, NatCount, Purged, Removal},
    nat::{NAT4, NAT6},
};
use skep_bpf_sys::{
    RawMap as _, link,
    map::{KernelMap, Map, MapError},
    store::MapStore,
};

const OBJECT: &str = "iter_flowgc";

/// How long the kernel works without a break. More is not faster.
const SLICE: Duration = Duration::from_micros(300);

/// After the end of time: every lifetime ends before.
const NEVER: u64 = 1 << 32;
/// The first moment: every entry was created just then, or later.
const START: u64 = 1;

/// What a pass is to do, and what it has done. C twin: `struct gc_pass` in `bpf/include/conntrack/collect.h`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Pass {
    /// Entries whose lifetime ends before are deleted; 0: by the clock.
    now: u64,
    /// Nanoseconds after which a read ends.
    slice: u64,
    seen: u64,
    alive: u64,
    deleted: u64,
    nat_forward_alive: u64,
    nat_reverse_alive: u64,
    nat_forward_deleted: u64,
    nat_reverse_deleted: u64,
    slice_end: u64,
    /// Entries with listed addresses are deleted, too.
    by_address: u8,
    slice_ended: u8,
    is_pending: u8,
    pad: [u8; 5],
    pending: [u64; 5],
}
const _: () = assert!(size_of::<Pass>() == 128 && offset_of!(Pass, by_address) == 80);

/// Entries of the conntrack and NAT maps. C twin: `struct gc_counts` in `bpf/progs/iter_flowgc.bpf.c`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Counts {
    /// The kernel counts entries (Linux 6.6).
    known: u64,
    tcp4: u64,
    any4: u64,
    tcp6: u64,
    any6: u64,
    nat4: u64,
    nat6: u64,
}

impl Counts {
    fn of(&self, map: FlowMap) -> u64 {
        match map {
            FlowMap::Tcp4 => self.tcp4,
            FlowMap::Any4 => self.any4,
            FlowMap::Tcp6 => self.tcp6,
            FlowMap::Any6 => self.any6,
        }
    }
}

/// Key of the map of addresses whose entries go. C twin: `struct gc_address`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AddressKey([u8; 16]);

impl From<&IpAddr> for AddressKey {
    fn from(address: &IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&address.octets());
                Self(bytes)
            }
            IpAddr::V6(address) => Self(address.octets()),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassTime {
    /// Reads of iterators: between two the kernel may do other things.
    pub slices: u64,
    /// Processor time of the longest read.
    pub longest_slice: Duration,
}

/// One program and the map that it walks.
#[derive(Debug)]
struct Iterator {
    map: &'static str,
    max_entries: u32,
    link: OwnedFd,
}

/// The loaded iterators. Dropped, nothing of them remains in the kernel.
#[derive(Debug)]
pub struct FlowIterators {
    flows: Vec<(FlowMap, Iterator)>,
    nat4: Option<Iterator>,
    nat6: Option<Iterator>,
    count: OwnedFd,
    maps: Vec<(&'static str, u32)>,
    /// One pass at a time: programs share it. The time is that of the last pass.
    pass: Mutex<(Map<u32, Pass>, PassTime)>,
    addresses: Map<AddressKey, u8>,
}

/// Programs by the map that they walk.
const PROGRAMS: [(FlowMap, &str); 4] = [
    (FlowMap::Tcp4, "skep_gc_tcp4"),
    (FlowMap::Any4, "skep_gc_any4"),
    (FlowMap::Tcp6, "skep_gc_tcp6"),
    (FlowMap::Any6, "skep_gc_any6"),
];

impl FlowIterators {
    /// Loads the iterators with the maps that are pinned in `store`; those that are not are empty. `is_ticking`: the clock
    /// of the maps counts ticks.
    ///
    /// # Errors
    ///
    /// [`LoadError::Load`] on kernels without iterators over maps; [`BatchCollector`](skep_bpf_maps::collect::BatchCollector)
    /// works there.
    pub fn load(store: &MapStore, is_ticking: bool) -> Result<Self, LoadError> {
        let mut storage = MaybeUninit::uninit();
        let mut open = IterFlowgcSkelBuilder::default()
            .open(&mut storage)
            .map_err(|source| LoadError::Open {
                object: OBJECT,
                source,
            })?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.options.clock_jiffies = is_ticking.into();
        }
        let pinned = share_pinned(open.open_object_mut(), store)?;
        let skeleton = logged(OBJECT, || open.load())?;
        let attach = |program: &'static str, map: &'static str| {
            let Some(pinned) = pinned.iter().find(|pinned| pinned.name() == map) else {
                return Ok(None);
            };
            let found = skeleton.object().progs().find(|found| found.name() == program);
            let found = found.ok_or(LoadError::NoProgram {
                object: OBJECT,
                program,
            })?;
            let Some(fd) = pinned.fd() else { return Ok(None) };
            let link = link::map_iterator(found.as_fd(), fd).map_err(|source| LoadError::Keep {
                object: OBJECT,
                program,
                source,
            })?;
            Ok(Some(Iterator {
                map,
                max_entries: pinned.info().max_entries,
                link,
            }))
        };
        let mut flows = Vec::new();
        for (map, program) in PROGRAMS {
            flows.extend(attach(program, map.family().name)?.map(|iterator| (map, iterator)));
        }
        let nat4 = attach("skep_gc_nat4", NAT4.family.name)?;
        let nat6 = attach("skep_gc_nat6", NAT6.family.name)?;
        let pass = own_map("skep_gc_pass", skeleton.maps.skep_gc_pass.as_fd())?;
        let addresses = own_map("skep_gc_addresses", skeleton.maps.skep_gc_addresses.as_fd())?;
        Ok(Self {
            flows,
            nat4,
            nat6,
            count: keep(OBJECT, skeleton.object(), "skep_gc_count")?,
            maps: ids(&pinned),
            pass: Mutex::new((pass, PassTime::default())),
            addresses,
        })
    }

    /// Whether the maps that are pinned are still those that the programs have.
    pub fn is_current(&self, store: &MapStore) -> bool {
        open_pinned(store).is_ok_and(|pinned| ids(&pinned) == self.maps)
    }

    /// How long the last pass held the kernel.
    pub fn last_pass(&self) -> PassTime {
        self.pass.lock().1
    }

    /// How many entries maps have, if the kernel knows.
    fn counts(&self) -> Option<Counts> {
        let counts = read_counts(self.count.as_fd()).ok()?;
        (counts.known != 0).then_some(counts)
    }

    fn nat(&self, is_ipv6: bool) -> Option<&Iterator> {
        let iterator = if is_ipv6 { &self.nat6 } else { &self.nat4 };
        iterator.as_ref()
    }

    /// Runs an iterator; the kernel skips buckets without entries in one go, however many they are.
    fn run(&self, iterator: &Iterator, now: u64, addresses: &[AddressKey]) -> Result<Pass, CollectError> {
        let mut state = self.pass.lock();
        let (map, time) = &mut *state;
        let wanted = Pass {
            now,
            slice: SLICE.as_nanos() as u64,
            by_address: (!addresses.is_empty()).into(),
            ..Pass::new_zeroed()
        };
        map.update(&0, &wanted)?;
        let failures = self.addresses.update_batch(addresses, &vec![0; addresses.len()]);
        let walked = match failures.into_iter().next() {
            Some(failed) => Err(CollectError::Map(failed.error)),
            None => walk(iterator.link.as_fd()).map_err(|source| CollectError::Iterate {
                map: iterator.map,
                source,
            }),
        };
        self.addresses.delete_batch(addresses).all()?;
        *time = walked?;
        Ok(map.lookup(&0)?.unwrap_or(wanted))
    }
}

impl FlowCollector for FlowIterators {
    fn max_entries(&self, map: FlowMap) -> Option<u32> {
        let mut iterators = self.flows.iter();
        let (_, iterator) = iterators.find(|(of, _)| *of == map)?;
        Some(iterator.max_entries)
    }

    fn count(&self, map: FlowMap) -> Option<u64> {
        self.max_entries(map)?;
        Some(self.counts()?.of(map))
    }

    fn collect(&self, map: FlowMap, removal: &Removal) -> Result<Collected, CollectError> {
        let found = self.flows.iter().find(|(of, _)| *of == map);
        let Some((_, iterator)) = found else {
            return Ok(Collected::default());
        };
        // Nothing has ended where nothing is: a walk of a million empty buckets holds the kernel for milliseconds.
        if *removal == Removal::Ended && self.count(map) == Some(0) {
            return Ok(Collected::default());
        }
        let now = match removal {
            Removal::All => NEVER,
            Removal::Ended | Removal::Addresses(_) => 0,
        };
        let of_family = removal
            .addresses()
            .filter(|address| address.is_ipv6() == map.is_ipv6());
        let addresses: Vec<AddressKey> = of_family.map(Into::into).collect();
        let max = self.addresses.max_entries() as usize;
        if addresses.len() > max {
            return Err(CollectError::Addresses {
                count: addresses.len(),
                max,
            });
        }
        let pass = self.run(iterator, now, &addresses)?;
        Ok(Collected {
            alive: pass.alive,
            deleted: pass.deleted,
            nat_deleted: NatCount {
                forward: pass.nat_forward_deleted,
                reverse: pass.nat_reverse_deleted,
            },
        })
    }

    fn max_nat_entries(&self, is_ipv6: bool) -> Option<u32> {
        Some(self.nat(is_ipv6)?.max_entries)
    }

    fn count_nat(&self, is_ipv6: bool) -> Option<u64> {
        self.nat(is_ipv6)?;
        let counts = self.counts()?;
        Some(if is_ipv6 { counts.nat6 } else { counts.nat4 })
    }

    fn walk_nat(&self, is_ipv6: bool) -> Result<u64, CollectError> {
        let Some(iterator) = self.nat(is_ipv6) else {
            return Ok(0);
        };
        let pass = self.run(iterator, START, &[])?;
        Ok(pass.nat_forward_alive + pass.nat_reverse_alive)
    }

    fn purge(&self, is_ipv6: bool) -> Result<Purged, CollectError> {
        let Some(iterator) = self.nat(is_ipv6) else {
            return Ok(Purged::default());
        };
        if self.count_nat(is_ipv6) == Some(0) {
            return Ok(Purged::default());
        }
        let pass = self.run(iterator, 0, &[])?;
        Ok(Purged {
            alive: NatCount {
                forward: pass.nat_forward_alive,
                reverse: pass.nat_reverse_alive,
            },
            deleted: NatCount {
                forward: pass.nat_forward_deleted,
                reverse: pass.nat_reverse_deleted,
            },
        })
    }
}

/// Runs the program that counts entries.
fn read_counts(program: BorrowedFd<'_>) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: std::ptr::from_mut(&mut counts).cast(),
        ctx_size_in: size_of::<Counts>() as u32,
        ..Default::default()
    };
    // SAFETY: the context is as large as said, all integers, and outlives the call; the kernel writes it back.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(counts)
}

/// Runs an iterator to its end, a slice a read.
fn walk(link: BorrowedFd<'_>) -> io::Result<PassTime> {
    let mut run = std::fs::File::from(link::iterate(link)?);
    let mut time = PassTime::default();
    let mut byte = [0];
    loop {
        let before = thread_time();
        let read = run.read(&mut byte);
        time.slices += 1;
        time.longest_slice = time.longest_slice.max(thread_time().saturating_sub(before));
        match read {
            Ok(0) => return Ok(time),
            Ok(_) => {}
            // So many entries that the kernel wants a break of its own, or a signal.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn failed(source: MapError) -> LoadError {
    LoadError::Map {
        object: OBJECT,
        source,
    }
}

/// The maps of the object that are pinned.
fn open_pinned(store: &MapStore) -> Result<Vec<KernelMap>, MapError> {
    let flows = FlowMap::ALL.map(|map| map.family());
    let mut pinned = Vec::new();
    for family in flows.into_iter().chain([&NAT4.family, &NAT6.family]) {
        match store.open_raw(family.name) {
            Ok(map) => pinned.push(map),
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(pinned)
}

fn ids(pinned: &[KernelMap]) -> Vec<(&'static str, u32)> {
    let named = |map: &KernelMap| Some((skep_bpf_maps::find(map.name())?.name, map.info().id));
    pinned.iter().filter_map(named).collect()
}

/// Replaces the object's maps by the pinned ones. Others become private with one entry: nothing walks them.
fn share_pinned(object: &mut OpenObject, store: &MapStore) -> Result<Vec<KernelMap>, LoadError> {
    let pinned = open_pinned(store).map_err(failed)?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if skep_bpf_maps::find(&name).is_none() {
            continue;
        }
        let found = pinned.iter().find(|pinned| pinned.name() == name);
        let result = match found.and_then(|pinned| pinned.fd()) {
            Some(fd) => map.reuse_fd(fd),
            None => map.set_max_entries(1),
        };
        result.map_err(|source| LoadError::Reuse {
            object: OBJECT,
            map: name,
            source,
        })?;
    }
    Ok(pinned)
}

/// A map of the object that outlives it.
fn own_map<K, V>(name: &'static str, fd: BorrowedFd<'_>) -> Result<Map<K, V>, LoadError>
where
    K: skep_bpf_sys::map::Plain,
    V: skep_bpf_sys::map::Plain,
{
    let fd = fd.try_clone_to_owned().map_err(|source| {
        failed(MapError::Inspect {
            map: name.to_owned(),
            source,
        })
    })?;
    Map::from_fd(name, fd).map_err(failed)
}
