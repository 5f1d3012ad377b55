// SPDX-License-Identifier: Apache-2.0

//! The kernel's tick: programs may tell time by it instead of by the clock.
//!
//! Times in maps are on the clock of the programs that wrote them, and maps outlive programs and settings. So the clock is
//! recorded beside the maps, and stays as it is while they hold times.

use std::{
    mem::MaybeUninit,
    time::{Duration, Instant},
};

use libbpf_rs::{
    OpenObject, ProgramInput, ProgramMut,
    skel::{OpenSkel as _, SkelBuilder as _},
};

use skep_bpf_maps::{
    collect::FlowMap,
    lb::{AFFINITY4, AFFINITY6},
};
use skep_bpf_sys::{MapError, MapFlags, MapKind, MapSpec, MapStore, RawMap as _};

use super::{
    error::LoadError,
    object::logged,
    skeleton::clock::{SocketClockSkel, SocketClockSkelBuilder},
};

const OBJECT: &str = "socket_clock";
/// Long enough to tell the slowest ticks apart.
const MEASURED: Duration = Duration::from_millis(200);
/// What kernels are built with (`CONFIG_HZ`).
const TICKS: [u32; 7] = [24, 48, 100, 128, 250, 300, 1000];
/// Shortest frame that a program may be tried with.
const FRAME: [u8; 14] = [0; 14];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapClock {
    Seconds,
    /// Ticks / 256, so many ticks a second.
    Ticks(u32),
}

/// The record: the ticks a second, 0 for seconds.
fn record() -> MapSpec<u32, u32> {
    MapSpec::new("skep_clock", MapKind::Array, 1, MapFlags::NONE)
}

impl MapClock {
    /// Ticks a second, if it counts them.
    pub const fn ticks(self) -> Option<u32> {
        match self {
            Self::Seconds => None,
            Self::Ticks(hz) => Some(hz),
        }
    }

    /// The clock of the pinned maps, if it is recorded.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the record cannot be read.
    pub fn recorded(store: &MapStore) -> Result<Option<Self>, MapError> {
        let record = match store.open::<u32, u32>(record().raw().name) {
            Err(error) if error.is_missing() => return Ok(None),
            record => record?,
        };
        Ok(record.lookup(&0)?.map(|hz| match hz {
            0 => Self::Seconds,
            hz => Self::Ticks(hz),
        }))
    }

    /// Records this clock, unless maps hold times on another one: returns the clock that programs must use.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the record cannot be read or written.
    pub fn keep(self, store: &MapStore) -> Result<Self, MapError> {
        match Self::recorded(store)? {
            Some(kept) if kept == self || holds_times(store)? => Ok(kept),
            _ => {
                store
                    .open_or_create(&record())?
                    .update(&0, &self.ticks().unwrap_or(0))?;
                Ok(self)
            }
        }
    }
}

