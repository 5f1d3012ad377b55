// SPDX-License-Identifier: Apache-2.0

//! The clock that programs read (`bpf_ktime_get_ns`): times in maps are seconds of it.
//!
//! It is the monotonic clock of the initial time namespace. A process in another one, such as a container with offsets,
//! reads its own monotonic clock shifted, and would take entries of live flows for expired, or keep expired ones.

use std::{fs, io, sync::OnceLock, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// Offsets of the time namespace that children of this process are born in.
const OFFSETS: &str = "/proc/self/timens_offsets";
const OWN: &str = "/proc/self/ns/time";
const OF_CHILDREN: &str = "/proc/self/ns/time_for_children";

const SECOND: i128 = 1_000_000_000;

/// Why the clock of programs is unknown.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// Mount `/proc`.
    #[error("cannot read {path}, which says how the clocks of this time namespace are shifted")]
    Read {
        path: &'static str,
        #[source]
        source: io::Error,
    },
    /// A kernel with another form of that file.
    #[error("{OFFSETS} has no offset of the monotonic clock: `{0}`")]
    Form(String),
    /// The kernel shows the offsets of the namespace of children only. Start the program in the new namespace instead.
    #[error("this process has made a time namespace for its children, which hides the offsets of its own")]
    Hidden,
}

/// Nanoseconds by which the monotonic clock of this process is ahead of that of programs.
fn offset() -> Result<i128, ClockError> {
    // A process with threads cannot change its namespace, and offsets are fixed once a process is in it.
    static OFFSET: OnceLock<i128> = OnceLock::new();
    if let Some(offset) = OFFSET.get() {
        return Ok(*offset);
    }
    let read = |path: &'static str| move |source| ClockError::Read { path, source };
    let offset = match fs::read_to_string(OFFSETS) {
        // Linux before 5.6, or without time namespaces.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && fs::exists("/proc/self/ns").unwrap_or(false) =>
        {
            0
        }
        text => {
            let text = text.map_err(read(OFFSETS))?;
            let own = fs::read_link(OWN).map_err(read(OWN))?;
            if own != fs::read_link(OF_CHILDREN).map_err(read(OF_CHILDREN))? {
                return Err(ClockError::Hidden);
            }
            parse(&text).ok_or(ClockError::Form(text))?
        }
    };
    Ok(*OFFSET.get_or_init(|| offset))
}

/// The line `monotonic SECONDS NANOSECONDS`.
fn parse(text: &str) -> Option<i128> {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("monotonic"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, nanoseconds) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(i128::from(seconds) * SECOND + i128::from(nanoseconds))
}

/// Time since boot without suspends, as programs read it; right to a tick, and never ahead of theirs.
///
/// # Errors
///
/// [`ClockError`] if this process is in a time namespace of unknown offsets.
pub fn kernel_time() -> Result<Duration, ClockError> {
    let offset = offset()?;
    let own = clock_gettime(ClockId::MonotonicCoarse);
    let time = i128::from(own.tv_sec) * SECOND + i128::from(own.tv_nsec) - offset;
    let seconds = u64::try_from(time.div_euclid(SECOND)).unwrap_or(0);
    Ok(Duration::new(seconds, time.rem_euclid(SECOND) as u32))
}

/// The seconds of [`kernel_time`]: what times in maps are compared with, unless these count ticks.
///
/// # Errors
///
/// As [`kernel_time`].
pub fn kernel_seconds() -> Result<u64, ClockError> {
    kernel_time().map(|time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn offsets_are_read_in_the_forms_of_the_kernel() {
        assert_eq!(
            parse("monotonic           0         0\nboottime            0         0\n"),
            Some(0)
        );
        let text = "monotonic      100000 500000000\nboottime       -5         0\n";
        assert_eq!(parse(text), Some(100_000_500_000_000));
        assert_eq!(parse("monotonic -7 250000000\n"), Some(-6_750_000_000));
        assert_eq!(parse("boottime 0 0\n"), None);
        assert_eq!(parse("monotonic soon\n"), None);
    }

    /// Time that a namespace is ahead.
    const AHEAD: u64 = 1_000_000;

    #[test]
    fn a_time_namespace_does_not_shift_the_clock_of_maps() {
        let own = || Duration::from_secs(clock_gettime(ClockId::Monotonic).tv_sec.unsigned_abs());
        if std::env::var_os("SKEP_SHIFTED").is_some() {
            // The parent reads it.
            println!("\n{} {}", kernel_seconds().unwrap(), own().as_secs());
            return;
        }
        let before = kernel_time().unwrap();
        // Without offsets it is the monotonic clock.
        assert!(own().abs_diff(before) < Duration::from_secs(5));

        let output = Command::new("unshare")
            .args(["--time", "--fork", "--monotonic", &AHEAD.to_string()])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "clock::tests::a_time_namespace_does_not_shift_the_clock_of_maps",
            ])
            .arg("--nocapture")
            .env("SKEP_SHIFTED", "1")
            .output()
            .unwrap();

        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let read = |line: &str| {
            let (kernel, own) = line.split_once(' ')?;
            Some((kernel.parse::<u64>().ok()?, own.parse::<u64>().ok()?))
        };
        let (kernel, shifted) = text.lines().find_map(read).unwrap_or_else(|| panic!("{text}"));
        let after = kernel_time().unwrap();
        assert!(
            before.as_secs() <= kernel && kernel <= after.as_secs(),
            "{kernel} is not between {before:?} and {after:?}"
        );
        assert!(
            shifted >= before.as_secs() + AHEAD,
            "{shifted}: the namespace has no offset"
        );
    }
}
