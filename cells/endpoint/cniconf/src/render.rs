// SPDX-License-Identifier: Apache-2.0

//! Texts of configurations. Byte for byte those of Cilium: a file written by Cilium is left alone.

use serde_json::Value;

/// The type of the plugin's entry, and the name of its binary.
pub(crate) const PLUGIN: &str = "cilium-cni";

/// What entries of the plugin say about logs.
#[derive(Debug, Clone)]
pub(crate) struct Logs {
    pub(crate) debug: bool,
    pub(crate) file: String,
}

/// The configuration of a mode without a target; `None`: the mode has none.
pub(crate) fn network(mode: &str, logs: &Logs) -> Option<String> {
    let (debug, file) = (logs.debug, quoted(&logs.file));
    let text = match mode.to_lowercase().as_str() {
        "none" => format!(
            r#"
{{
  "cniVersion": "0.3.1",
  "name": "cilium",
  "plugins": [
    {{
       "type": "{PLUGIN}",
       "enable-debug": {debug},
       "log-file": {file}
    }}
  ]
}}"#
        ),
        "portmap" => format!(
            r#"
{{
  "cniVersion": "0.3.1",
  "name": "portmap",
  "plugins": [
    {{
       "type": "{PLUGIN}",
       "enable-debug": {debug},
       "log-file": {file}
    }},
    {{
      "type": "portmap",
      "capabilities": {{"portMappings": true}}
    }}
  ]
}}
"#
        ),
        "flannel" => format!(
            r#"
{{
  "cniVersion": "0.3.1",
  "name": "flannel",
  "plugins": [
    {{
      "type": "flannel",
      "delegate": {{
         "hairpinMode": true,
         "isDefaultGateway": true
      }}
    }},
    {{
      "type": "portmap",
      "capabilities": {{
        "portMappings": true
      }}
    }},
    {{
       "type": "{PLUGIN}",
       "chaining-mode": "flannel",
       "enable-debug": {debug},
       "log-file": {file}
    }}
  ]
}}
"#
        ),
        _ => return None,
    };
    Some(text)
}

/// The plugin's entry in the network of another plugin.
pub(crate) fn chained_entry(mode: &str, logs: &Logs) -> String {
    let (mode, debug, file) = (quoted(&mode.to_lowercase()), logs.debug, quoted(&logs.file));
    format!(
        "\n{{\n\t\"type\": \"{PLUGIN}\",\n\t\"chaining-mode\": {mode},\n\t\"enable-debug\": {debug},\n\t\"log-file\": {file}\n}}\n"
    )
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
