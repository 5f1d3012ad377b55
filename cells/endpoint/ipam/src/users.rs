// SPDX-License-Identifier: Apache-2.0

//! Endpoints that have addresses.

use std::net::IpAddr;

/// Reports which endpoint uses an address: it is not released then.
pub trait AddressUsers: Send + Sync {
    /// Id of the endpoint that has an address.
    fn endpoint(&self, ip: IpAddr) -> Option<u16>;
}
