// SPDX-License-Identifier: Apache-2.0

//! Memory and processor time of processes, and processors of threads.

use std::time::Duration;
use std::{fs, io};

use anyhow::Context;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Lets [`peak_mib`] of this process begin anew.
pub(crate) fn reset_peak() -> anyhow::Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("/proc/self/clear_refs")
}

/// Highest resident memory of this process since [`reset_peak`], in MiB.
pub(crate) fn peak_mib() -> anyhow::Result<f64> {
    status_mib("self", "VmHWM:")
}

/// Resident memory of a process, in MiB.
pub(crate) fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    status_mib(&pid.to_string(), "VmRSS:")
}

/// Highest resident memory of a process, in MiB.
pub(crate) fn highest_mib(pid: u32) -> anyhow::Result<f64> {
    status_mib(&pid.to_string(), "VmHWM:")
}

/// Resident memory of a process that is not of files, in MiB: its heap and stacks.
pub(crate) fn own_mib(pid: u32) -> anyhow::Result<f64> {
    status_mib(&pid.to_string(), "RssAnon:")
}

fn status_mib(process: &str, field: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let line = line.with_context(|| format!("{path}: no {field}"))?;
    let number = line.trim().trim_end_matches(" kB");
    let kib: f64 = number.parse().with_context(|| format!("{path}: {number}"))?;
    Ok(kib / 1024.0)
}

/// Processor time of this process, all threads.
pub(crate) fn processor_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Processor time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// Processor time of the children of this process that were waited for.
pub(crate) fn processor_time_of_children() -> Duration {
    let path = "/proc/self/stat";
    let stat = fs::read_to_string(path).unwrap_or_default();
    ticks(&stat, [13, 14]).unwrap_or_default()
}

/// Time of a clock of the kernel.
pub(crate) fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Keeps the calling thread on one processor.
pub(crate) fn pin(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// Processor time of another process, in the kernel's ticks of 10 ms.
pub(crate) fn processor_time_of(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
    ticks(&stat, [11, 12]).with_context(|| format!("{path}: {stat}"))
}

/// The sum of two fields of `stat`, counted from the state of the process.
fn ticks(stat: &str, fields: [usize; 2]) -> Option<Duration> {
    // The name, in parentheses, may contain spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks = fields.map(|at| rest.split_whitespace().nth(at)?.parse::<u64>().ok());
    Some(Duration::from_millis((ticks[0]? + ticks[1]?) * 10))
}
