// SPDX-License-Identifier: Apache-2.0

//! Keys: one encoding per key type, whose byte order is the order of the values.
//!
//! An index stores [`KeyBuf`]s. The key of an object and the key of a query are encoded by the same
//! [`Key::encode`], so they agree.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use compact_str::CompactString;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use smallvec::SmallVec;

/// An encoded key on its way into a tree or out of it: mostly without an allocation.
pub(crate) type KeyBytes = SmallVec<[u8; 56]>;

/// Longest key that a [`KeyBuf`] keeps without an allocation, in bytes.
const INLINE: usize = 22;

/// An encoded key: a byte string that is cheap to clone. Compares as bytes.
///
/// ```
/// use statedb::KeyBuf;
///
/// assert!(KeyBuf::of(&-7i32) < KeyBuf::of(&3i32));
/// assert_eq!(KeyBuf::of("web").as_bytes(), b"web");
/// assert_eq!(KeyBuf::new(b"web"), KeyBuf::of("web"));
/// ```
#[derive(Clone)]
pub struct KeyBuf(Repr);

#[derive(Clone)]
enum Repr {
    Inline(u8, [u8; INLINE]),
    Heap(Arc<[u8]>),
}

impl KeyBuf {
    /// Copies `bytes` into a key.
    #[inline]
    pub fn new(bytes: &[u8]) -> Self {
        if bytes.len() <= INLINE {
            let mut buf = [0; INLINE];
            buf[..bytes.len()].copy_from_slice(bytes);
            Self(Repr::Inline(bytes.len() as u8, buf))
        } else {
            Self(Repr::Heap(bytes.into()))
        }
    }

    /// Encodes `key`.
    #[inline]
    pub fn of<K: Key + ?Sized>(key: &K) -> Self {
        let mut writer = KeyWriter::new();
        key.encode(&mut writer);
        writer.finish()
    }

    /// Returns the encoded bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline(len, buf) => &buf[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
    }
}

/// Encodes `key`.
#[inline]
pub(crate) fn encoded<K: Key + ?Sized>(key: &K) -> KeyBytes {
    let mut writer = KeyWriter::new();
    key.encode(&mut writer);
    writer.into_bytes()
}

impl PartialEq for KeyBuf {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeyBuf {}

impl PartialOrd for KeyBuf {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyBuf {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for KeyBuf {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl std::borrow::Borrow<[u8]> for KeyBuf {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(self.as_bytes()))
    }
}

/// Bytes as text for messages: plain when printable, else hexadecimal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text.to_owned(),
        _ => {
            let mut out = String::with_capacity(2 + bytes.len() * 2);
            out.push_str("0x");
            for byte in bytes {
                out.push_str(&format!("{byte:02x}"));
            }
            out
        }
    }
}

/// Collects the bytes of one key.
///
/// ```
/// use statedb::{Key, KeyBuf, KeyWriter};
///
/// let mut writer = KeyWriter::new();
/// writer.delimited("shop");
/// 80u16.encode(&mut writer);
/// assert_eq!(writer.finish(), KeyBuf::of(&("shop", 80u16)));
/// ```
#[derive(Debug, Default)]
pub struct KeyWriter(KeyBytes);

impl KeyWriter {
    /// An empty key.
    #[inline]
    pub fn new() -> Self {
        Self(KeyBytes::new())
    }

    /// Appends bytes as they are.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a key that something follows: adds an end mark unless the key's encoding needs none.
    pub fn delimited<K: Key + ?Sized>(&mut self, key: &K) {
        if K::PREFIX_FREE {
            key.encode(self);
        } else {
            let mut part = Self::new();
            key.encode(&mut part);
            self.escaped(&part.0);
            self.end_mark();
        }
    }

    /// Appends bytes with zero bytes escaped, so that the end mark sorts before any continuation.
    pub(crate) fn escaped(&mut self, raw: &[u8]) {
        for (at, piece) in raw.split(|&byte| byte == 0).enumerate() {
            if at > 0 {
                self.bytes(&[0, 0xff]);
            }
            self.bytes(piece);
        }
    }

    /// Ends an escaped part.
    pub(crate) fn end_mark(&mut self) {
        self.bytes(&[0, 0]);
    }

