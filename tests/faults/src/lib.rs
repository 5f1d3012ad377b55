// SPDX-License-Identifier: Apache-2.0

//! What must not break Skep: agents that are killed, API servers that go away, maps that are full or of another
//! version, garbage wherever something is read; pods whose agent or plugin is killed at any step, of which nothing may leak ([`LeakCount`]).
//!
//! Each test has a world of its own: a thread with network namespace, control group and BPF file system
//! ([`skep_bpf_sys::testing::Node`]), in which it runs the real agent, an API server and servers to be reached. The
//! programs must be built first: `cargo build --bins`, as `make test` does.

mod agent;
mod api;
mod flow;
mod gate;
mod pods;
mod privileges;
mod world;

pub use agent::{Agent, Exit};
pub use api::{Api, put_malformed, service, slice};
pub use flow::{Echo, Flow, calls, calls_udp};
pub use gate::Gate;
pub use pods::{LeakCount, Pod, Pods, printed};
pub use world::{Outcome, World, on_node, patience};
