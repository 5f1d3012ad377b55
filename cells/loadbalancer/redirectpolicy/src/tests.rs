// SPDX-License-Identifier: Apache-2.0

//! What policies and pods become.

mod hive;
mod policy;
mod skipmaps;
