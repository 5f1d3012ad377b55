// SPDX-License-Identifier: Apache-2.0

//! The file: YAML or JSON → networks.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    str::FromStr,
};

use hive::config::open_regular;
use ipnet::IpNet;
use serde::Deserialize;

/// Networks without masquerade where no file says which: private and special ones.
const DEFAULTS: [&str; 11] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
];
/// Added unless the file says otherwise.
const LINK_LOCAL4: &str = "169.254.0.0/16";
const LINK_LOCAL6: &str = "fe80::/10";

/// Why the file is not in force. What was in force before stays so.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read, or is no regular file.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is neither YAML nor JSON, or a field has another type.
    #[error("{} is not a configuration of the ip-masq-agent", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_norway::Error,
    },
    /// An entry of `nonMasqueradeCIDRs` is not a network.
    #[error("{}: `{text}` in nonMasqueradeCIDRs is not a network such as 10.0.0.0/8", path.display())]
    Network { path: PathBuf, text: String },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Document {
    #[serde(rename = "nonMasqueradeCIDRs")]
    networks: Option<Vec<String>>,
    #[serde(rename = "masqLinkLocal")]
    masquerades_link_local4: bool,
    #[serde(rename = "masqLinkLocalIPv6")]
    masquerades_link_local6: bool,
}

/// Networks that are reached without masquerade.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Networks(pub BTreeSet<IpNet>);

impl Networks {
    /// Reads the file; one that is missing or empty means the defaults.
    ///
    /// # Errors
    ///
    /// [`FileError`].
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let text = match open_regular(path).and_then(io::read_to_string) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|source| FileError::Read {
                path: path.to_owned(),
                source,
            })?,
        };
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let document: Option<Document> = serde_norway::from_str(text).map_err(|source| FileError::Parse {
            path: path.to_owned(),
            source,
        })?;
        let document = document.unwrap_or_default();
        let defaults = || DEFAULTS.map(str::to_owned).to_vec();
        let mut texts = document.networks.unwrap_or_else(defaults);
        if !document.masquerades_link_local4 {
            texts.push(LINK_LOCAL4.to_owned());
        }
        if !document.masquerades_link_local6 {
            texts.push(LINK_LOCAL6.to_owned());
        }
        let networks = texts.into_iter().map(|text| match IpNet::from_str(text.trim()) {
            Ok(network) => Ok(network.trunc()),
            Err(_) => Err(FileError::Network {
                path: path.to_owned(),
                text,
            }),
        });
        networks.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<String>, FileError> {
        let networks = Networks::parse(Path::new("/etc/config/ip-masq-agent"), text)?;
        Ok(networks.0.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn files_without_networks_mean_the_defaults() {
        let all = DEFAULTS.len() + 2;
        for text in ["", "\n", "{}", "resyncInterval: 60s\n"] {
            assert_eq!(parse(text).unwrap().len(), all, "{text:?}");
        }
        assert_eq!(parse("masqLinkLocal: true").unwrap().len(), all - 1);
        assert_eq!(parse("masqLinkLocalIPv6: true").unwrap().len(), all - 1);
    }

    #[test]
    fn listed_networks_replace_the_defaults() {
        let found = parse("nonMasqueradeCIDRs:\n- 10.1.2.3/16\n- fd00::1/64\nmasqLinkLocal: true\n").unwrap();
        assert_eq!(found, ["10.1.0.0/16", "fd00::/64", "fe80::/10"]);

        let found = parse(r#"{"nonMasqueradeCIDRs": [], "masqLinkLocalIPv6": true}"#).unwrap();
        assert_eq!(found, ["169.254.0.0/16"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = parse("nonMasqueradeCIDRs: [10.0.0.0/33]")
            .unwrap_err()
            .to_string();
        assert!(text.contains("`10.0.0.0/33`"), "{text}");
        for broken in [
            "nonMasqueradeCIDRs: 10.0.0.0/8",
            "- a",
            "{",
            "masqLinkLocal: maybe",
        ] {
            let error = parse(broken).unwrap_err();
            assert!(matches!(error, FileError::Parse { .. }), "{broken}: {error}");
            assert!(error.to_string().contains("/etc/config/ip-masq-agent"));
        }
    }

    #[test]
    fn a_directory_or_pipe_in_the_place_of_the_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());

        for path in [directory.path(), &pipe] {
            let error = hive::error_chain(&Networks::read(path).unwrap_err());
            assert!(error.ends_with("it is not a regular file"), "{error}");
        }
        assert!(Networks::read(&directory.path().join("none")).is_ok());
    }
}
