// SPDX-License-Identifier: Apache-2.0

//! What a hive shows of itself.

mod tree;
