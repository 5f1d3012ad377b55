// SPDX-License-Identifier: Apache-2.0

//! What a suite is.

use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use hive_script::Retry;
use hive_script::testing::Parts;

use crate::AssemblyError;

/// Which load-balancing maps a script works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Maps {
    /// In memory.
    #[default]
    Fake,
    /// In the kernel; needs root.
    Bpf,
}

/// What a suite gets to know about a script.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The arguments behind `#!`, with `$WORK` replaced.
    pub args: Vec<String>,
    /// The script's text, without the files.
    pub script: String,
    /// The script's work directory.
    pub work_dir: PathBuf,
    /// A directory for what the cells keep on disk.
    pub state_dir: PathBuf,
    /// Which maps to use.
    pub maps: Maps,
    /// Whether scripts are to print much.
    pub verbose: bool,
}

impl Setup {
    /// Where the script's own BPF file system goes.
    pub fn bpf_root(&self) -> PathBuf {
        self.state_dir.join("bpf")
    }
}

/// A way to make the surroundings of scripts.
pub struct Suite {
    /// Name on the command line.
    pub name: &'static str,
    /// One sentence for the list of suites.
    pub summary: &'static str,
    /// How `*` repeats.
    pub retry: Retry,
    /// Time for a script.
    pub timeout: Duration,
    /// Makes the surroundings of one script.
    pub assemble: fn(Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>>,
}

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suite")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
