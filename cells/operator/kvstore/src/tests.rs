// SPDX-License-Identifier: Apache-2.0

mod double_write;
mod identities;
mod locks;
mod nodes;
mod world;
