// SPDX-License-Identifier: Apache-2.0

//! Commands of scripts and the shell: a look into the maps, and a prune.

use std::sync::Arc;

use async_trait::async_trait;
use hive::Members;
use hive_script::{Command, CommandError, CommandHandle, Context, Invocation, Outcome, Output, Spec};

use crate::InitWait;
use crate::maps::{LoadBalancerMaps, text};

/// The commands that are there always.
pub(crate) fn commands(maps: Arc<LoadBalancerMaps>, reconciled: InitWait) -> Members<CommandHandle> {
    let dump = Spec::new("lb/maps-dump", "Dump the load-balancing BPF maps")
        .args("[output file]")
        .detail("Every entry of the maps as a line, sorted. Without a file the lines go to stdout.");
    let prune = Spec::new(
        "lb/prune",
        "Prune unreferenced entries of the load-balancing BPF maps",
    );
    Members(vec![
        Arc::new(Dump { spec: dump, maps }),
        Arc::new(Prune {
            spec: prune,
            reconciled,
        }),
    ])
}

struct Dump {
    spec: Spec,
    maps: Arc<LoadBalancerMaps>,
}

#[async_trait]
impl Command for Dump {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let text = text::dump(&self.maps).map_err(|error| CommandError::chain(&error))?;
        match inv.args() {
            [] => Ok(Outcome::stdout(text)),
            [file] => {
                cx.write_file(file, text)
                    .map_err(|error| CommandError::io("open", cx.path(file), &error))?;
                Ok(Outcome::Output(Output::default()))
            }
            _ => Err(CommandError::usage("expected at most one file")),
        }
    }
}

struct Prune {
    spec: Spec,
    reconciled: InitWait,
}

#[async_trait]
impl Command for Prune {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, _inv: Invocation) -> Result<Outcome, CommandError> {
        let interrupted = cx.interrupted();
        tokio::select! {
            pruned = self.reconciled.prune() => pruned.map_err(|error| CommandError::chain(&error))?,
            interruption = interrupted => return Err(interruption.into()),
        }
        Ok(Outcome::Silent)
    }
}
