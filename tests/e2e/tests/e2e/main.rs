// SPDX-License-Identifier: Apache-2.0

//! End-to-end tests. One program: linking each costs seconds.

mod agent;
mod bandwidth;
mod chart;
mod clustermesh;
mod clustermesh_random;
mod conformance;
mod containerd;
mod datapath;
mod demo;
mod direct_return;
mod direct_routes;
mod embedding;
mod endpoint_routes;
mod endpoints;
mod health;
mod host_policies;
mod lab;
mod legacy_routing;
mod migration;
mod names;
mod node_ports;
mod operator;
mod pods;
mod policies;
mod reach;
mod real_server;
mod redirects;
mod rights;
mod services;