    /// Returns the finished key.
    #[inline]
    pub fn finish(self) -> KeyBuf {
        KeyBuf::new(&self.0)
    }

    /// Returns the finished key, not to be kept for long.
    #[inline]
    pub(crate) fn into_bytes(self) -> KeyBytes {
        self.0
    }
}

/// Why a text cannot be parsed as a key.
///
/// ```
/// use statedb::{Key, TextKeyError};
///
/// assert!(matches!(u8::from_text("300"), Err(TextKeyError::Invalid(_))));
/// assert_eq!(<(u8, u8)>::from_text("1"), Err(TextKeyError::Unsupported));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextKeyError {
    /// Keys of this type have no text form; query the index from code.
    #[error("keys of this index have no text form")]
    Unsupported,
    /// The text does not parse; the message says why.
    #[error("{0}")]
    Invalid(String),
}

/// A type of keys of an index.
///
/// The bytes written by [`Key::encode`] must compare like the values do. Implement it for own types by writing
/// the parts in order of significance, each but the last with [`KeyWriter::delimited`].
///
/// ```
/// use statedb::{Key, KeyBuf, KeyWriter};
///
/// struct ServiceName { namespace: String, name: String }
///
/// impl Key for ServiceName {
///     fn encode(&self, out: &mut KeyWriter) {
///         out.delimited(self.namespace.as_str());
///         self.name.encode(out);
///     }
/// }
///
/// assert!(KeyBuf::of(&-1i32) < KeyBuf::of(&1i32));
/// assert!(KeyBuf::of(&("a", "z")) < KeyBuf::of(&("ab", "a")));
/// ```
pub trait Key {
    /// True if no encoding is a proper prefix of another one (all of one length, for instance): parts may then
    /// follow without an end mark.
    const PREFIX_FREE: bool = false;

    /// Writes the order-preserving encoding.
    fn encode(&self, out: &mut KeyWriter);

    /// Parses the text form used on the command line.
    ///
    /// # Errors
    /// [`TextKeyError::Unsupported`] if the type has none, [`TextKeyError::Invalid`] if `text` is malformed.
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        let _ = text;
        Err(TextKeyError::Unsupported)
    }

    /// Parses the text of a prefix search, which may be an incomplete key.
    ///
    /// # Errors
    /// As [`Key::from_text`], which is the default.
    fn prefix_from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        Self::from_text(text)
    }
}

/// Parses with [`std::str::FromStr`] and encodes.
fn parse<K>(text: &str) -> Result<KeyBuf, TextKeyError>
where
    K: Key + std::str::FromStr,
    K::Err: fmt::Display,
{
    match text.trim().parse::<K>() {
        Ok(key) => Ok(KeyBuf::of(&key)),
        Err(err) => Err(TextKeyError::Invalid(format!("cannot parse `{text}`: {err}"))),
    }
}

macro_rules! unsigned_key {
    ($($int:ty),*) => {$(
        impl Key for $int {
            const PREFIX_FREE: bool = true;
            #[inline]
            fn encode(&self, out: &mut KeyWriter) {
                out.bytes(&self.to_be_bytes());
            }
            fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
                parse::<Self>(text)
            }
        }
    )*};
}

macro_rules! signed_key {
    ($($int:ty => $unsigned:ty),*) => {$(
        impl Key for $int {
            const PREFIX_FREE: bool = true;
            #[inline]
            fn encode(&self, out: &mut KeyWriter) {
                // Flipping the sign bit makes negative numbers sort before positive ones.
                out.bytes(&((*self as $unsigned) ^ (<$unsigned>::MAX / 2 + 1)).to_be_bytes());
            }
            fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
                parse::<Self>(text)
            }
        }
    )*};
}

unsigned_key!(u8, u16, u32, u64, u128, usize);
signed_key!(i8 => u8, i16 => u16, i32 => u32, i64 => u64, i128 => u128, isize => usize);

impl Key for bool {
    const PREFIX_FREE: bool = true;
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(&[u8::from(*self)]);
    }
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        parse::<Self>(text)
    }
}

/// Bytes as they are, so that prefix searches work on text.
impl Key for str {
    #[inline]
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(self.as_bytes());
    }
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        Ok(KeyBuf::new(text.as_bytes()))
    }
}

