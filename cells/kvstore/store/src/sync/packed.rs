// SPDX-License-Identifier: Apache-2.0

//! Values as a sync store keeps them. There is one for each key for as long as the program runs, so that it can be written
//! again when the key-value store has lost it. Values of one prefix are much alike: they are compressed (LZ4) with the first
//! ones as a dictionary, to a third (an address) or a seventh (a service with ten backends) of their size.

use lz4_flex::block::{compress_with_dict, decompress_with_dict};

/// Size of the dictionary. Each compression reads it, and more of the same kind of values makes the result hardly smaller.
const DICTIONARY: usize = 1024;

/// A value that was packed by a [`Packer`], who alone can unpack it. One byte says how, then comes the value: as it is, or its
/// length and what LZ4 made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packed(Box<[u8]>);

const PLAIN: u8 = 0;
const LZ4: u8 = 1;
/// The byte that says how, and the length.
const HEAD: usize = 5;

impl Packed {
    fn plain(value: &[u8]) -> Self {
        Self([&[PLAIN], value].concat().into())
    }

    /// Length and content of a compressed value.
    fn compressed(&self) -> Option<(usize, &[u8])> {
        let (head, content) = self.0.split_first_chunk::<HEAD>()?;
        let [LZ4, length @ ..] = head else { return None };
        Some((u32::from_le_bytes(*length) as usize, content))
    }
}

/// Packs and unpacks the values of one store.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// The first values, as many as fit. What is in here stays: it is needed to unpack.
    dictionary: Vec<u8>,
}

impl Packer {
    pub(super) fn pack(&mut self, value: &[u8]) -> Packed {
        let room = DICTIONARY - self.dictionary.len();
        if room > 0 {
            let sample = &value[..value.len().min(room)];
            self.dictionary.extend_from_slice(sample);
            if self.dictionary.len() == DICTIONARY {
                self.dictionary.shrink_to_fit();
            }
            return Packed::plain(value);
        }
        let Ok(length) = u32::try_from(value.len()) else {
            return Packed::plain(value);
        };
        let content = compress_with_dict(value, &self.dictionary);
        if HEAD + content.len() > value.len() {
            return Packed::plain(value);
        }
        Packed([&[LZ4][..], &length.to_le_bytes(), &content].concat().into())
    }

    pub(super) fn unpack(&self, packed: &Packed) -> Vec<u8> {
        match packed.compressed() {
            Some((length, content)) => decompress_with_dict(content, length, &self.dictionary)
                .expect("it was compressed with this dictionary, which is never changed once it is used"),
            None => packed.0[1..].to_vec(),
        }
    }

    /// Whether this is the value that was packed.
    pub(super) fn is(&self, packed: &Packed, value: &[u8]) -> bool {
        match packed.compressed() {
            Some((length, _)) => length == value.len() && self.unpack(packed) == value,
            None => packed.0[1..] == *value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> Vec<u8> {
        let text = format!(
            r#"{{"IP":"10.64.{}.{}","Mask":null,"HostIP":"172.20.0.{}","ID":{},"Key":0,"Metadata":"","K8sNamespace":"shop"}}"#,
            number / 256,
            number % 256,
            number % 7,
            131_328 + number,
        );
        text.into_bytes()
    }

    #[test]
    fn values_that_are_alike_need_less_than_half() {
        let mut packer = Packer::default();
        let values: Vec<Vec<u8>> = (0..1000).map(address).collect();

        let packed: Vec<Packed> = values.iter().map(|value| packer.pack(value)).collect();

        let sizes = [
            packed.iter().map(|packed| packed.0.len()).sum::<usize>(),
            values.iter().map(Vec::len).sum(),
        ];
        assert!(sizes[0] * 2 < sizes[1], "{sizes:?}");
        for (packed, value) in packed.iter().zip(&values) {
            assert_eq!(packer.unpack(packed), *value);
            assert!(packer.is(packed, value));
            assert!(!packer.is(packed, &address(1000)));
        }
        assert_eq!(packer.dictionary.capacity(), DICTIONARY);
    }

    #[test]
    fn any_value_is_unpacked_as_it_was() {
        let mut packer = Packer::default();
        let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(5000).collect();
        let values = [
            &b""[..],
            b"{}",
            &noise,
            b"",
            b"x",
            &[0; 100_000],
            &noise[..700],
            b"{}",
        ];

        let packed = values.map(|value| packer.pack(value));

        for (packed, value) in packed.iter().zip(values) {
            assert_eq!(packer.unpack(packed), value);
            assert!(packer.is(packed, value));
        }
        assert!(!packer.is(&packed[1], b"{"));
        assert!(packed[2].0.len() <= 1 + noise.len());
    }
}
