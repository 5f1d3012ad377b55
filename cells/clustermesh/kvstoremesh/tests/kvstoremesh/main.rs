// SPDX-License-Identifier: Apache-2.0

//! kvstoremesh against stores in memory and real etcds.

mod copy;
mod etcd;
mod faults;
mod fixture;
mod leader;
mod random;
mod removal;
