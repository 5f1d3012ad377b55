// SPDX-License-Identifier: Apache-2.0

//! What there is once for IPv4 and once for IPv6.

/// One thing of each IP family: a pair of maps, of stages, of counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPair<A, B> {
    /// That of IPv4.
    pub v4: A,
    /// That of IPv6.
    pub v6: B,
}

/// One thing of one IP family, as [`IpAddr`](std::net::IpAddr) is an address: a key or an entry of a map of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpEither<A, B> {
    /// Of IPv4.
    V4(A),
    /// Of IPv6.
    V6(B),
}

impl<A, B> IpPair<A, B> {
    /// The thing of IPv4 and that of IPv6.
    pub const fn new(v4: A, v6: B) -> Self {
        Self { v4, v6 }
    }
}

impl<A> IpPair<A, A> {
    /// That of one family.
    pub const fn of(&self, ipv6: bool) -> &A {
        if ipv6 { &self.v6 } else { &self.v4 }
    }

    /// That of one family, to be changed.
    pub const fn of_mut(&mut self, ipv6: bool) -> &mut A {
        if ipv6 { &mut self.v6 } else { &mut self.v4 }
    }
}

impl<A, B> IpEither<A, B> {
    /// Whether it is of IPv6.
    pub const fn is_ipv6(&self) -> bool {
        matches!(self, Self::V6(_))
    }

    /// Something else of the same family.
    pub fn map<C, D>(self, v4: impl FnOnce(A) -> C, v6: impl FnOnce(B) -> D) -> IpEither<C, D> {
        match self {
            Self::V4(a) => IpEither::V4(v4(a)),
            Self::V6(b) => IpEither::V6(v6(b)),
        }
    }

    /// An entry from a key and a value that is the same for both families.
    pub fn with<V>(self, value: V) -> IpEither<(A, V), (B, V)> {
        match self {
            Self::V4(a) => IpEither::V4((a, value)),
            Self::V6(b) => IpEither::V6((b, value)),
        }
    }
}

impl<A> IpEither<A, A> {
    /// A thing whose form does not depend on its family.
    pub fn of(ipv6: bool, thing: A) -> Self {
        if ipv6 { Self::V6(thing) } else { Self::V4(thing) }
    }

    /// The thing itself.
    pub fn into_inner(self) -> A {
        match self {
            Self::V4(thing) | Self::V6(thing) => thing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_keeps_its_family() {
        let key: IpEither<u8, u16> = IpEither::V6(7);

        assert_eq!(key.map(|_| "", |key| key * 2), IpEither::V6(14));
        assert_eq!(key.with('x'), IpEither::V6((7, 'x')));
        assert_eq!(
            (IpEither::of(false, 1), IpEither::of(true, 1)),
            (IpEither::V4(1), IpEither::V6(1))
        );
        assert_eq!(IpEither::of(true, 9).into_inner(), 9);
        assert!(key.is_ipv6() && !IpEither::<u8, u8>::V4(1).is_ipv6());
        let mut counts = IpPair::new(1, 2);
        *counts.of_mut(true) += 5;
        assert_eq!((*counts.of(false), *counts.of(true)), (1, 7));
    }
}
