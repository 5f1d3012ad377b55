// SPDX-License-Identifier: Apache-2.0

//! Script commands `ipam/*`.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use async_trait::async_trait;
use hive::{Cell, Members};
use hive_script::{Command, CommandError, CommandHandle, Context, Invocation, Outcome, Spec, function};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{Family, Ipam};

/// How long `ipam/start` waits for networks.
const START: Duration = Duration::from_secs(30);

/// Provides the commands: for tests.
pub(crate) fn cell() -> Cell {
    Cell::module("ipam-commands", "Allocates addresses from scripts").provide(commands)
}

fn commands(ipam: Ipam) -> Members<CommandHandle> {
    let (finish, restore, allocate, dump) = (ipam.clone(), ipam.clone(), ipam.clone(), ipam.clone());
    let start = Start {
        spec: Spec::new("ipam/start", "Wait until the node has its networks"),
        ipam,
    };
    let restore_endpoint =
        Spec::new("ipam/restore-endpoint", "Allocate an address of the default pool").args("ip owner");
    let restore_finished = Spec::new("ipam/restore-finished", "Report that all addresses are restored");
    let allocate_next = Spec::new("ipam/allocate", "Allocate an address of each family").args("owner");
    let dump_file = Spec::new("ipam/dump", "Write pools and owners to a file").args("file");
    Members(vec![
        std::sync::Arc::new(start),
        function(restore_endpoint, move |_, inv| {
            let [ip, owner] = inv.args() else {
                return Err(CommandError::usage("expected an address and an owner"));
            };
            let ip: IpAddr = ip.parse().map_err(CommandError::new)?;
            allocated(restore.allocate_ip(ip, owner, restore.default_pool()))
        }),
        function(restore_finished, move |_, inv| {
            let [] = inv.args() else {
                return Err(CommandError::usage("expected no arguments"));
            };
            finish.restore_finished();
            Ok(Outcome::stdout(""))
        }),
        function(allocate_next, move |_, inv| {
            let [owner] = inv.args() else {
                return Err(CommandError::usage("expected an owner"));
            };
            allocated(allocate.allocate_all(owner, allocate.default_pool()))
        }),
        function(dump_file, move |cx, inv| {
            let [file] = inv.args() else {
                return Err(CommandError::usage("expected a file"));
            };
            let written = cx.write_file(file, format!("{:#}\n", content(&dump)));
            written.map_err(|error| CommandError::io("write", file, &error))?;
            Ok(Outcome::stdout(""))
        }),
    ])
}

fn allocated<T>(result: Result<T, crate::IpamError>) -> Result<Outcome, CommandError> {
    result.map_err(|error| CommandError::chain(&error))?;
    Ok(Outcome::stdout(""))
}

fn content(ipam: &Ipam) -> Value {
    let family = |family| {
        let addresses = ipam.addresses(family);
        let mut pools: BTreeMap<&str, usize> = BTreeMap::new();
        for address in &addresses {
            *pools.entry(&address.pool).or_default() += 1;
        }
        let mut owners: Vec<&str> = addresses.iter().map(|address| address.owner.as_str()).collect();
        owners.sort_unstable();
        json!({ "pools": pools, "owners": owners })
    };
    json!({ "ipv4": family(Family::V4), "ipv6": family(Family::V6) })
}

struct Start {
    spec: Spec,
    ipam: Ipam,
}

#[async_trait]
impl Command for Start {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let [] = inv.args() else {
            return Err(CommandError::usage("expected no arguments"));
        };
        let ready = cx.until_interrupted(timeout(START, self.ipam.ready())).await?;
        ready.map_err(|_| CommandError::new("the node has no networks"))?;
        Ok(Outcome::stdout(""))
    }
}
