// SPDX-License-Identifier: Apache-2.0

//! What is measured about the hive itself.

use std::time::Duration;

/// Measures the phases of a hive. A cell that provides `Arc<dyn HiveMetrics>` receives them; nothing needs to
/// ask for it.
///
/// ```
/// use hive::{Cell, Hive, HiveMetrics, Settings};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// struct Printer;
///
/// impl HiveMetrics for Printer {
///     fn started(&self, took: Duration, ok: bool) { println!("started in {took:?}: {ok}"); }
/// }
///
/// fn printer() -> Arc<dyn HiveMetrics> { Arc::new(Printer) }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cell = Cell::module("printer", "Prints times").provide(printer);
/// Hive::new([cell]).plan(Settings::new())?.build()?.start().await?.stop().await?;
/// # Ok(()) }
/// ```
pub trait HiveMetrics: Send + Sync {
    /// All constructors have run.
    fn built(&self, took: Duration) {
        let _ = took;
    }

    /// All start hooks have run; if not `ok`, one has failed or the start was called off, and what had started
    /// is stopped again.
    fn started(&self, took: Duration, ok: bool) {
        let _ = (took, ok);
    }

    /// All stop hooks have run; if not `ok`, some have failed or hung.
    fn stopped(&self, took: Duration, ok: bool) {
        let _ = (took, ok);
    }
}
