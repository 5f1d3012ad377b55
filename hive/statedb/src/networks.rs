// SPDX-License-Identifier: Apache-2.0

//! Networks by the addresses in them: the persistent trie beside an index whose keys are networks.
//!
//! A node decides on four bits of an address and knows its own networks around each of their sixteen values. A search
//! reads two or three places of a node, compares nothing but the bits that are skipped, and goes down; what it found last
//! is the answer. The B+ tree of the index would be asked again for each length that fails, and compares many keys a
//! node.
//!
//! Values are objects, not their numbers: where tables are larger than the caches, each step to another part of memory
//! costs more than all else.
//!
//! Nodes are shared as those of a tree are: a change copies the path to what it changes, once a transaction.

#[cfg(test)]
pub(crate) mod tests;

use std::{net::IpAddr, sync::Arc};

use crate::key::is_mapped;

/// Bits of an address that a node decides on.
const STRIDE: u8 = 4;

/// Values of these bits.
const FAN: usize = 1 << STRIDE;

/// An address as a number.
trait Address: Copy + Eq {
    const BITS: u8;
    /// Returns what both have in common, counted in bits from the front.
    fn common(self, other: Self) -> u8;
    /// Ones for the first `bits` bits.
    fn mask(bits: u8) -> Self;
    fn and(self, mask: Self) -> Self;
    /// Returns the four bits that `after` others follow.
    fn digit(self, after: u8) -> usize;
}

macro_rules! address {
    ($($int:ty),*) => {$(
        impl Address for $int {
            const BITS: u8 = <$int>::BITS as u8;
            #[inline]
            fn common(self, other: Self) -> u8 {
                (self ^ other).leading_zeros() as u8
            }
            #[inline]
            fn mask(bits: u8) -> Self {
                !Self::MAX.checked_shr(u32::from(bits)).unwrap_or(0)
            }
            #[inline]
            fn and(self, mask: Self) -> Self {
                self & mask
            }
            #[inline]
            fn digit(self, after: u8) -> usize {
                (self >> after) as usize % FAN
            }
        }
    )*};
}

address!(u32, u128);

/// The networks of a node: those that are one to four bits longer than what leads to it.
///
/// What a search reads of most nodes comes first.
#[repr(C)]
struct Places<A, V> {
    /// What leads to the node.
    base: A,
    /// Which bits of it count.
    mask: A,
    /// How many bits follow those that the node decides on.
    after: u8,
    /// A bit for each value of the four bits that is in a network of the node.
    held: u16,
    /// Networks of all four bits.
    whole: [Option<V>; FAN],
    shorter: Option<Box<Shorter<V>>>,
}

/// Networks of one bit, then of two and of three, by their bits.
type Shorter<V> = [Option<V>; FAN - 2];

impl<A: Copy, V: Clone> Clone for Places<A, V> {
    fn clone(&self) -> Self {
        Self {
            whole: self.whole.clone(),
            shorter: self.shorter.clone(),
            ..*self
        }
    }
}

/// Returns where the networks of so many bits around a value are among the shorter ones.
fn place(value: usize, bits: u8) -> usize {
    (1 << bits) - 2 + (value >> (STRIDE - bits))
}

impl<A: Address, V> Places<A, V> {
    /// Without networks, for addresses that have the first `start` bits of `addr`.
    fn empty(addr: A, start: u8) -> Self {
        let mask = A::mask(start);
        Self {
            base: addr.and(mask),
            mask,
            after: A::BITS - STRIDE - start,
            held: 0,
            whole: [const { None }; FAN],
            shorter: None,
        }
    }

    /// Returns how many bits lead to the node.
    fn start(&self) -> u8 {
        A::BITS - STRIDE - self.after
    }

    #[inline]
    fn digit(&self, addr: A) -> usize {
        addr.digit(self.after)
    }

    fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Returns the longest network around a value.
    #[inline]
    fn longest(&self, value: usize) -> Option<&V> {
        if self.held >> value & 1 == 0 {
            return None;
        }
        self.whole[value].as_ref().or_else(|| self.around(value))
    }

