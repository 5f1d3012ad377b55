// SPDX-License-Identifier: Apache-2.0

//! The mesh as a program has it: cells, a directory of configurations, remote clusters in stores in memory and in etcd.

mod connection;
mod etcd;
mod fixture;
mod identity;
mod join;
mod observers;
mod random;
mod reports;
mod services;
