// SPDX-License-Identifier: Apache-2.0

//! Tests of the commands with a real etcd. One program: linking each costs seconds.

mod api_server;
mod etcdinit;
