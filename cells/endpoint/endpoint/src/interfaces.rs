// SPDX-License-Identifier: Apache-2.0

//! Which interfaces the node has.

use std::{fmt::Debug, io};

use nix::{errno::Errno, net::if_::if_nametoindex};
use skep_base_net::{NetError, Netlink};

use crate::Mac;

pub trait Interfaces: Send + Sync + Debug {
    /// Index of the interface of this name; none if there is no such interface.
    fn index(&self, name: &str) -> io::Result<Option<u32>>;

    /// Index and hardware address of the interface of this name.
    fn find(&self, name: &str) -> Result<Option<(u32, Mac)>, NetError>;
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

    fn find(&self, name: &str) -> Result<Option<(u32, Mac)>, NetError> {
        let link = Netlink::open()?.find_link(name)?;
        Ok(link.map(|link| (link.index, Mac(link.mac.unwrap_or_default()))))
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
