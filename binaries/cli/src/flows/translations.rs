// SPDX-License-Identifier: Apache-2.0

//! `skep bpf nat`: translated sources.

use std::{
    fmt::{self, Write as _},
    io::Write,
    net::{IpAddr, SocketAddr},
};

use clap::Subcommand;
use serde::Serialize;
use skep_bpf_maps::{
    Family,
    nat::{NAT_ATTEMPTS, NAT_RETRIES4, NAT_RETRIES6, NAT4, NAT6, NatEntry4, NatEntry6, NatKey4, NatKey6},
    text::protocol,
};
use skep_bpf_sys::{
    MapError, RawMap as _,
    clock::kernel_seconds,
    map::{PerCpuMap, Plain},
};

use super::{FlowsError, Writer};
use crate::{
    maps::{MapsError, Pinned},
    print::{self, Format},
};

#[derive(Debug, Subcommand)]
pub(crate) enum TranslationCommand {
    /// List all entries.
    #[command(alias = "ls")]
    List {
        /// Cluster id of overlapping addresses.
        cluster: Option<u32>,
    },
    /// Delete all entries; translated connections break.
    Flush,
    /// Port allocation retries.
    #[command(subcommand)]
    Retries(RetriesCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RetriesCommand {
    /// Show the histogram of retries.
    #[command(alias = "ls")]
    List,
    /// Reset the counters.
    Flush,
}

/// `skep bpf nat`.
pub(crate) fn translations(
    pinned: &Pinned,
    command: &TranslationCommand,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), FlowsError> {
    match command {
        TranslationCommand::List { cluster } => list(pinned, *cluster, format, out),
        TranslationCommand::Flush => {
            for name in pinned.there(vec![NAT4.name, NAT6.name], |name| name)? {
                let deleted = if name == NAT4.name {
                    pinned.open::<NatKey4, NatEntry4>(name)?.clear()
                } else {
                    pinned.open::<NatKey6, NatEntry6>(name)?.clear()
                };
                let deleted = deleted.map_err(MapsError::from)?;
                writeln!(out, "Flushed {deleted} entries from {}", pinned.path(name))?;
            }
            Ok(())
        }
        TranslationCommand::Retries(RetriesCommand::List) => retries(pinned, format, out),
        TranslationCommand::Retries(RetriesCommand::Flush) => flush_retries(pinned, out),
    }
}

fn list(
    pinned: &Pinned,
    cluster: Option<u32>,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), FlowsError> {
    let name = |is_ipv6: bool| match (cluster, is_ipv6) {
        (None, false) => NAT4.name.to_owned(),
        (None, true) => NAT6.name.to_owned(),
        (Some(id), false) => format!("cilium_per_cluster_snat_v4_external_{id}"),
        (Some(id), true) => format!("cilium_per_cluster_snat_v6_external_{id}"),
    };
    let names: Vec<(bool, String)> = [false, true].map(|is_ipv6| (is_ipv6, name(is_ipv6))).into();
    let now = kernel_seconds()?;
    let there = pinned.there(names, |(_, name)| name)?;
    let mut writer = Writer::new(out, format)?;
    for (is_ipv6, name) in there {
        if is_ipv6 {
            list_map::<NatKey6, NatEntry6>(pinned, &name, now, &mut writer)?;
        } else {
            list_map::<NatKey4, NatEntry4>(pinned, &name, now, &mut writer)?;
        }
    }
    Ok(writer.finish()?)
}

/// What entries of both address families have.
trait Entry<K>: Plain {
    fn translation(key: &K, entry: &Self) -> Translation;
}

macro_rules! entry {
    ($key:ident, $entry:ident) => {
        impl Entry<$key> for $entry {
            fn translation(key: &$key, entry: &Self) -> Translation {
                Translation {
                    protocol: protocol(key.proto),
                    direction: if key.flags & 1 == 0 { "OUT" } else { "IN" },
                    source: SocketAddr::new(IpAddr::from(key.saddr), key.sport.get()),
                    destination: SocketAddr::new(IpAddr::from(key.daddr), key.dport.get()),
                    translated: SocketAddr::new(IpAddr::from(entry.address), entry.port.get()),
                    created: entry.created,
                    needs_ct: entry.needs_ct,
                }
            }
        }
    };
}

entry!(NatKey4, NatEntry4);
entry!(NatKey6, NatEntry6);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Translation {
    protocol: &'static str,
    direction: &'static str,
    source: SocketAddr,
    destination: SocketAddr,
    translated: SocketAddr,
    created: u64,
    needs_ct: u64,
}

impl Translation {
    fn write(&self, now: u64, out: &mut String) -> fmt::Result {
        let what = if self.direction == "OUT" {
            "XLATE_SRC"
        } else {
            "XLATE_DST"
        };
        write!(
            out,
            "{} {} {} -> {} {what} {} Created={}sec ago NeedsCT={}",
            self.protocol,
            self.direction,
            self.source,
            self.destination,
            self.translated,
            now.saturating_sub(self.created),
            self.needs_ct,
        )
    }
}

fn list_map<K: Plain, E: Entry<K>>(
    pinned: &Pinned,
    name: &str,
    now: u64,
    writer: &mut Writer<'_>,
) -> Result<(), FlowsError> {
    let map = pinned.open::<K, E>(name)?;
    let mut result = Ok(());
    map.for_each(|key, entry| {
        if result.is_ok() {
            let translation = E::translation(&key, &entry);
            result = writer.entry(|out| translation.write(now, out), || &translation);
        }
    })
    .map_err(MapsError::from)?;
    result
}

/// How often it took as many tries.
#[derive(Serialize)]
struct Tries {
    family: &'static str,
    retries: String,
    count: u64,
}

fn retries(pinned: &Pinned, format: Format, out: &mut dyn Write) -> Result<(), FlowsError> {
    let mut all = Vec::new();
    for name in pinned.there(vec![NAT_RETRIES4.name, NAT_RETRIES6.name], |name| name)? {
        let family = if name == NAT_RETRIES4.name { "IPv4" } else { "IPv6" };
        let map: PerCpuMap<u32, u32> = pinned.open_per_cpu(name)?;
        let mut entries = map.entries().map_err(MapsError::from)?;
        entries.sort_by_key(|(retries, _)| *retries);
        all.extend(entries.into_iter().map(|(retries, counts)| Tries {
            family,
            retries: if retries < NAT_ATTEMPTS {
                retries.to_string()
            } else {
                "none found".to_owned()
            },
            count: counts.into_iter().map(u64::from).sum(),
        }));
    }
    let text = match format {
        Format::Text => {
            let counted = all.into_iter().filter(|tries| tries.count > 0);
            let rows = counted.map(|tries| {
                let family = tries.family.to_owned();
                vec![family, tries.retries, tries.count.to_string()]
            });
            print::table(&["FAMILY", "RETRIES", "COUNT"], rows)
        }
        _ => print::document(&all, format)?,
    };
    Ok(out.write_all(text.as_bytes())?)
}

fn flush_retries(pinned: &Pinned, out: &mut dyn Write) -> Result<(), FlowsError> {
    let families: [&Family; 2] = [&NAT_RETRIES4.family, &NAT_RETRIES6.family];
    for family in pinned.there(families.to_vec(), |family| family.name)? {
        let map = pinned.open_raw(family.name)?;
        let keys: Vec<u8> = (0..=NAT_ATTEMPTS).flat_map(u32::to_ne_bytes).collect();
        let zeros = vec![0; (NAT_ATTEMPTS as usize + 1) * map.value_len()];
        if let Some(failure) = map.update(&keys, &zeros).into_iter().next() {
            return Err(MapsError::from(MapError::Update {
                map: family.name.to_owned(),
                key: failure.index.to_string(),
                source: failure.error,
            })
            .into());
        }
        writeln!(out, "Flushed {}", pinned.path(family.name))?;
    }
    Ok(())
}