impl Key for [u8] {
    #[inline]
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(self);
    }
}

impl<const N: usize> Key for [u8; N] {
    const PREFIX_FREE: bool = true;
    #[inline]
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(self);
    }
}

macro_rules! forwarded_key {
    ($([$($param:ident)?] $outer:ty => $inner:ty),* $(,)?) => {$(
        impl $(<$param: Key + ?Sized>)? Key for $outer {
            const PREFIX_FREE: bool = <$inner as Key>::PREFIX_FREE;
            #[inline]
            fn encode(&self, out: &mut KeyWriter) {
                let inner: &$inner = self;
                inner.encode(out);
            }
            fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
                <$inner as Key>::from_text(text)
            }
            fn prefix_from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
                <$inner as Key>::prefix_from_text(text)
            }
        }
    )*};
}

forwarded_key!(
    [] String => str,
    [] CompactString => str,
    [] Cow<'_, str> => str,
    [] Vec<u8> => [u8],
    [K] &K => K,
    [K] Arc<K> => K,
    [K] Box<K> => K,
);

/// `None` sorts first.
impl<K: Key> Key for Option<K> {
    const PREFIX_FREE: bool = K::PREFIX_FREE;
    fn encode(&self, out: &mut KeyWriter) {
        match self {
            None => out.bytes(&[0]),
            Some(key) => {
                out.bytes(&[1]);
                key.encode(out);
            }
        }
    }
}

impl Key for Ipv4Addr {
    const PREFIX_FREE: bool = true;
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(&self.octets());
    }
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        parse::<Self>(text)
    }
}

impl Key for Ipv6Addr {
    const PREFIX_FREE: bool = true;
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(&self.octets());
    }
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        parse::<Self>(text)
    }
}

/// Sixteen bytes; IPv4 as IPv4-mapped IPv6.
impl Key for IpAddr {
    const PREFIX_FREE: bool = true;
    fn encode(&self, out: &mut KeyWriter) {
        out.bytes(&mapped(*self));
    }
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        parse::<Self>(text)
    }
}

/// Returns the address in IPv6 form, IPv4 mapped.
fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Orders by network address in IPv6 form (IPv4 mapped), then by length: networks sort before the networks inside
/// them. Bits beyond the prefix length are ignored. Six bytes for IPv4, the first of which is its position among IPv6.
impl Key for IpNet {
    const PREFIX_FREE: bool = true;
    fn encode(&self, out: &mut KeyWriter) {
        let (addr, bits) = match self {
            IpNet::V4(net) => (mapped(self.network()), net.prefix_len() + 96),
            IpNet::V6(net) => (mapped(self.network()), net.prefix_len()),
        };
        encode_network(&addr, bits, out);
    }
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        parse::<Self>(text)
    }
}

/// Writes a network: its address in IPv6 form and its length there.
#[inline]
fn encode_network(addr: &[u8; 16], bits: u8, out: &mut KeyWriter) {
    // Addresses before, among and after the mapped IPv4 ones differ in the first byte; of IPv4 addresses the
    // part that is the same for all is left out. A key then fits into few bytes and differs early.
    let (front, last) = addr.split_at(12);
    match front.cmp(&IPV4_MAPPED) {
        Ordering::Equal => out.bytes(&[1, last[0], last[1], last[2], last[3], bits]),
        other => {
            let mut all = [bits; 18];
            all[0] = if other.is_lt() { 0 } else { 2 };
            all[1..17].copy_from_slice(addr);
            out.bytes(&all);
        }
    }
}

/// First bytes of an IPv4 address in IPv6 form (RFC 4291, 2.5.5.2).
const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Key for Ipv4Net {
    const PREFIX_FREE: bool = true;
    fn encode(&self, out: &mut KeyWriter) {
        IpNet::V4(*self).encode(out);
    }
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        parse::<Self>(text)
    }
}

impl Key for Ipv6Net {
    const PREFIX_FREE: bool = true;
    fn encode(&self, out: &mut KeyWriter) {
        IpNet::V6(*self).encode(out);
    }
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        parse::<Self>(text)
    }
}

