// SPDX-License-Identifier: Apache-2.0

//! The two settings: table size and hash seed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::str::FromStr;

/// Sizes a table may have: primes, about doubling.
const TABLE_SIZES: [u32; 10] = [251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131_071];

/// Why a setting was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingError {
    /// Not one of the supported primes. Choose about a hundred times the number of backends of a service.
    #[error("bpf-lb-maglev-table-size: {0} is not supported, choose one of {TABLE_SIZES:?}")]
    TableSize(u64),
    /// Not base64. Make a seed with `head -c12 /dev/urandom | base64 -w0`.
    #[error("bpf-lb-maglev-hash-seed: `{text}` is not base64")]
    NotBase64 {
        /// The text that was given.
        text: String,
        /// What the decoder objected to.
        #[source]
        cause: base64::DecodeError,
    },
    /// Decodes to something else than 12 bytes.
    #[error("bpf-lb-maglev-hash-seed: decoded seed has {0} bytes, it must have 12")]
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

impl TryFrom<u64> for TableSize {
    type Error = SettingError;

    fn try_from(size: u64) -> Result<Self, SettingError> {
        match u32::try_from(size) {
            Ok(size) if TABLE_SIZES.contains(&size) => Ok(Self(size)),
            _ => Err(SettingError::TableSize(size)),
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
    type Err = SettingError;

    /// Reads the base64 form: three big-endian words, murmur seed first.
    fn from_str(text: &str) -> Result<Self, SettingError> {
        let bytes = STANDARD.decode(text).map_err(|cause| SettingError::NotBase64 {
            text: text.to_owned(),
            cause,
        })?;
        let [a, b, c, d, e, f, g, h, i, j, k, l] =
            <[u8; 12]>::try_from(bytes).map_err(|bytes| SettingError::SeedLength(bytes.len()))?;
        Ok(Self {
            murmur: u32::from_be_bytes([a, b, c, d]),
            jhash: [u32::from_be_bytes([e, f, g, h]), u32::from_be_bytes([i, j, k, l])],
        })
    }
}
