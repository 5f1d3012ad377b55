// SPDX-License-Identifier: Apache-2.0

//! Passes over objects of the embedded API server, with a paused clock.

mod endpoints;
mod identities;
mod nodes;
mod pods;
mod slices;
mod taints;
mod world;
