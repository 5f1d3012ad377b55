// SPDX-License-Identifier: Apache-2.0

//! The kernel's compiler for programs: without it every call of every process is interpreted.

use std::{fs, io, path::Path};

/// Where the kernel says whether programs are compiled, below its settings. Not in every network namespace.
pub(crate) const SWITCH: &str = "net/core/bpf_jit_enable";

/// Switches the compiler on. Says so in the log, also if that is not permitted: programs work without.
pub(crate) fn enable(switch: &Path) {
    match switched_on(switch) {
        Ok(false) => {}
        Ok(true) => tracing::info!("Enabled the BPF JIT compiler"),
        Err(error) => tracing::warn!(
            switch = %switch.display(),
            %error,
            "Cannot enable the BPF JIT compiler, programs are interpreted"
        ),
    }
}

/// Whether it had to be switched on.
fn switched_on(switch: &Path) -> io::Result<bool> {
    match fs::read_to_string(switch) {
        Ok(text) if text.trim() == "0" => fs::write(switch, "1").map(|()| true),
        // On, or always on, or another namespace's business.
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_switched_on_if_it_is_off() {
        let directory = tempfile::tempdir().unwrap();
        let switch = directory.path().join("bpf_jit_enable");
        for (found, left, switched) in [("0\n", "1", true), ("1\n", "1\n", false), ("2\n", "2\n", false)] {
            fs::write(&switch, found).unwrap();
            assert_eq!(switched_on(&switch).unwrap(), switched);
            assert_eq!(fs::read_to_string(&switch).unwrap(), left);
        }
        assert!(!switched_on(&directory.path().join("missing")).unwrap());
    }
}