    /// Returns the longest of the shorter networks around a value.
    #[inline(never)]
    fn around(&self, value: usize) -> Option<&V> {
        let shorter = self.shorter.as_ref()?;
        (1..STRIDE)
            .rev()
            .find_map(|bits| shorter[place(value, bits)].as_ref())
    }

    /// Sets the object of a network of this node.
    fn set(&mut self, Change { addr, bits, object }: Change<A, V>) {
        let (digit, bits) = (self.digit(addr), bits - self.start());
        if bits == STRIDE {
            self.whole[digit] = object;
        } else {
            let shorter = self
                .shorter
                .get_or_insert_with(|| Box::new([const { None }; FAN - 2]));
            shorter[place(digit, bits)] = object;
            if shorter.iter().all(Option::is_none) {
                self.shorter = None;
            }
        }
        for value in digit..digit + (FAN >> bits) {
            let is_held = self.whole[value].is_some() || self.around(value).is_some();
            self.held = self.held & !(1 << value) | u16::from(is_held) << value;
        }
    }
}

/// The first object of a network is another one now.
struct Change<A, V> {
    /// Address of the network, zeros beyond its length.
    addr: A,
    /// Its length. In nodes not 0.
    bits: u8,
    /// The object, if there is one.
    object: Option<V>,
}

impl<A: Address, V> Change<A, V> {
    /// Returns how many bits lead to the network's node.
    fn start(&self) -> u8 {
        (self.bits - 1) / STRIDE * STRIDE
    }
}

struct Inner<A, V> {
    places: Places<A, V>,
    children: [Option<Node<A, V>>; FAN],
}

/// A node with its [`Places::after`]: the place to read is known before any part of it has come from
/// memory.
enum Node<A, V> {
    /// Without children.
    Leaf(u8, Arc<Places<A, V>>),
    Inner(u8, Arc<Inner<A, V>>),
}

impl<A: Copy, V: Clone> Clone for Inner<A, V> {
    fn clone(&self) -> Self {
        Self {
            places: self.places.clone(),
            children: self.children.clone(),
        }
    }
}

impl<A, V> Clone for Node<A, V> {
    fn clone(&self) -> Self {
        match self {
            Self::Leaf(after, leaf) => Self::Leaf(*after, Arc::clone(leaf)),
            Self::Inner(after, inner) => Self::Inner(*after, Arc::clone(inner)),
        }
    }
}

impl<A: Address, V> Inner<A, V> {
    fn without_children(places: Places<A, V>) -> Self {
        Self {
            places,
            children: [const { None }; FAN],
        }
    }

    /// Returns where what belongs to this address is.
    fn child(&mut self, addr: A) -> &mut Option<Node<A, V>> {
        &mut self.children[self.places.digit(addr)]
    }
}

impl<A: Address, V: Clone> Node<A, V> {
    fn leaf(places: Places<A, V>) -> Self {
        Self::Leaf(places.after, Arc::new(places))
    }

    fn inner(inner: Inner<A, V>) -> Self {
        Self::Inner(inner.places.after, Arc::new(inner))
    }

    #[inline]
    fn places(&self) -> &Places<A, V> {
        match self {
            Self::Leaf(_, leaf) => leaf,
            Self::Inner(_, inner) => &inner.places,
        }
    }

    fn places_mut(&mut self) -> &mut Places<A, V> {
        match self {
            Self::Leaf(_, leaf) => Arc::make_mut(leaf),
            Self::Inner(_, inner) => &mut Arc::make_mut(inner).places,
        }
    }

    /// Sets the object of a network, in the part of the trie that is at `place`.
    fn set(place: &mut Option<Self>, change: Change<A, V>) {
        let start = change.start();
        if let Some(node) = place {
            let (base, own) = (node.places().base, node.places().start());
            // What leads to both, in whole nodes.
            let shared = base.common(change.addr).min(own).min(start) / STRIDE * STRIDE;
            if shared < own {
                let mut above = Inner::without_children(Places::empty(base, shared));
                *above.child(base) = place.take();
                *place = Some(Self::inner(above));
            }
        }
        let node = place.get_or_insert_with(|| Self::leaf(Places::empty(change.addr, start)));
        if node.places().start() == start {
            node.places_mut().set(change);
            return;
        }
        if let Self::Leaf(_, leaf) = node {
            *node = Self::inner(Inner::without_children(Places::clone(leaf)));
        }
        if let Self::Inner(_, inner) = node {
            Self::set(Arc::make_mut(inner).child(change.addr), change);
        }
    }

