// SPDX-License-Identifier: Apache-2.0

//! Texts as Go programs print them, so that scripts written for those match.

mod int;
pub mod json;
pub mod jsonpath;
mod tabwriter;
pub mod yaml;

pub use int::{IntError, parse_int};
pub use skep_duration::{
    DurationError, format_duration, format_duration_nanos, human_duration, human_duration_nanos,
    parse_duration, parse_duration_nanos,
};
pub use tabwriter::TabWriter;
