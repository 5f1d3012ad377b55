// SPDX-License-Identifier: Apache-2.0

//! Objects of a fake API server as keys of a store in memory, or of etcd.

mod config;
mod endpoints;
mod etcd;
mod golden;
mod random;
mod restart;
mod services;
mod world;