macro_rules! tuple_key {
    ($($name:ident . $pos:tt),* ; $last:ident . $last_pos:tt) => {
        impl<$($name: Key,)* $last: Key> Key for ($($name,)* $last,) {
            const PREFIX_FREE: bool = $last::PREFIX_FREE;
            fn encode(&self, out: &mut KeyWriter) {
                $(out.delimited(&self.$pos);)*
                self.$last_pos.encode(out);
            }
        }
    };
}

tuple_key!(; A.0);
tuple_key!(A.0; B.1);
tuple_key!(A.0, B.1; C.2);
tuple_key!(A.0, B.1, C.2; D.3);
tuple_key!(A.0, B.1, C.2, D.3; E.4);
tuple_key!(A.0, B.1, C.2, D.3, E.4; F.5);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ordered<K: Key + Ord>(a: &K, b: &K) {
        assert_eq!(KeyBuf::of(a).cmp(&KeyBuf::of(b)), a.cmp(b));
    }

    proptest! {
        #[test]
        fn integers_keep_their_order(a: i64, b: i64, c: i32, d: i32, e: i8, f: i8, g: u64, h: u64) {
            ordered(&a, &b);
            ordered(&c, &d);
            ordered(&e, &f);
            ordered(&g, &h);
            ordered(&i128::from(a), &i128::from(b));
        }

        #[test]
        fn tuples_keep_their_order(
            a in proptest::collection::vec(0u8..3, 0..5), b in proptest::collection::vec(0u8..3, 0..5),
            c: i16, d: i16, e in "[a-b\u{0}]{0,4}", f in "[a-b\u{0}]{0,4}",
        ) {
            ordered(&(a.clone(), c), &(b.clone(), d));
            ordered(&(a.clone(), e.clone(), c), &(b.clone(), f.clone(), d));
            ordered(&(e.clone(), a.clone()), &(f.clone(), b.clone()));
            ordered(&(Some(e), a), &(Some(f), b));
        }

        #[test]
        fn text_keeps_its_order(a in ".{0,40}", b in ".{0,40}") {
            ordered(&a, &b);
        }

        #[test]
        fn addresses_keep_their_order(a: u32, b: u32, c: u128, d: u128) {
            ordered(&Ipv4Addr::from(a), &Ipv4Addr::from(b));
            ordered(&IpAddr::V4(a.into()), &IpAddr::V4(b.into()));
            ordered(&Ipv6Addr::from(c), &Ipv6Addr::from(d));
        }
    }

    #[test]
    fn minus_one_sorts_before_one() {
        ordered(&-1i64, &1);
        ordered(&i16::MIN, &0);
        ordered(&isize::MAX, &-1);
    }

    #[test]
    fn networks_sort_before_what_they_hold() {
        let net = |text: &str| KeyBuf::of(&text.parse::<IpNet>().expect("a network"));

        assert!(net("10.0.0.0/8") < net("10.0.0.0/16"));
        assert!(net("10.0.0.0/16") < net("10.0.3.0/24"));
        assert_eq!(net("10.1.2.3/8"), net("10.0.0.0/8"));
        assert!(net("::/0") < net("::1/128") && net("::1/128") < net("0.0.0.0/0"));
        assert!(
            net("0.0.0.0/0") < net("255.255.255.255/32") && net("255.255.255.255/32") < net("64:ff9b::/96")
        );
    }

    #[test]
    fn text_form_equals_the_encoded_value() {
        assert_eq!(i32::from_text("-7"), Ok(KeyBuf::of(&-7i32)));
        assert_eq!(str::from_text("shop/web"), Ok(KeyBuf::of("shop/web")));
        assert_eq!(bool::from_text("true"), Ok(KeyBuf::of(&true)));
        assert!(matches!(u8::from_text("300"), Err(TextKeyError::Invalid(_))));
        assert_eq!(<(u8, u8)>::from_text("1"), Err(TextKeyError::Unsupported));
    }

    #[test]
    fn long_and_short_keys_compare_alike() {
        let long = "x".repeat(INLINE + 1);
        let short = "x".repeat(INLINE);

        assert!(KeyBuf::of(&short) < KeyBuf::of(&long));
        assert_eq!(size_of::<KeyBuf>(), 24);
    }
}
