// SPDX-License-Identifier: Apache-2.0

//! Capabilities of the calling thread: whether it may do what the datapath does.
//!
//! The kernel answers a call without capability with a bare EPERM. Asked for beforehand, the error says what is
//! missing and what for.

use std::{fmt, io};

use rustix::thread::{CapabilitySet, capabilities};

/// Makes maps, reads them and loads programs.
pub const BPF: Capability = Capability::new("CAP_BPF", CapabilitySet::BPF, "makes maps and loads programs");
/// Lets the verifier pass what programs do with addresses.
pub const PERFMON: Capability = Capability::new(
    "CAP_PERFMON",
    CapabilitySet::PERFMON,
    "loads programs that keep pointers to map entries",
);
/// Loads and attaches programs of network hooks, ends sockets.
pub const NET_ADMIN: Capability = Capability::new(
    "CAP_NET_ADMIN",
    CapabilitySet::NET_ADMIN,
    "attaches programs to sockets' calls",
);
/// What the agent must have, unless it has `CAP_SYS_ADMIN`, which includes these three for BPF.
pub const REQUIRED: [Capability; 3] = [BPF, PERFMON, NET_ADMIN];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    name: &'static str,
    bit: CapabilitySet,
    purpose: &'static str,
}

impl Capability {
    const fn new(name: &'static str, bit: CapabilitySet, purpose: &'static str) -> Self {
        Self { name, bit, purpose }
    }

    /// Its name, such as `CAP_BPF`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    fn is_in(self, effective: CapabilitySet) -> bool {
        effective.intersects(self.bit | CapabilitySet::SYS_ADMIN)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.purpose)
    }
}

/// Why the process may not do what it is for.
#[derive(Debug, thiserror::Error)]
pub enum CapabilityError {
    /// Run it as root, or give it what is named.
    #[error("this process has no {}: run it as root or with these capabilities", list(.0))]
    Missing(Vec<Capability>),
    #[error("cannot read the capabilities of this process")]
    Unknown(#[source] io::Error),
}

fn list(missing: &[Capability]) -> String {
    let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    names.join(", no ")
}

/// Checks that the calling thread has what is `needed`.
///
/// # Errors
///
/// [`CapabilityError::Missing`], which names all of [`REQUIRED`] that are missing once one of `needed` is.
pub fn require(needed: &[Capability]) -> Result<(), CapabilityError> {
    let sets = capabilities(None).map_err(|error| CapabilityError::Unknown(error.into()))?;
    check(needed, sets.effective)
}

fn check(needed: &[Capability], effective: CapabilitySet) -> Result<(), CapabilityError> {
    if needed.iter().all(|capability| capability.is_in(effective)) {
        return Ok(());
    }
    let missing = REQUIRED
        .into_iter()
        .filter(|capability| !capability.is_in(effective))
        .collect();
    Err(CapabilityError::Missing(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_missing_is_named_at_once() {
        let error = check(&[BPF], CapabilitySet::NET_ADMIN).unwrap_err().to_string();
        assert_eq!(
            error,
            "this process has no CAP_BPF (makes maps and loads programs), no CAP_PERFMON (loads programs that keep \
             pointers to map entries): run it as root or with these capabilities"
        );
    }

    #[test]
    fn what_is_not_needed_may_be_missing() {
        assert!(check(&[BPF], CapabilitySet::BPF).is_ok());
        assert!(check(&REQUIRED, CapabilitySet::BPF | CapabilitySet::PERFMON).is_err());
    }

    #[test]
    fn sys_admin_includes_them() {
        assert!(check(&REQUIRED, CapabilitySet::SYS_ADMIN).is_ok());
    }
}
