// SPDX-License-Identifier: Apache-2.0

//! Pauses before what failed is tried again.

use std::time::Duration;

/// The pause after so many failures in a row: `first`, doubled with each failure up to `last`. Up to a fifth of it is left
/// out at random, so that many programs do not come back at once.
///
/// ```
/// use std::time::Duration;
///
/// let (first, last) = (Duration::from_secs(1), Duration::from_secs(60));
/// let pause = skep_kvstore_client::backoff(3, (first, last));
/// assert!(pause > Duration::from_secs(3) && pause <= Duration::from_secs(4));
/// assert!(skep_kvstore_client::backoff(u32::MAX, (first, last)) <= last);
/// ```
pub fn backoff(failures: u32, (first, last): (Duration, Duration)) -> Duration {
    let factor = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    let pause = first.saturating_mul(factor).min(last);
    pause.mul_f64(1.0 - 0.2 * fastrand::f64())
}
