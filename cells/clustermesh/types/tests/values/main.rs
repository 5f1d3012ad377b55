// SPDX-License-Identifier: Apache-2.0

//! Integration tests, linked as one program.

mod garbage;
mod golden;
