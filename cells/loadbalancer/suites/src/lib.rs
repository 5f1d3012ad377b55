// SPDX-License-Identifier: Apache-2.0

//! Script suites of the load balancer: `loadbalancer`, `redirectpolicy` and `healthserver`.
//!
//! Services of a fake Kubernetes client become rows of tables, and entries of maps in memory or in the kernel. The
//! hives are made of the cells of the agent; `cells` says what stands for the rest of it. Their model, sources,
//! reconciler, policies and health-check servers do not depend on each other, so the suites that assemble all of them
//! are a crate of their own.
//!
//! A runner links the crate (`use skep_loadbalancer_suites as _;`) and finds the suites by
//! [`hive_script::testing::suites`].

pub mod cells;
mod healthserver;
mod loadbalancer;
mod maps;
mod redirectpolicy;
