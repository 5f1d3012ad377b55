// SPDX-License-Identifier: Apache-2.0

mod cell;
mod world;
