// SPDX-License-Identifier: Apache-2.0

//! Settings of the kernel below `/proc/sys`. Those of `net` are of the network namespace of the calling thread.

use std::{fs, path::Path};

use crate::NetError;

/// Directory of all settings.
pub const ROOT: &str = "/proc/sys";

/// Reads a setting: `net/ipv4/ip_forward`.
pub fn get(name: &str) -> Result<String, NetError> {
    let path = Path::new(ROOT).join(name);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(source) => Err(NetError::Sysctl { path, source }),
    }
}

pub fn set(name: &str, value: &str) -> Result<(), NetError> {
    let path = Path::new(ROOT).join(name);
    fs::write(&path, value).map_err(|source| NetError::Sysctl { path, source })
}
