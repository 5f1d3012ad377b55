// SPDX-License-Identifier: Apache-2.0

//! Maglev lookup tables: table size and hash seed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::str::FromStr;

/// Sizes a table may have: primes, about doubling.
const TABLE_SIZES: [u32; 10] = [251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131_071];

/// Settings of lookup tables. All nodes of a cluster need the same, or connections break when they enter through another
/// node.
#[derive(Debug, Clone, hive::Config)]
pub struct MaglevConfig {
    /// Size of a Maglev table: about a hundred times the number of backends of the largest service.
    #[config(default = 16381, flag = "bpf-lb-maglev-table-size")]
    pub table_size: TableSize,
    /// Seed of Maglev tables and packet hashes: 12 random bytes in base64.
    #[config(default = "JLfvgnHc2kaSUFaI", flag = "bpf-lb-maglev-hash-seed")]
    pub hash_seed: HashSeed,
}

/// Why a setting was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MaglevError {
    /// Not a number at all.
    #[error("`{0}` is not a number")]
    NotANumber(String),
    /// Not one of the supported primes. Choose about a hundred times the number of backends of a service.
    #[error("{0} is not supported, choose one of {TABLE_SIZES:?}")]
    TableSize(u64),
    /// Not base64. Make a seed with `head -c12 /dev/urandom | base64 -w0`.
    #[error("`{text}` is not base64")]
    NotBase64 {
        /// The text that was given.
        text: String,
        /// What the decoder objected to.
        #[source]
        cause: base64::DecodeError,
    },
    /// Decodes to something else than 12 bytes.
    #[error("decoded seed has {0} bytes, it must have 12")]
    SeedLength(usize),
}

/// Number of entries of a lookup table (the `M` of the paper); always one of ten supported primes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSize(u32);

impl TableSize {
    /// Number of entries.
    pub fn get(self) -> u32 {
        self.0
    }

    /// Every supported size, ascending.
    pub fn supported() -> impl Iterator<Item = Self> {
        TABLE_SIZES.into_iter().map(Self)
    }
}

impl Default for TableSize {
    fn default() -> Self {
        Self(16381)
    }
}

impl FromStr for TableSize {
    type Err = MaglevError;

    fn from_str(text: &str) -> Result<Self, MaglevError> {
        let size: u64 = text
            .trim()
            .parse()
            .map_err(|_| MaglevError::NotANumber(text.to_owned()))?;
        Self::try_from(size)
    }
}

hive::config_value!(TableSize, "a supported prime");

impl TryFrom<u64> for TableSize {
    type Error = MaglevError;

    fn try_from(size: u64) -> Result<Self, MaglevError> {
        match u32::try_from(size) {
            Ok(size) if TABLE_SIZES.contains(&size) => Ok(Self(size)),
            _ => Err(MaglevError::TableSize(size)),
        }
    }
}

impl fmt::Display for TableSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Twelve bytes that hashes of backends and packets start from; equal on all nodes of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashSeed {
    /// Seed of the hash that places backends in the table.
    pub murmur: u32,
    /// Seeds of the packet hash of the BPF programs: IPv4, IPv6.
    pub jhash: [u32; 2],
}

impl Default for HashSeed {
    fn default() -> Self {
        Self {
            murmur: 0x24b7_ef82,
            jhash: [0x71dc_da46, 0x9250_5688],
        }
    }
}

impl FromStr for HashSeed {
    type Err = MaglevError;

    /// Reads the base64 form: three big-endian words, murmur seed first.
    fn from_str(text: &str) -> Result<Self, MaglevError> {
        let bytes = STANDARD.decode(text).map_err(|cause| MaglevError::NotBase64 {
            text: text.to_owned(),
            cause,
        })?;
        let [a, b, c, d, e, f, g, h, i, j, k, l] =
            <[u8; 12]>::try_from(bytes).map_err(|bytes| MaglevError::SeedLength(bytes.len()))?;
        Ok(Self {
            murmur: u32::from_be_bytes([a, b, c, d]),
            jhash: [u32::from_be_bytes([e, f, g, h]), u32::from_be_bytes([i, j, k, l])],
        })
    }
}

impl fmt::Display for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [self.murmur, self.jhash[0], self.jhash[1]];
        f.write_str(&STANDARD.encode(words.map(u32::to_be_bytes).concat()))
    }
}

hive::config_value!(HashSeed, "12 bytes in base64");
