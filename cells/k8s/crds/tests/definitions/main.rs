// SPDX-License-Identifier: Apache-2.0

//! Tests of the definitions, alone and with an API server. One program: linking each costs seconds.

mod names;
mod objects;
mod register;
mod schemas;
