// SPDX-License-Identifier: Apache-2.0

//! Tests with a real etcd. One program: linking each costs seconds.

mod cell;
mod contract;
mod faults;
mod tls;
mod troubleshoot;
