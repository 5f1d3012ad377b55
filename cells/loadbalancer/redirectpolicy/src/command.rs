// SPDX-License-Identifier: Apache-2.0

//! Command `skiplbmap`: the skip maps into a file.

use std::sync::Arc;

use hive::Member;
use hive_script::{Command, CommandError, CommandHandle, Context, Invocation, Outcome, Spec};

use crate::SkipMaps;

/// Returns the command `skiplbmap`.
pub(crate) fn skiplbmap(maps: Arc<SkipMaps>) -> Member<CommandHandle> {
    let spec = Spec::new("skiplbmap", "Write the contents of the skip maps to a file").args("output-file");
    Member(Arc::new(Dump { spec, maps }))
}

struct Dump {
    spec: Spec,
    maps: Arc<SkipMaps>,
}

#[async_trait::async_trait]
impl Command for Dump {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let Some(file) = inv.arg(0) else {
            return Err(CommandError::usage("output file needed"));
        };
        let entries = self.maps.entries().map_err(|error| CommandError::chain(&error))?;
        let mut lines: Vec<String> = entries.iter().map(|entry| format!("{entry}\n")).collect();
        lines.sort();
        std::fs::write(cx.path(file), lines.concat()).map_err(|error| CommandError::chain(&error))?;
        Ok(Outcome::Silent)
    }
}
