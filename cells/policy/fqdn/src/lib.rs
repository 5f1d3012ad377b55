// SPDX-License-Identifier: Apache-2.0

//! DNS names in policies.
//!
//! - [`Names`]: the names that endpoints look up, with their addresses (`cache.rs`), and addresses that connections still use
//!   (`zombies.rs`). Addresses of names that rules select are claimed in the ipcache with the labels `fqdn:` of the selectors;
//!   who asks gets the answer when its policy allows them.
//! - The DNS proxy (`proxy.rs`): policies redirect queries to it. It asks the server that the endpoint asked, for names that the
//!   endpoint's rules allow (`rules.rs`).
//! - [`DnsState`]: both in the state file of an endpoint. Endpoints are restored before the proxy answers.
//!
//! An answer counts for the name that was asked for: with records of this name, and of the aliases that lead on from it. It must
//! have the id and the question of the query, and come from the server.
//!
//! Feature `api`: `/v1/fqdn` of the agent's API.
//!
//! Read first: `names.rs`, then `proxy.rs`.

mod access_log;
#[cfg(feature = "api")]
pub mod api;
mod cache;
mod cell;
mod config;
mod connections;
mod jobs;
mod message;
mod metrics;
mod names;
mod proxy;
mod rules;
mod server;
mod state;
#[cfg(test)]
mod tests;
mod zombies;

pub use cache::{DnsName, Expired, NameCache, Record};
pub use cell::cell;
pub use config::Config;
pub use message::{MessageError, Query, Response, compressed, failure};
pub use names::{Answer, Collected, Lookup, LookupSource, Names, Sizes};
pub use proxy::{DnsProxy, ProxyEndpoint, ProxyEndpoints, Request};
pub use rules::{Rules, Server};
pub use state::{DnsState, SavedAnswer, SavedRule, SavedRules, SavedZombie, SavedZombies, port_key};
pub use zombies::{Dead, Limits, Pass, Zombie, Zombies};

hive::catalogue!(cell);
