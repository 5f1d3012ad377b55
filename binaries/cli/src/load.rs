// SPDX-License-Identifier: Apache-2.0

//! `skep loadinfo`: load and memory of the node, from procfs.

use std::{collections::BTreeMap, fs, path::Path};

use crate::failure::{Failure, fatal};

pub(crate) fn text(procfs: &Path) -> Result<String, Failure> {
    let read = |name: &str| {
        let path = procfs.join(name);
        fs::read_to_string(&path).map_err(|error| fatal(format!("cannot read {}: {error}", path.display())))
    };
    Ok(summary(&read("loadavg")?, &read("meminfo")?))
}

/// Lines out of `loadavg` and `meminfo` (proc(5)); memory in MiB.
fn summary(load: &str, memory: &str) -> String {
    let load: Vec<&str> = load.split_whitespace().chain(["?"; 3]).take(3).collect();
    let fields: BTreeMap<&str, u64> = memory
        .lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name, value.split_whitespace().next()?.parse().ok()?))
        })
        .collect();
    let of = |name: &str| fields.get(name).copied().unwrap_or_default();
    let used = |total: u64, free: u64| {
        let used = total.saturating_sub(free);
        let percent = used as f64 * 100.0 / total.max(1) as f64;
        format!(
            "Total: {} Used: {} ({percent:.2}%) Free: {}",
            total >> 10,
            used >> 10,
            free >> 10
        )
    };
    format!(
        "Load 1-min: {} 5-min: {} 15-min: {}\nMemory: {} Buffers: {} Cached: {}\nSwap: {}\n",
        load[0],
        load[1],
        load[2],
        used(of("MemTotal"), of("MemAvailable")),
        of("Buffers") >> 10,
        of("Cached") >> 10,
        used(of("SwapTotal"), of("SwapFree")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_and_memory_are_read_from_procfs() {
        let memory = "MemTotal: 4096 kB\nMemAvailable: 1024 kB\nBuffers: 1024 kB\nCached: 2048 kB\n";

        assert_eq!(
            summary("0.50 1.25 2.00 1/200 4711\n", memory),
            "Load 1-min: 0.50 5-min: 1.25 15-min: 2.00\n\
             Memory: Total: 4 Used: 3 (75.00%) Free: 1 Buffers: 1 Cached: 2\n\
             Swap: Total: 0 Used: 0 (0.00%) Free: 0\n"
        );
    }
}
