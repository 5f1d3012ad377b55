// SPDX-License-Identifier: Apache-2.0

//! The ids of identities: numeric identities.

use std::fmt;
use std::str::FromStr;

use skep_base_settings::MaxConnectedClusters;

/// Where an identity is valid: the upper byte of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// In all clusters of a mesh.
    Global,
    /// On this node: CIDRs, DNS names, CIDR groups.
    Local,
    /// On this node: other nodes that have identities of their own.
    RemoteNode,
}

impl Scope {
    /// The numbers of a local scope, which a node allocates by itself; of the global scope, all that a cluster without id
    /// may allocate.
    pub const fn first_and_last(self) -> (NumericIdentity, NumericIdentity) {
        let (first, last) = match self {
            Self::Global => (256, 0xffff),
            Self::Local => (0x0100_0001, 0x01ff_ffff),
            Self::RemoteNode => (0x0200_0001, 0x02ff_ffff),
        };
        (NumericIdentity(first), NumericIdentity(last))
    }
}

/// The number of an identity.
///
/// ```
/// use skep_identity::{NumericIdentity, Scope};
///
/// let identity: NumericIdentity = "16777217".parse()?;
/// assert_eq!(identity.scope(), Some(Scope::Local));
/// assert!(!identity.is_reserved() && NumericIdentity::HOST.is_reserved());
/// # Ok::<(), skep_identity::ParseIdentityError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumericIdentity(u32);

impl NumericIdentity {
    pub const UNKNOWN: Self = Self(0);
    pub const HOST: Self = Self(1);
    pub const WORLD: Self = Self(2);
    /// Pods that Skep does not manage.
    pub const UNMANAGED: Self = Self(3);
    pub const HEALTH: Self = Self(4);
    /// Endpoints whose labels are not known yet.
    pub const INIT: Self = Self(5);
    pub const REMOTE_NODE: Self = Self(6);
    /// Other nodes that run the API server.
    pub const KUBE_APISERVER: Self = Self(7);
    pub const INGRESS: Self = Self(8);
    /// Everything outside the cluster, over IPv4, where both address families are on.
    pub const WORLD_IPV4: Self = Self(9);
    /// Everything outside the cluster, over IPv6, where both address families are on.
    pub const WORLD_IPV6: Self = Self(10);
    /// The first number that is not reserved.
    pub const FIRST_ALLOCATED: Self = Self(256);

    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    pub const fn get(self) -> u32 {
        self.0
    }

    /// Its scope; `None` for numbers that no version of Cilium allocates.
    pub const fn scope(self) -> Option<Scope> {
        match self.0 >> 24 {
            0 => Some(Scope::Global),
            1 => Some(Scope::Local),
            2 => Some(Scope::RemoteNode),
            _ => None,
        }
    }

    /// Whether it is the same in every cluster: reserved, well-known or fixed by the operator. The number 0 is not.
    pub const fn is_reserved(self) -> bool {
        self.0 != 0 && self.0 < Self::FIRST_ALLOCATED.0
    }

    /// Whether it stands for another node.
    pub const fn is_remote_node(self) -> bool {
        matches!(self, Self::REMOTE_NODE | Self::KUBE_APISERVER)
            || matches!(self.scope(), Some(Scope::RemoteNode))
    }

    /// Whether it stands for everything outside the cluster, of one address family or both.
    pub const fn is_world(self) -> bool {
        matches!(self, Self::WORLD | Self::WORLD_IPV4 | Self::WORLD_IPV6)
    }

    /// The cluster that allocated it, 0 for one without id; `None` if no cluster did, as it is reserved or local to a node.
    pub const fn cluster_id(self, clusters: MaxConnectedClusters) -> Option<u32> {
        match self.scope() {
            Some(Scope::Global) if self.0 >= Self::FIRST_ALLOCATED.0 => {
                Some(self.0 >> clusters.identity_bits())
            }
            _ => None,
        }
    }
}

impl From<NumericIdentity> for u32 {
    fn from(identity: NumericIdentity) -> Self {
        identity.0
    }
}

impl fmt::Display for NumericIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The text is not the number of an identity: a decimal number of 32 bits without a sign.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the number of an identity")]
pub struct ParseIdentityError(String);

impl FromStr for NumericIdentity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number
            .map(Self)
            .ok_or_else(|| ParseIdentityError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_is_the_upper_byte() {
        for (number, scope) in [
            (0, Some(Scope::Global)),
            (0x00ff_ffff, Some(Scope::Global)),
            (0x0100_0001, Some(Scope::Local)),
            (0x02ff_ffff, Some(Scope::RemoteNode)),
            (0x0300_0000, None),
            (u32::MAX, None),
        ] {
            assert_eq!(NumericIdentity::new(number).scope(), scope, "{number:#x}");
        }
        for scope in [Scope::Global, Scope::Local, Scope::RemoteNode] {
            let (first, last) = scope.first_and_last();
            assert_eq!((first.scope(), last.scope()), (Some(scope), Some(scope)));
        }
    }

    #[test]
    fn classes_are_those_of_the_datapath() {
        let of = |class: fn(NumericIdentity) -> bool| -> Vec<u32> {
            let numbers = (0..300).chain([0x0100_0001, 0x0200_0001]);
            numbers.filter(|number| class(NumericIdentity(*number))).collect()
        };

        assert_eq!(of(NumericIdentity::is_remote_node), [6, 7, 0x0200_0001]);
        assert_eq!(of(NumericIdentity::is_world), [2, 9, 10]);
        assert_eq!(of(NumericIdentity::is_reserved), (1..256).collect::<Vec<_>>());
    }

    #[test]
    fn cluster_id_is_above_the_bits_of_a_cluster() {
        let cluster = |number, clusters| {
            let clusters = MaxConnectedClusters::try_from(clusters).unwrap();
            NumericIdentity::new(number).cluster_id(clusters)
        };

        assert_eq!(cluster(458_752, 255), Some(7));
        assert_eq!(cluster(458_752, 511), Some(14));
        assert_eq!(cluster(256, 255), Some(0));
        assert_eq!(cluster(255, 255), None);
        assert_eq!(cluster(0x0100_0001, 255), None);
    }

    #[test]
    fn only_plain_numbers_are_parsed() {
        assert_eq!("52311".parse(), Ok(NumericIdentity(52311)));
        for text in ["", "+1", "-1", "0x10", "4294967296", " 1"] {
            let error = text.parse::<NumericIdentity>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("`{text}` is not the number of an identity")
            );
        }
        assert_eq!(u32::from(NumericIdentity::INGRESS), 8);
    }
}
