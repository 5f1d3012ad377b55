// SPDX-License-Identifier: Apache-2.0

mod identities;
mod locks;
mod nodes;
mod world;
