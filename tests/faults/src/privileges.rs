// SPDX-License-Identifier: Apache-2.0

//! Starting programs with fewer privileges.

use std::io;

use rustix::{
    process::{Gid, Uid},
    thread::{
        CapabilitySet, CapabilitySets, configure_capability_in_ambient_set,
        remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_thread_groups,
        set_thread_res_gid, set_thread_res_uid,
    },
};

/// A user and group that own nothing.
pub(crate) const NOBODY: u32 = 65_534;
/// `CAP_CHECKPOINT_RESTORE`, the last one there is.
const LAST: u32 = 40;

/// Runs `start` on a thread of the user `nobody` that has these capabilities and no others, and cannot get more.
/// Programs that it starts have them, too.
pub(crate) fn reduced<T: Send>(
    capabilities: CapabilitySet,
    start: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("reduced".to_owned())
            .spawn_scoped(scope, || {
                drop_privileges(capabilities)?;
                Ok(start())
            })?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// All of this is the calling thread's alone.
fn drop_privileges(capabilities: CapabilitySet) -> io::Result<()> {
    for number in 0..=LAST {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if !capabilities.contains(one) {
            // Unknown to kernels older than the capability.
            let _ = remove_capability_from_bounding_set(one);
        }
    }
    set_keep_capabilities(true)?;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: capabilities,
            permitted: capabilities,
            inheritable: capabilities,
        },
    )?;
    for one in capabilities {
        configure_capability_in_ambient_set(one, true)?;
    }
    Ok(())
}
