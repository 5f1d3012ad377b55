// SPDX-License-Identifier: Apache-2.0

//! Which interfaces the node has.

use std::{fmt::Debug, io};

use nix::{errno::Errno, net::if_::if_nametoindex};

pub trait Interfaces: Send + Sync + Debug {
    /// Index of the interface of this name; none if there is no such interface.
    fn index(&self, name: &str) -> io::Result<Option<u32>>;
}

/// The interfaces of the network namespace of this process.
#[derive(Debug, Default)]
pub struct KernelInterfaces;

impl Interfaces for KernelInterfaces {
    fn index(&self, name: &str) -> io::Result<Option<u32>> {
        match if_nametoindex(name) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::ENODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_name() {
        assert_eq!(KernelInterfaces.index("lo").unwrap(), Some(1));
        assert_eq!(KernelInterfaces.index("nothing0").unwrap(), None);
    }
}
