// SPDX-License-Identifier: Apache-2.0

//! Ports of NodePort services.

use std::{fmt, ops::RangeInclusive, str::FromStr};

/// Ports of NodePort services, and their protection from other sockets.
#[derive(Debug, Clone, hive::Config)]
pub struct NodePorts {
    /// Range of node ports.
    #[config(default = "30000,32767", flag = "node-port-range")]
    pub range: PortRange,
    /// Reject bind calls to ports of services on this node.
    #[config(default = true, flag = "node-port-bind-protection")]
    pub bind_protection: bool,
    /// Add the node port range to the kernel's reserved ports if it overlaps with the ephemeral ports. If
    /// off, an overlap is an error.
    #[config(default = true, flag = "enable-auto-protect-node-port-range")]
    pub reserve: bool,
}

/// First and last port of a range. Displays and parses as `first,last`.
///
/// ```
/// use skep_base_settings::{PortRange, PortRangeError};
///
/// let range: PortRange = "30000,32767".parse()?;
/// assert_eq!((range.first(), range.last()), (30000, 32767));
/// assert!(range.contains(30080));
/// # Ok::<(), PortRangeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Why a text is not a range of ports.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PortRangeError {
    /// Not two ports. Write the first and the last port with a comma between.
    #[error("`{0}` is not of the form first,last")]
    Form(String),
    /// Port 0 is not a port that a service can have.
    #[error("ports begin at 1")]
    Zero,
    /// The first port must be smaller than the last.
    #[error("`{0},{1}`: {0} is not smaller than {1}")]
    Order(u16, u16),
}

impl PortRange {
    /// A range of ports.
    ///
    /// # Errors
    ///
    /// If `first` is 0, or not smaller than `last`.
    pub const fn new(first: u16, last: u16) -> Result<Self, PortRangeError> {
        if first == 0 {
            Err(PortRangeError::Zero)
        } else if first < last {
            Ok(Self { first, last })
        } else {
            Err(PortRangeError::Order(first, last))
        }
    }

    /// First port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// Last port.
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Whether a port is in the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Source ports of SNAT: those above.
    pub const fn snat_ports(self) -> RangeInclusive<u16> {
        self.last.saturating_add(1)..=u16::MAX
    }
}

/// The default of Kubernetes (`--service-node-port-range`).
impl Default for PortRange {
    fn default() -> Self {
        Self {
            first: 30_000,
            last: 32_767,
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.first, self.last)
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let form = || PortRangeError::Form(text.to_owned());
        let (first, last) = text.split_once(',').ok_or_else(form)?;
        let port = |text: &str| text.trim().parse().map_err(|_| form());
        Self::new(port(first)?, port(last)?)
    }
}

hive::config_value!(PortRange, "first and last port, as in `30000,32767`");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_two_ports_in_order() {
        for text in ["30000", "a,b", "1,65536", ""] {
            assert_eq!(
                text.parse::<PortRange>(),
                Err(PortRangeError::Form(text.to_owned()))
            );
        }
        assert_eq!("0,10".parse::<PortRange>(), Err(PortRangeError::Zero));
        assert_eq!("9,9".parse::<PortRange>(), Err(PortRangeError::Order(9, 9)));
        assert_eq!("1, 2".parse::<PortRange>().unwrap().to_string(), "1,2");
    }

    #[test]
    fn translated_sources_have_the_ports_above() {
        assert_eq!(PortRange::default().snat_ports(), 32_768..=u16::MAX);
    }

    #[test]
    fn both_ends_belong_to_the_range() {
        let range = PortRange::default();

        assert!(range.contains(30_000) && range.contains(32_767));
        assert!(!range.contains(29_999) && !range.contains(32_768));
    }
}
