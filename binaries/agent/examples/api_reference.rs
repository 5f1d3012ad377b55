// SPDX-License-Identifier: Apache-2.0

//! Prints the OpenAPI document of the agent's API: `tests/hack/generate.sh` writes it to
//! `docs/reference/skep-agent.openapi.json`.

use std::{error::Error, sync::Arc};

use hive::{Hive, Settings};
use skep_agent::Configuration;
use skep_base_api::Document;

fn main() -> Result<(), Box<dyn Error>> {
    let cells = skep_agent::cells(Arc::new(Configuration::default()));
    // Constructed, never started: nothing of the machine is touched.
    let hive = Hive::new(cells).root::<Document>();
    let built = hive.plan(Settings::new())?.build()?;
    let document = built.get::<Document>().ok_or("the agent has no API")?;
    print!("{}", document.as_str());
    Ok(())
}
