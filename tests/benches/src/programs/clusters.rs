// SPDX-License-Identifier: Apache-2.0

//! The agent with many small remote clusters, all in one etcd.

use std::fs;
use std::time::Instant;

use skep_bpf_maps::node::{IpcacheKey, IpcacheValue};
use skep_bpf_sys::Map;

use super::{Bench, connect};
use crate::agent::{self, ServerOptions};
use crate::etcd::Etcd;
use crate::mesh::{IPCACHE_MAP, remote, store};
use crate::report::Row;
use crate::usage;

/// Identity of nodes of other clusters.
const REMOTE_NODE: u32 = 6;

impl Bench<'_> {
    pub(super) async fn clusters(&self) -> anyhow::Result<Vec<Row>> {
        let (clusters, nodes) = (self.options.clusters, self.options.nodes_per_cluster);
        let etcd = Etcd::start(&self.options.etcd).await?;
        for number in 1..=clusters {
            store::write(&etcd.backend(), remote::small(number, nodes)?).await?;
        }
        let (_server, url) = agent::start_server(&ServerOptions::default())?;
        let config = self.node.directory().join("clustermesh");
        fs::create_dir(&config)?;
        let settings = [
            "--cluster-name=local".to_owned(),
            "--cluster-id=511".to_owned(),
            "--max-connected-clusters=511".to_owned(),
            // By default there is room for the ids of 16,384 nodes.
            "--bpf-node-map-max=65536".to_owned(),
            format!("--clustermesh-config={}", config.display()),
        ];
        let mut agent = agent::start(self.node, &self.programs.join("skep-agent"), &url, &settings)?;
        let begun = Instant::now();
        let store = self.node.store();
        let open = || store.open::<IpcacheKey, IpcacheValue>(IPCACHE_MAP);
        self.until(&mut agent, begun, "the agent has started", async || {
            Ok(open().is_ok())
        })
        .await?;
        let map = open()?;
        let mut rows = Vec::new();
        self.rest("agent alone", &mut agent, &mut rows, None).await?;

        let (begun, used) = (Instant::now(), usage::processor_time_of(agent.id())?);
        for number in 1..=clusters {
            connect(&config, &remote::small_name(number), &etcd)?;
        }
        self.until(&mut agent, begun, "all nodes are in the map", async || {
            has_all_nodes(&map, clusters * nodes)
        })
        .await?;
        let case = format!("agent, {clusters} clusters of {nodes} nodes{}", self.options.etcd);
        let seconds = begun.elapsed().as_secs_f64();
        let used = usage::processor_time_of(agent.id())? - used;
        rows.push(Row::cost(
            format!("{case}: until all are in the map"),
            seconds,
            "s",
        ));
        rows.push(Row::cost(
            format!("{case}: processor time for it"),
            used.as_secs_f64(),
            "s",
        ));
        self.rest(&case, &mut agent, &mut rows, None).await?;
        Ok(rows)
    }
}

fn has_all_nodes(map: &Map<IpcacheKey, IpcacheValue>, nodes: u32) -> anyhow::Result<bool> {
    // The last ones first: most looks end at the first node.
    for number in (0..nodes).rev() {
        let value = map.lookup(&IpcacheKey::host(remote::node(number).into()))?;
        if value.is_none_or(|value| value.identity != REMOTE_NODE) {
            return Ok(false);
        }
    }
    Ok(true)
}
