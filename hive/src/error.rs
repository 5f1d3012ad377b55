// SPDX-License-Identifier: Apache-2.0

//! Errors of functions that cells bring along.

use std::sync::Arc;

/// Any error of a constructor or hook, kept with its chain of causes.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error that several places may look at.
pub type SharedError = Arc<dyn std::error::Error + Send + Sync>;
