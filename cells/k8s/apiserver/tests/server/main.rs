// SPDX-License-Identifier: Apache-2.0

//! Tests of the API server as its clients see it. One program: linking each costs seconds.

mod contract;
mod exec;
mod kubectl;
mod tokens;
