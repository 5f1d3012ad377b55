// SPDX-License-Identifier: Apache-2.0

//! Tests: Corefiles, and the update of a cluster.

mod corefiles;
mod updates;
