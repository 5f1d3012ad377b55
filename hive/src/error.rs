// SPDX-License-Identifier: Apache-2.0

//! Errors of functions that cells bring along.

use std::sync::Arc;

/// Any error of a constructor or hook, kept with its chain of causes.
///
/// ```
/// let error: hive::BoxError = "disk full".into();
/// assert_eq!(error.to_string(), "disk full");
/// ```
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error that several places may look at.
///
/// ```
/// let error: hive::SharedError = std::sync::Arc::new(std::io::Error::other("disk full"));
/// assert_eq!(error.to_string(), "disk full");
/// ```
pub type SharedError = Arc<dyn std::error::Error + Send + Sync>;
