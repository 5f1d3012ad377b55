// SPDX-License-Identifier: Apache-2.0

//! The operator as a process, on an embedded API server over HTTP.

mod identities;
mod kvstore;
mod leader;
mod rights;
mod world;
