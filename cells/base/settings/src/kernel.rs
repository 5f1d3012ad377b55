// SPDX-License-Identifier: Apache-2.0

//! Where settings of the kernel are read and written.

use std::path::PathBuf;

/// Where settings of the kernel are read and written.
#[derive(Debug, Clone, hive::Config)]
pub struct KernelConfig {
    /// Mount point of the node's proc file system. `/proc/sys` is read-only in unprivileged containers, so
    /// charts mount `sys/net` and `sys/kernel` elsewhere.
    #[config(default = "/proc", flag = "procfs")]
    pub procfs: PathBuf,
}

impl KernelConfig {
    /// The directory of the kernel's settings; `/proc/sys` if nothing is mounted where it should be, as where the settings of
    /// a container are used outside of it.
    pub fn sysctl(&self) -> PathBuf {
        match self.is_mounted() {
            true => self.procfs.join("sys"),
            false => PathBuf::from("/proc/sys"),
        }
    }

    /// Whether there are settings of the kernel below `procfs`.
    pub fn is_mounted(&self) -> bool {
        self.procfs.join("sys/net").is_dir()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_where_they_are_mounted() {
        let host = tempfile::tempdir().unwrap();
        let config = KernelConfig {
            procfs: host.path().to_owned(),
        };
        assert_eq!(config.sysctl(), PathBuf::from("/proc/sys"));

        std::fs::create_dir_all(host.path().join("sys/net")).unwrap();

        assert_eq!(config.sysctl(), host.path().join("sys"));
    }
}
