// SPDX-License-Identifier: Apache-2.0

//! Cell: the name of this node in the cluster.
//! Requires: nothing. Provides: [`NodeName`].

use std::fmt;
use std::sync::Arc;

use hive::{Cell, Cfg};

/// Name of this node: `--k8s-node-name`, else the environment variable `K8S_NODE_NAME`, else the host name in lower
/// case, as kubelet does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, hive::Value)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// A name, as given.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Settings of the node's name.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Name of the node in Kubernetes. Default: environment variable K8S_NODE_NAME, then the host name.
    pub k8s_node_name: String,
}

hive::catalogue!(cell);

/// The name of this node.
pub fn cell() -> Cell {
    Cell::module("node-name", "Name of this node")
        .config::<Config>()
        .provide(new_name)
}

fn new_name(config: Cfg<Config>) -> NodeName {
    let variable = std::env::var("K8S_NODE_NAME").unwrap_or_default();
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .to_lowercase();
    NodeName(choose(&config.k8s_node_name, &variable, &host).into())
}

fn choose<'a>(flag: &'a str, variable: &'a str, host: &'a str) -> &'a str {
    [flag, variable, host]
        .into_iter()
        .map(str::trim)
        .find(|name| !name.is_empty())
        .unwrap_or("localhost")
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn flag_wins_over_variable_and_this_over_the_host_name() {
        assert_eq!(choose("a", "b", "c"), "a");
        assert_eq!(choose("", "b", "c"), "b");
        assert_eq!(choose(" ", "", "c"), "c");
        assert_eq!(choose("", "", ""), "localhost");
    }
}
