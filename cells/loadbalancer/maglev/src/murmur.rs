// SPDX-License-Identifier: Apache-2.0

//! MurmurHash3, the 128-bit variant for 64-bit machines, over a byte slice.
//!
//! Public-domain algorithm by Austin Appleby. The crates that offer it read from `io::Read` and return an
//! `io::Result`; hashing a slice can't fail.

const C1: u64 = 0x87c3_7b91_1142_53d5;
const C2: u64 = 0x4cf5_ad43_2745_937f;

/// Hashes `data`; returns the two halves `(h1, h2)`.
///
/// ```
/// let (h1, h2) = skep_loadbalancer_maglev::murmur3_x64_128(b"[10.0.0.1:80/TCP,State:active]", 0x24b7_ef82);
/// assert_eq!((h1, h2), (0xc61a_94cb_c80e_5006, 0x4aa5_ddef_6f23_e6ea));
/// ```
pub fn murmur3_x64_128(data: &[u8], seed: u32) -> (u64, u64) {
    let (mut h1, mut h2) = (u64::from(seed), u64::from(seed));

    let (blocks, tail) = data.as_chunks::<16>();
    for block in blocks {
        let (k1, k2) = halves(block);
        h1 ^= mix_k1(k1);
        h1 = h1
            .rotate_left(27)
            .wrapping_add(h2)
            .wrapping_mul(5)
            .wrapping_add(0x52dc_e729);
        h2 ^= mix_k2(k2);
        h2 = h2
            .rotate_left(31)
            .wrapping_add(h1)
            .wrapping_mul(5)
            .wrapping_add(0x3849_5ab5);
    }

    // A missing byte counts as zero, and mixing zero changes nothing, so a padded block does for every tail.
    let mut last = [0; 16];
    last[..tail.len()].copy_from_slice(tail);
    let (k1, k2) = halves(&last);
    h2 ^= mix_k2(k2);
    h1 ^= mix_k1(k1);

    h1 ^= data.len() as u64;
    h2 ^= data.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    h1 = finish(h1);
    h2 = finish(h2);
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (h1, h2)
}

/// The two little-endian words of a block.
fn halves(block: &[u8; 16]) -> (u64, u64) {
    let word = u128::from_le_bytes(*block);
    (word as u64, (word >> 64) as u64)
}

fn mix_k1(k: u64) -> u64 {
    k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2)
}

fn mix_k2(k: u64) -> u64 {
    k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1)
}

fn finish(mut h: u64) -> u64 {
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}
