// SPDX-License-Identifier: Apache-2.0

//! The cell on an API server.

mod batches;
mod random;
mod slim;
mod world;