/// Whether a pinned map has entries with times that are compared with the clock.
fn holds_times(store: &MapStore) -> Result<bool, MapError> {
    let affinities = [AFFINITY4.name, AFFINITY6.name];
    let names = FlowMap::ALL.map(|map| map.family().name);
    for name in names.into_iter().chain(affinities) {
        let map = match store.open_raw(name) {
            Err(error) if error.is_missing() => continue,
            map => map?,
        };
        let mut has_entries = false;
        map.walk(&mut |_, _| has_entries = true)
            .map_err(|source| MapError::Walk {
                map: name.to_owned(),
                source,
            })?;
        if has_entries {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Ticks of the kernel in a second, measured. Takes 0.2 s.
///
/// # Errors
///
/// [`LoadError`] if the program that reads the tick count is not loaded or does not run.
pub fn kernel_hz() -> Result<u32, LoadError> {
    let mut storage = MaybeUninit::uninit();
    let skeleton = load(&mut storage)?;
    let read = || {
        let ticks = run(&skeleton.progs.skep_jiffies)?;
        Ok((ticks, Instant::now()))
    };
    let (first, start) = read()?;
    std::thread::sleep(MEASURED);
    let (last, end) = read()?;
    Ok(nearest(last.wrapping_sub(first), end - start))
}

/// Time on the clock of maps if that counts ticks: in units of 256.
///
/// # Errors
///
/// As [`kernel_hz`].
pub fn map_ticks() -> Result<u32, LoadError> {
    let mut storage = MaybeUninit::uninit();
    let skeleton = load(&mut storage)?;
    run(&skeleton.progs.skep_map_ticks)
}

fn load(storage: &mut MaybeUninit<OpenObject>) -> Result<SocketClockSkel<'_>, LoadError> {
    let open = SocketClockSkelBuilder::default()
        .open(storage)
        .map_err(|source| LoadError::Open {
            object: OBJECT,
            source,
        })?;
    logged(OBJECT, || open.load())
}

/// Runs a program once; returns what it returns.
fn run(program: &ProgramMut<'_>) -> Result<u32, LoadError> {
    let output = program
        .test_run(ProgramInput {
            data_in: Some(&FRAME),
            ..ProgramInput::default()
        })
        .map_err(|source| LoadError::Run {
            object: OBJECT,
            source,
        })?;
    Ok(output.return_value)
}

/// The tick rate that comes closest to so many ticks in this time.
fn nearest(ticks: u32, time: Duration) -> u32 {
    let rate = f64::from(ticks) / time.as_secs_f64();
    TICKS
        .into_iter()
        .min_by(|one, other| {
            let distance = |ticks: u32| (f64::from(ticks) - rate).abs();
            distance(*one).total_cmp(&distance(*other))
        })
        .unwrap_or(TICKS[0])
}

#[cfg(test)]
mod tests {
    use skep_bpf_maps::{
        MapSizes,
        conntrack::{CT_TCP_MAX, CT_TCP4, CtEntry, CtKey4},
    };
    use skep_bpf_sys::testing::Node;
    use zerocopy::FromZeros as _;

    use super::*;

    #[test]
    fn ticks_are_told_apart_though_the_measure_is_off_by_one() {
        for rate in TICKS {
            let ticks = rate / 5;
            for counted in [ticks, ticks + 1] {
                assert_eq!(nearest(counted, MEASURED), rate, "{counted} ticks");
            }
        }
    }

    #[test]
    fn maps_keep_the_clock_of_their_times() {
        let result: std::io::Result<()> = Node::run("clock", |node| {
            let store = node.store();
            let keep = |clock: MapClock| clock.keep(&node.store()).map_err(std::io::Error::other);
            assert_eq!(MapClock::recorded(&store).unwrap(), None);
            assert_eq!(keep(MapClock::Ticks(250))?, MapClock::Ticks(250));
            // Nothing is on that clock yet.
            assert_eq!(keep(MapClock::Seconds)?, MapClock::Seconds);

            let sizes = |max| MapSizes::default().with(CT_TCP_MAX, max);
            let tracked = |max| {
                let map = node.store().open_or_create(&CT_TCP4.spec(&sizes(max)));
                map.map_err(std::io::Error::other)
            };
            let (key, entry) = (CtKey4::new_zeroed(), CtEntry::new_zeroed());
            tracked(1024)?.update(&key, &entry).unwrap();

            // The setting changes, and with it the size of the map: its entry is carried.
            assert_eq!(tracked(2048)?.lookup(&key).unwrap(), Some(entry));
            assert_eq!(keep(MapClock::Ticks(250))?, MapClock::Seconds);
            assert_eq!(MapClock::recorded(&store).unwrap(), Some(MapClock::Seconds));

            tracked(2048)?.delete(&key).unwrap();
            assert_eq!(keep(MapClock::Ticks(250))?, MapClock::Ticks(250));
            Ok(())
        });
        result.unwrap();
    }

    #[test]
    fn this_kernel_ticks_as_it_was_built() {
        let hz = kernel_hz().unwrap();
        assert!(TICKS.contains(&hz));

        let before = map_ticks().unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        let passed = map_ticks().unwrap() - before;
        assert!(
            passed >= hz / 256,
            "{passed} units of 256 ticks in a second of {hz}"
        );
    }
}
