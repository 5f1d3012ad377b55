// SPDX-License-Identifier: Apache-2.0

//! The maps of a script: in memory, or in the kernel below a BPF file system of its own.

use std::path::{Path, PathBuf};

use hive::Cell;
use hive_script::testing::{AssemblyError, Choice, Choices, Setup};

/// Which load-balancing maps the scripts work on.
pub(crate) const MAPS: Choice = Choice {
    name: "maps",
    summary: "Which load-balancing maps the scripts work on",
    values: &[("fake", "In memory"), ("bpf", "In the kernel; needs root")],
};

/// Whether the maps are those of the kernel.
pub(crate) fn are_real(choices: &Choices) -> bool {
    choices.value(&MAPS) == "bpf"
}

pub(crate) fn cell(choices: &Choices) -> Cell {
    match are_real(choices) {
        true => skep_datapath_maps::cell(),
        false => skep_datapath_maps::in_memory_cell(),
    }
}

/// Moves this process, which must have one thread still, into a mount namespace of its own: what scripts mount is gone
/// with the process, however it ends.
pub(crate) fn hide_mounts(choices: &Choices) -> Result<(), AssemblyError> {
    if !are_real(choices) {
        return Ok(());
    }
    enter_namespace().map_err(|cause| AssemblyError::Prepare {
        what: "a mount namespace for BPF file systems, which needs root",
        cause: Box::new(cause),
    })
}

fn enter_namespace() -> std::io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    let flags = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", flags)?)
}

/// The BPF file system of a script, which the cell of the maps mounts. It is unmounted when this is dropped, also if
/// the script is interrupted.
pub(crate) struct Mount(PathBuf);

impl Mount {
    pub(crate) fn of(setup: &Setup) -> Self {
        Self(setup.state_dir.join("bpf"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Not mounted if the hive was never started.
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
