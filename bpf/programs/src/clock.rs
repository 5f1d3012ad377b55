// SPDX-License-Identifier: Apache-2.0

//! The kernel's tick: programs may tell time by it instead of by the clock.

use std::{
    mem::MaybeUninit,
    time::{Duration, Instant},
};

use libbpf_rs::{
    OpenObject, ProgramInput, ProgramMut,
    skel::{OpenSkel as _, SkelBuilder as _},
};

use super::{
    object::{LoadError, logged},
    skeleton::clock::{SocketClockSkel, SocketClockSkelBuilder},
};

const OBJECT: &str = "socket_clock";
/// Long enough to tell the slowest ticks apart.
const MEASURED: Duration = Duration::from_millis(200);
/// What kernels are built with (`CONFIG_HZ`).
const TICKS: [u32; 7] = [24, 48, 100, 128, 250, 300, 1000];
/// Shortest frame that a program may be tried with.
const FRAME: [u8; 14] = [0; 14];

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
