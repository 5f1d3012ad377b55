// SPDX-License-Identifier: Apache-2.0

//! Reserved identities, and sets of their labels.

use std::fmt;
use std::net::IpAddr;

use crate::numeric::NumericIdentity;

/// A reserved identity, and the label `reserved:<name>` that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Reserved {
    Host = 1,
    World = 2,
    /// Pods that Skep does not manage.
    Unmanaged = 3,
    Health = 4,
    /// Endpoints whose labels are not known yet.
    Init = 5,
    RemoteNode = 6,
    /// The API server; on other nodes its number is 7.
    KubeApiserver = 7,
    Ingress = 8,
    /// Everything outside the cluster, over IPv4.
    WorldIpv4 = 9,
    /// Everything outside the cluster, over IPv6.
    WorldIpv6 = 10,
}

impl Reserved {
    pub const ALL: [Self; 10] = [
        Self::Host,
        Self::World,
        Self::Unmanaged,
        Self::Health,
        Self::Init,
        Self::RemoteNode,
        Self::KubeApiserver,
        Self::Ingress,
        Self::WorldIpv4,
        Self::WorldIpv6,
    ];

    /// The world outside the cluster, as an address has it: one for each family where both are on.
    pub const fn world(address: IpAddr, is_dual_stack: bool) -> Self {
        match (is_dual_stack, address) {
            (false, _) => Self::World,
            (true, IpAddr::V4(_)) => Self::WorldIpv4,
            (true, IpAddr::V6(_)) => Self::WorldIpv6,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::World => "world",
            Self::Unmanaged => "unmanaged",
            Self::Health => "health",
            Self::Init => "init",
            Self::RemoteNode => "remote-node",
            Self::KubeApiserver => "kube-apiserver",
            Self::Ingress => "ingress",
            Self::WorldIpv4 => "world-ipv4",
            Self::WorldIpv6 => "world-ipv6",
        }
    }

    /// The one whose label has this key.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reserved| reserved.name() == name)
    }

    pub const fn identity(self) -> NumericIdentity {
        NumericIdentity::new(self as u32)
    }
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of reserved labels.
///
/// ```
/// use skep_identity::{NumericIdentity, Reserved, ReservedLabels};
///
/// let labels = ReservedLabels::from(Reserved::RemoteNode).union(Reserved::KubeApiserver.into());
/// assert_eq!(labels.identity(), Some(NumericIdentity::KUBE_APISERVER));
/// assert_eq!(labels.to_string(), "reserved:kube-apiserver,reserved:remote-node");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReservedLabels(u16);

impl ReservedLabels {
    pub const NONE: Self = Self(0);

    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether a label is among them.
    pub const fn contains(self, label: Reserved) -> bool {
        self.0 & (1 << label as u8) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Reserved> {
        Reserved::ALL
            .into_iter()
            .filter(move |label| self.contains(*label))
    }

    /// The reserved identity with these labels: host whatever else is there; remote-node, or kube-apiserver if both are
    /// there; else the identity of a single label. `None` for other sets, whose identities are allocated, and for the API
    /// server outside of the cluster.
    pub fn identity(self) -> Option<NumericIdentity> {
        if self.contains(Reserved::Host) {
            return Some(NumericIdentity::HOST);
        }
        if self.contains(Reserved::RemoteNode) {
            return Some(match self.contains(Reserved::KubeApiserver) {
                true => NumericIdentity::KUBE_APISERVER,
                false => NumericIdentity::REMOTE_NODE,
            });
        }
        let mut labels = self.iter();
        match (labels.next(), labels.next()) {
            (Some(Reserved::KubeApiserver), None) => None,
            (Some(label), None) => Some(label.identity()),
            _ => None,
        }
    }
}

impl From<Reserved> for ReservedLabels {
    fn from(label: Reserved) -> Self {
        Self(1 << label as u8)
    }
}

impl FromIterator<Reserved> for ReservedLabels {
    fn from_iter<I: IntoIterator<Item = Reserved>>(labels: I) -> Self {
        let sets = labels.into_iter().map(Self::from);
        sets.fold(Self::NONE, Self::union)
    }
}

/// `reserved:health,reserved:world`, sorted.
impl fmt::Display for ReservedLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&str> = self.iter().map(Reserved::name).collect();
        names.sort_unstable();
        for (at, name) in names.iter().enumerate() {
            let separator = if at > 0 { "," } else { "" };
            write!(f, "{separator}reserved:{name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_those_of_cilium() {
        let all: Vec<String> = Reserved::ALL
            .iter()
            .map(|reserved| format!("{}={reserved}", reserved.identity()))
            .collect();

        assert_eq!(
            all.join(" "),
            "1=host 2=world 3=unmanaged 4=health 5=init 6=remote-node 7=kube-apiserver 8=ingress 9=world-ipv4 \
             10=world-ipv6"
        );
        for reserved in Reserved::ALL {
            assert_eq!(Reserved::from_name(reserved.name()), Some(reserved));
        }
        assert_eq!(Reserved::from_name("none"), None);
    }

    #[test]
    fn world_is_split_where_both_families_are_on() {
        let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());

        assert_eq!(Reserved::world(v4, false), Reserved::World);
        assert_eq!(Reserved::world(v6, false), Reserved::World);
        assert_eq!(Reserved::world(v4, true), Reserved::WorldIpv4);
        assert_eq!(Reserved::world(v6, true), Reserved::WorldIpv6);
    }

    #[test]
    fn sets_have_the_identity_of_their_strongest_label() {
        use Reserved::*;
        let identity = |labels: &[Reserved]| {
            let set: ReservedLabels = labels.iter().copied().collect();
            set.identity().map(NumericIdentity::get)
        };

        assert_eq!(identity(&[Host, KubeApiserver, RemoteNode]), Some(1));
        assert_eq!(identity(&[RemoteNode, World]), Some(6));
        assert_eq!(identity(&[RemoteNode, KubeApiserver]), Some(7));
        assert_eq!(identity(&[Health]), Some(4));
        assert_eq!(identity(&[WorldIpv6]), Some(10));
        assert_eq!(identity(&[KubeApiserver]), None);
        assert_eq!(identity(&[KubeApiserver, World]), None);
        assert_eq!(identity(&[]), None);
        assert!(ReservedLabels::NONE.is_empty());
    }
}
