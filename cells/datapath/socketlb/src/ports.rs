// SPDX-License-Identifier: Apache-2.0

//! Keeps the kernel from giving node ports to sockets that want any port.
//!
//! The kernel takes those from its ephemeral range. Where node ports overlap with it, they are added to the ports that
//! it reserves; or the start is refused, if it must not be touched.

use std::{
    fmt, fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use skep_base_settings::PortRange;

/// Where the kernel has both, for the network namespace of whoever looks; below its settings.
pub(crate) const DIRECTORY: &str = "net/ipv4";
const EPHEMERAL: &str = "ip_local_port_range";
const RESERVED: &str = "ip_local_reserved_ports";

/// Why node ports and ephemeral ports do not go together.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    /// Choose another range, another ephemeral range, or have the ports reserved.
    #[error(
        "node-port-range {node_ports} overlaps with the ephemeral ports {ephemeral}, and \
         enable-auto-protect-node-port-range is off"
    )]
    Overlap {
        /// The configured range.
        node_ports: PortRange,
        /// The kernel's.
        ephemeral: Ports,
    },
    /// Node ports belong below the ephemeral range.
    #[error("node-port-range {node_ports} is behind the ephemeral ports {ephemeral}")]
    Behind {
        /// The configured range.
        node_ports: PortRange,
        /// The kernel's.
        ephemeral: Ports,
    },
    /// A file of the kernel cannot be read or written, or is not understood.
    #[error("{}: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// First and last port, as the kernel writes them in lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports(RangeInclusive<u16>);

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

/// Has node ports reserved if the kernel would give them away; says if that was needed. `may_reserve`: whether it may be
/// told to.
pub(crate) fn protect(
    directory: &Path,
    node_ports: PortRange,
    may_reserve: bool,
) -> Result<bool, PortsError> {
    let ephemeral = ephemeral(&directory.join(EPHEMERAL))?;
    if node_ports.first() > *ephemeral.end() {
        return Err(PortsError::Behind {
            node_ports,
            ephemeral: Ports(ephemeral),
        });
    }
    if node_ports.last() < *ephemeral.start() {
        return Ok(false);
    }
    if !may_reserve {
        return Err(PortsError::Overlap {
            node_ports,
            ephemeral: Ports(ephemeral),
        });
    }
    reserve(&directory.join(RESERVED), node_ports)
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> PortsError {
    let path = path.to_owned();
    move |source| PortsError::File { path, what, source }
}

/// The range in which the kernel finds ports: two numbers.
fn ephemeral(path: &Path) -> Result<RangeInclusive<u16>, PortsError> {
    let text = fs::read_to_string(path).map_err(failed(path, "cannot read the ephemeral ports"))?;
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) => Ok(first..=last),
        _ => Err(failed(path, "not a range of ports")(io::Error::new(
            io::ErrorKind::InvalidData,
            text,
        ))),
    }
}

/// Adds the range to a list such as `8080,30000-32767`, unless all of it is there.
fn reserve(path: &Path, node_ports: PortRange) -> Result<bool, PortsError> {
    let text = fs::read_to_string(path).map_err(failed(path, "cannot read the reserved ports"))?;
    let listed = text.trim();
    let is_reserved = |port: u16| {
        listed.split(',').any(|item| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&port))
        })
    };
    if (node_ports.first()..=node_ports.last()).all(is_reserved) {
        return Ok(false);
    }
    let separator = if listed.is_empty() { "" } else { "," };
    let list = format!("{listed}{separator}{}-{}", node_ports.first(), node_ports.last());
    fs::write(path, list).map_err(failed(path, "cannot reserve the node ports"))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Kernel(tempfile::TempDir);

    impl Kernel {
        fn new(ephemeral: &str, reserved: &str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join(EPHEMERAL), ephemeral).unwrap();
            fs::write(directory.path().join(RESERVED), reserved).unwrap();
            Self(directory)
        }

        fn protect(&self, node_ports: &str, may_reserve: bool) -> Result<bool, String> {
            protect(self.0.path(), node_ports.parse().unwrap(), may_reserve)
                .map_err(|error| error.to_string())
        }

        fn reserved(&self) -> String {
            fs::read_to_string(self.0.path().join(RESERVED)).unwrap()
        }
    }

    #[test]
    fn ports_below_the_ephemeral_range_need_nothing() {
        let kernel = Kernel::new("32768\t60999\n", "\n");
        assert_eq!(kernel.protect("30000,32767", false), Ok(false));
        assert_eq!(kernel.reserved(), "\n");
    }

    #[test]
    fn overlapping_ports_are_reserved_beside_others() {
        for (before, after) in [
            ("\n", "30000-32767"),
            ("8080,9148\n", "8080,9148,30000-32767"),
            ("30000-32000\n", "30000-32000,30000-32767"),
        ] {
            let kernel = Kernel::new("1024\t60999\n", before);
            assert_eq!(kernel.protect("30000,32767", true), Ok(true));
            assert_eq!(kernel.reserved(), after);
        }
        // In pieces, too.
        let kernel = Kernel::new("1024\t60999\n", "30000-31000,31001,31002-40000\n");
        assert_eq!(kernel.protect("30000,32767", true), Ok(false));
    }

    #[test]
    fn what_cannot_go_together_is_refused() {
        let kernel = Kernel::new("1024\t60999\n", "\n");
        let error = kernel.protect("30000,32767", false).unwrap_err();
        assert!(
            error.contains("30000,32767 overlaps with the ephemeral ports 1024-60999"),
            "{error}"
        );
        assert!(error.contains("enable-auto-protect-node-port-range"), "{error}");

        let kernel = Kernel::new("1024\t20000\n", "\n");
        let error = kernel.protect("30000,32767", true).unwrap_err();
        assert!(error.contains("behind the ephemeral ports 1024-20000"), "{error}");

        let kernel = Kernel::new("many\n", "\n");
        let error = kernel.protect("30000,32767", true).unwrap_err();
        assert!(error.contains(EPHEMERAL), "{error}");
    }
}
