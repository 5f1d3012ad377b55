// SPDX-License-Identifier: Apache-2.0

//! Deletion of an interface in another process.
//!
//! The kernel returns from the request after a grace period of RCU and more, tens of milliseconds after the interface is
//! gone: the plugin returns when the deletion is announced, and the other process waits for the rest.

use std::{
    ffi::CString,
    io::{self, Read as _},
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::{libc, net::if_::if_nametoindex};
use skep_base_net::Netlink;

use crate::error::kernel;

/// First argument of the other process; the second is the name of the interface.
pub(crate) const ARGUMENT: &str = "delete-link";
/// Between looks for the announcement.
const POLL: Duration = Duration::from_micros(200);

/// Deletes an interface of the namespace of this thread.
///
/// # Errors
///
/// The kernel's, as a text.
pub(crate) fn delete(interface: &str) -> Result<(), String> {
    let index = CString::new(interface)
        .ok()
        .and_then(|name| if_nametoindex(name.as_c_str()).ok());
    let announced = index.and_then(|index| elsewhere(interface, index).ok());
    announced.unwrap_or_else(|| here(interface))
}

/// Deletes an interface and waits until the kernel has done so.
pub(crate) fn here(interface: &str) -> Result<(), String> {
    Netlink::open()
        .and_then(|net| net.delete_link(interface))
        .map(drop)
        .map_err(|error| kernel(&error))
}

fn elsewhere(interface: &str, index: u32) -> io::Result<Result<(), String>> {
    let mut events = Socket::new(NETLINK_ROUTE)?;
    events.bind(&SocketAddr::new(0, libc::RTMGRP_LINK as u32))?;
    let mut process = Command::new("/proc/self/exe")
        .args([ARGUMENT, interface])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Signals to the plugin are not for it.
        .process_group(0)
        .spawn()?;
    loop {
        let mut message = Vec::with_capacity(32 << 10);
        match events.recv(&mut message, libc::MSG_DONTWAIT) {
            Ok(_) if is_deletion(&message, index) => return Ok(Ok(())),
            Ok(_) => continue,
            Err(_) => {}
        }
        if let Some(status) = process.try_wait()? {
            let mut error = String::new();
            if let Some(mut stderr) = process.stderr.take() {
                stderr.read_to_string(&mut error)?;
            }
            return match status.success() {
                true => Ok(Ok(())),
                false if error.is_empty() => Err(io::Error::other("killed")),
                false => Ok(Err(error)),
            };
        }
        sleep(POLL);
    }
}

/// Whether a message of route netlink says that a link was deleted.
fn is_deletion(message: &[u8], index: u32) -> bool {
    // `struct nlmsghdr` has the type at 4, `struct ifinfomsg` behind it the index at 4.
    message.get(4..6) == Some(&libc::RTM_DELLINK.to_ne_bytes())
        && message.get(20..24) == Some(&index.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_of_other_links_are_not_it() {
        let mut message = vec![0; 32];
        message[4..6].copy_from_slice(&libc::RTM_DELLINK.to_ne_bytes());
        message[20] = 7;
        let seven = u32::from_ne_bytes([7, 0, 0, 0]);

        assert!(is_deletion(&message, seven));
        assert!(!is_deletion(&message, seven + 1));
        assert!(!is_deletion(&message[..20], seven));
        message[4] = libc::RTM_NEWLINK as u8;
        assert!(!is_deletion(&message, seven));
    }
}
