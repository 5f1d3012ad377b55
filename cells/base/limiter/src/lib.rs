// SPDX-License-Identifier: Apache-2.0

//! Limits of requests: a rate with a burst, and a number at once. Both can adjust to how long requests take.
//!
//! - [`Limiter`]: admits requests, in order of arrival;
//! - [`Parameters`]: how it does, with the parameters of Cilium's `api-rate-limit`;
//! - [`TokenBucket`]: the rate alone, for who waits in a way of their own;
//! - [`Recorder`]: measures it. Feature `hive` adds `LimiterMetrics`, the metrics `api_limiter_*` of all limiters of a
//!   program, and their cell.

mod bucket;
mod limiter;
mod mean;
#[cfg(feature = "hive")]
mod metrics;
mod parameters;
mod recorder;
#[cfg(test)]
mod tests;

pub use bucket::TokenBucket;
pub use limiter::{Limiter, NotAdmitted, Permit};
#[cfg(feature = "hive")]
pub use metrics::{LimiterMetrics, cell};
pub use parameters::{Expected, ParameterError, Parameters};
pub use recorder::{LimiterUsage, Limits, NoRecorder, Recorder};
