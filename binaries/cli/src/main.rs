// SPDX-License-Identifier: Apache-2.0

//! The skep command.

fn main() {}
