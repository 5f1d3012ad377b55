// SPDX-License-Identifier: Apache-2.0

//! `skep version`.

use skep_base_api_client::Client;
use skep_base_api_types::StatusResponse;

use crate::print::{self, Format};

pub(crate) fn text(agent: &Client, format: Format) -> String {
    let client = env!("CARGO_PKG_VERSION");
    let answer = agent.get::<StatusResponse>("healthz", &[("brief", "true")]);
    let daemon = answer.map(|answer| answer.cilium.msg).ok();
    match format {
        Format::Text => {
            let daemon = daemon.map_or_else(|| "Not responding".to_owned(), |daemon| format!(" {daemon}"));
            format!("Client:  {client}\nDaemon: {}\n", daemon.trim_end())
        }
        _ => {
            let arch = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
            let version = |version: &str, arch: &str| {
                serde_json::json!({
                    "Version": version, "Revision": "", "GoRuntimeVersion": "", "Arch": arch, "AuthorDate": "",
                })
            };
            let daemon = daemon.map(|daemon| version(&daemon, ""));
            let both = serde_json::json!({ "Client": version(client, &arch), "Daemon": daemon });
            print::value(&both, format)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    #[test]
    fn version_of_an_agent_that_is_away_is_null_for_programs() {
        let agent = Client::at(Path::new("/nonexistent/agent.sock"));

        let shown = text(&agent, Format::Json);

        let value: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(value["Client"]["Version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(value["Daemon"], Value::Null);
        assert!(text(&agent, Format::Text).ends_with("\nDaemon: Not responding\n"));
    }
}