    /// Like [`Node::set`] for a network that is there and is to go.
    fn clear(place: &mut Option<Self>, change: Change<A, V>) {
        let Some(node) = place else { return };
        if node.places().start() == change.start() {
            node.places_mut().set(change);
        } else if let Self::Inner(_, inner) = node {
            Self::clear(Arc::make_mut(inner).child(change.addr), change);
        }
        let rest = match node {
            Self::Leaf(_, leaf) if leaf.is_empty() => None,
            Self::Leaf(..) => return,
            Self::Inner(_, inner) => {
                let mut children = inner.children.iter().flatten();
                match (inner.places.is_empty(), children.next(), children.next()) {
                    (true, only, None) => only.cloned(),
                    (false, None, _) => Some(Self::leaf(inner.places.clone())),
                    _ => return,
                }
            }
        };
        *place = rest;
    }
}

/// Networks of addresses of one kind.
#[derive(Clone)]
struct Trie<A, V> {
    root: Option<Node<A, V>>,
    /// The network of all addresses.
    all: Option<V>,
}

impl<A, V> Default for Trie<A, V> {
    fn default() -> Self {
        Self {
            root: None,
            all: None,
        }
    }
}

impl<A: Address, V: Clone> Trie<A, V> {
    fn set(&mut self, change: Change<A, V>) {
        if change.bits == 0 {
            self.all = change.object;
        } else if change.object.is_none() {
            Node::clear(&mut self.root, change);
        } else {
            Node::set(&mut self.root, change);
        }
    }

    #[inline]
    fn longest(&self, addr: A) -> Option<&V> {
        let mut found = self.all.as_ref();
        let mut next = self.root.as_ref();
        while let Some(node) = next {
            let (after, places, children) = match node {
                Node::Leaf(after, leaf) => (*after, &**leaf, None),
                Node::Inner(after, inner) => (*after, &inner.places, Some(&inner.children)),
            };
            if addr.and(places.mask) != places.base {
                break;
            }
            let digit = addr.digit(after);
            found = places.longest(digit).or(found);
            next = children.and_then(|children| children[digit].as_ref());
        }
        found
    }
}

/// The networks of an index, each with the first object that has it.
#[derive(Clone)]
pub(crate) struct Networks<V> {
    ipv4: Trie<u32, V>,
    /// Without those inside of IPv4, which are in the other one.
    ipv6: Trie<u128, V>,
}

impl<V> Default for Networks<V> {
    fn default() -> Self {
        Self {
            ipv4: Trie::default(),
            ipv6: Trie::default(),
        }
    }
}

/// What the length of an IPv4 network is more in IPv6 form.
const IPV4_BITS: u8 = 96;

impl<V: Clone> Networks<V> {
    /// Sets the first object that has a network, which is its address in IPv6 form and its length there; none if there
    /// was one.
    pub(crate) fn set(&mut self, addr: [u8; 16], bits: u8, object: Option<V>) {
        let [.., a, b, c, d] = addr;
        match bits.checked_sub(IPV4_BITS) {
            Some(bits) if is_mapped(&addr) => {
                let addr = u32::from_be_bytes([a, b, c, d]);
                self.ipv4.set(Change { addr, bits, object });
            }
            _ => {
                let addr = u128::from_be_bytes(addr);
                self.ipv6.set(Change { addr, bits, object });
            }
        }
    }

    /// Returns the first object of the longest network that holds `addr`.
    #[inline]
    pub(crate) fn longest(&self, addr: IpAddr) -> Option<&V> {
        match addr {
            IpAddr::V4(addr) => self.ipv4.longest(addr.into()),
            IpAddr::V6(addr) => {
                let ipv4 = addr
                    .to_ipv4_mapped()
                    .and_then(|addr| self.ipv4.longest(addr.into()));
                ipv4.or_else(|| self.ipv6.longest(addr.into()))
            }
        }
    }
}
