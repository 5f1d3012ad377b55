// SPDX-License-Identifier: Apache-2.0

//! Runs script tests against partial hives.
//!
//! A [`Suite`] says which cells a script gets, which flags are set before, and what `*` and time-outs are like;
//! [`suites::all`] is the table of them. [`run`] gives every file a hive, a work directory and a time limit of its
//! own. The scripts of this repository lie beside the sources, one folder a suite.

mod assembly;
pub mod reference;
mod report;
mod runner;
mod suite;
pub mod suites;

pub use assembly::{Assembly, AssemblyError, Wait, base_cells, built_ins};
pub use hive_script::testing::Parts;
pub use report::{FileReport, Summary, Verdict};
pub use runner::{Options, run, run_folder};
pub use suite::{Maps, Setup, Suite};
