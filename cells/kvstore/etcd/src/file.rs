// SPDX-License-Identifier: Apache-2.0

//! The client configuration file: etcd's YAML with Cilium's host aliases.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use hive::config::open_regular;
use serde::Deserialize;

pub(crate) const CA_FILE: &str = "trusted-ca-file";
pub(crate) const CERT_FILE: &str = "cert-file";
pub(crate) const KEY_FILE: &str = "key-file";

#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    pub endpoints: Vec<Endpoint>,
    pub tls: TlsFiles,
    pub user: Option<(String, String)>,
    /// Addresses of host names that need no DNS.
    pub host_aliases: BTreeMap<String, Vec<IpAddr>>,
}

/// The password stays out of logs.
impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("tls", &self.tls)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("host_aliases", &self.host_aliases)
            .finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: String,
    /// Host name or IP address, without brackets.
    pub host: String,
    pub port: u16,
    pub is_tls: bool,
}

/// Where certificates are. They are read at each handshake: renewed files need no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that are trusted; those of the system without it.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Whether the server's certificate is not verified.
    pub skip_verify: bool,
}

/// Why a configuration of etcd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read. A missing one may be mounted later: this is tried again.
    #[error("cannot read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },

    /// A file that the configuration names cannot be read. A missing one may be mounted later: this is tried again.
    #[error("cannot read {setting} `{}`", path.display())]
    ReadNamed {
        /// What names the file, such as `trusted-ca-file`.
        setting: &'static str,
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },

    /// The file is no YAML of the right form: fix the file.
    #[error("cannot parse `{}`", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        cause: serde_norway::Error,
    },

    /// No endpoint is named: add `endpoints`.
    #[error("`{}` names no endpoints", path.display())]
    NoEndpoints { path: PathBuf },

    /// What the file says of an endpoint cannot be used.
    #[error("`{}`", path.display())]
    EndpointOfFile {
        path: PathBuf,
        /// Which endpoint, and what is wrong.
        #[source]
        cause: Box<ConfigError>,
    },

    #[error("endpoint `{endpoint}`: {reason}")]
    Endpoint {
        endpoint: String,
        /// What is wrong, and what is accepted.
        reason: &'static str,
    },

    /// An entry of `cilium-host-aliases` is malformed.
    #[error("`{}`: cilium-host-aliases: {reason}", path.display())]
    HostAlias {
        path: PathBuf,
        /// Which entry, and what is wrong.
        reason: String,
    },

    /// A client certificate needs its key, and the other way round.
    #[error("`{}` has only one of cert-file and key-file", path.display())]
    Certificate { path: PathBuf },

    /// A certificate or a key is malformed.
    #[error("{setting} `{}`: {reason}", path.display())]
    Pem {
        /// What names the file, such as `trusted-ca-file`.
        setting: &'static str,
        path: PathBuf,
        reason: String,
    },

    /// Certificate and key do not belong together, or are of an unsupported kind.
    #[error("cert-file `{}`", path.display())]
    Tls {
        path: PathBuf,
        #[source]
        cause: tokio_rustls::rustls::Error,
    },
}

impl ConfigError {
    /// Whether a file is missing, which may be mounted later.
    pub fn is_missing_file(&self) -> bool {
        match self {
            Self::Read { cause, .. } | Self::ReadNamed { cause, .. } => {
                cause.kind() == std::io::ErrorKind::NotFound
            }
            _ => false,
        }
    }
}

/// The file as written. Fields of etcd that mean nothing here are ignored, as etcd does with fields it does not know.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct RawConfig {
    endpoints: Vec<String>,
    trusted_ca_file: String,
    ca_file: String,
    cert_file: String,
    key_file: String,
    insecure_transport: bool,
    insecure_skip_tls_verify: bool,
    username: String,
    password: String,
    cilium_host_aliases: Vec<RawAlias>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawAlias {
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    ips: Vec<String>,
}

impl EtcdConfig {
    /// The configuration of one endpoint without TLS files, as `etcd.address` has it.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Endpoint`].
    pub fn of_address(address: &str) -> Result<Self, ConfigError> {
        Ok(Self {
            endpoints: vec![Endpoint::parse(address, false)?],
            tls: TlsFiles::default(),
            user: None,
            host_aliases: BTreeMap::new(),
        })
    }

    /// Reads a file, and checks that the files it names exist.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]; see [`is_missing_file`](ConfigError::is_missing_file).
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = open_regular(path).and_then(std::io::read_to_string);
        let text = text.map_err(|cause| ConfigError::Read {
            path: path.to_owned(),
            cause,
        })?;
        let config = Self::parse(path, &text)?;
        let TlsFiles { ca, client, .. } = &config.tls;
        let client = client
            .iter()
            .flat_map(|(cert, key)| [(CERT_FILE, cert), (KEY_FILE, key)]);
        for (setting, file) in ca.iter().map(|ca| (CA_FILE, ca)).chain(client) {
            std::fs::metadata(file).map_err(|cause| ConfigError::ReadNamed {
                setting,
                path: file.clone(),
                cause,
            })?;
        }
        Ok(config)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let raw: RawConfig = serde_norway::from_str(text).map_err(|cause| ConfigError::Parse {
            path: path.to_owned(),
            cause,
        })?;
        if raw.endpoints.is_empty() {
            return Err(ConfigError::NoEndpoints {
                path: path.to_owned(),
            });
        }
        let ca = [raw.trusted_ca_file, raw.ca_file]
            .into_iter()
            .find(|file| !file.is_empty())
            .map(PathBuf::from);
        let client = match (raw.cert_file.is_empty(), raw.key_file.is_empty()) {
            (true, true) => None,
            (false, false) => Some((raw.cert_file.into(), raw.key_file.into())),
            _ => {
                return Err(ConfigError::Certificate {
                    path: path.to_owned(),
                });
            }
        };
        let has_tls = ca.is_some() || client.is_some();
        let endpoints = raw
            .endpoints
            .iter()
            .map(|endpoint| {
                let in_file = |cause| ConfigError::EndpointOfFile {
                    path: path.to_owned(),
                    cause: Box::new(cause),
                };
                let mut endpoint = Endpoint::parse(endpoint, has_tls).map_err(in_file)?;
                endpoint.is_tls &= !raw.insecure_transport;
                Ok(endpoint)
            })
            .collect::<Result<_, ConfigError>>()?;
        Ok(Self {
            endpoints,
            tls: TlsFiles {
                ca,
                client,
                skip_verify: raw.insecure_skip_tls_verify,
            },
            user: (!raw.username.is_empty()).then_some((raw.username, raw.password)),
            host_aliases: aliases(path, raw.cilium_host_aliases)?,
        })
    }
}

fn aliases(path: &Path, raw: Vec<RawAlias>) -> Result<BTreeMap<String, Vec<IpAddr>>, ConfigError> {
    let fault = |reason: String| ConfigError::HostAlias {
        path: path.to_owned(),
        reason,
    };
    let mut aliases = BTreeMap::new();
    for (at, alias) in raw.into_iter().enumerate() {
        if alias.hostname.is_empty() {
            return Err(fault(format!("entry {at} has no hostname")));
        }
        if alias.ips.is_empty() {
            return Err(fault(format!("`{}` has no ips", alias.hostname)));
        }
        let ips = alias
            .ips
            .iter()
            .map(|ip| {
                ip.parse()
                    .map_err(|_| fault(format!("`{}`: `{ip}` is no IP address", alias.hostname)))
            })
            .collect::<Result<Vec<IpAddr>, ConfigError>>()?;
        if aliases.contains_key(&alias.hostname) {
            return Err(fault(format!("`{}` is there twice", alias.hostname)));
        }
        aliases.insert(alias.hostname, ips);
    }
    Ok(aliases)
}

impl Endpoint {
    /// Parses `https://host:port`, `http://host:port` or `host:port`. Without a scheme it speaks TLS if certificates are
    /// configured.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Endpoint`].
    pub fn parse(endpoint: &str, has_tls: bool) -> Result<Self, ConfigError> {
        let fault = |reason| ConfigError::Endpoint {
            endpoint: endpoint.to_owned(),
            reason,
        };
        let (is_tls, rest) = match endpoint.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(fault("its scheme is neither http nor https")),
            None => (has_tls, endpoint),
        };
        let rest = rest.trim_end_matches('/');
        let (host, port) = rest
            .rsplit_once(':')
            .ok_or_else(|| fault("it has no port; the form is https://host:port"))?;
        let port = port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| fault("its port is not from 1 to 65535"))?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let is_address = host.parse::<IpAddr>().is_ok();
        let is_name = !host.is_empty()
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if !is_address && !is_name {
            return Err(fault("its host is neither a name nor an IP address"));
        }
        Ok(Self {
            address: endpoint.to_owned(),
            host: host.to_owned(),
            port,
            is_tls,
        })
    }

    /// `host:port`, with an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EtcdConfig, String> {
        EtcdConfig::parse(Path::new("/etc/etcd.yaml"), text).map_err(|error| hive::error_chain(&error))
    }

    #[test]
    fn reads_what_the_chart_writes() {
        let config = parse(
            "endpoints:\n- https://birch.mesh.cilium.io:32379\n\
             trusted-ca-file: /ca.crt\ncert-file: /tls.crt\nkey-file: /tls.key\n\
             dial-timeout: 0\nauto-sync-interval: 0\n\
             cilium-host-aliases:\n- hostname: birch.mesh.cilium.io\n  ips: [192.0.2.10, \"2001:db8::10\"]\n",
        )
        .expect("it is valid");

        assert_eq!(
            config.endpoints,
            [Endpoint {
                address: "https://birch.mesh.cilium.io:32379".to_owned(),
                host: "birch.mesh.cilium.io".to_owned(),
                port: 32379,
                is_tls: true,
            }]
        );
        assert_eq!(config.tls.ca, Some("/ca.crt".into()));
        assert_eq!(config.tls.client, Some(("/tls.crt".into(), "/tls.key".into())));
        assert_eq!(config.host_aliases["birch.mesh.cilium.io"].len(), 2);
        assert_eq!(config.user, None);
    }

    #[test]
    fn the_password_is_not_printed() {
        let config =
            parse("endpoints: [http://a:1]\nusername: root\npassword: hunter2\n").expect("it is valid");

        assert_eq!(config.user, Some(("root".to_owned(), "hunter2".to_owned())));
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn endpoints_have_several_forms() {
        let endpoint = |text, has_tls| Endpoint::parse(text, has_tls).map_err(|error| error.to_string());

        assert!(endpoint("a.b:2379", true).expect("it is valid").is_tls);
        assert!(!endpoint("a.b:2379", false).expect("it is valid").is_tls);
        let v6 = endpoint("http://[2001:db8::1]:2379/", false).expect("it is valid");
        assert_eq!(
            (v6.host.as_str(), v6.authority()),
            ("2001:db8::1", "[2001:db8::1]:2379".to_owned())
        );
        for (text, reason) in [
            ("unix:///run/etcd", "its scheme is neither http nor https"),
            ("https://a", "it has no port; the form is https://host:port"),
            ("https://a:http", "its port is not from 1 to 65535"),
            ("https://a:0", "its port is not from 1 to 65535"),
            ("https://:2379", "its host is neither a name nor an IP address"),
            ("https://a b:2379", "its host is neither a name nor an IP address"),
        ] {
            assert_eq!(endpoint(text, false), Err(format!("endpoint `{text}`: {reason}")));
        }
    }

    #[test]
    fn faults_are_named() {
        for (text, expected) in [
            ("{}", "`/etc/etcd.yaml` names no endpoints"),
            (
                "endpoints: [https://a]",
                "`/etc/etcd.yaml`: endpoint `https://a`: it has no port; the form is https://host:port",
            ),
            (
                "endpoints: [http://a:1]\ncert-file: /a",
                "`/etc/etcd.yaml` has only one of cert-file and key-file",
            ),
            (
                "endpoints: [http://a:1]\ncilium-host-aliases: [{ips: [192.0.2.1]}]",
                "`/etc/etcd.yaml`: cilium-host-aliases: entry 0 has no hostname",
            ),
            (
                "endpoints: [http://a:1]\ncilium-host-aliases: [{hostname: a}]",
                "`/etc/etcd.yaml`: cilium-host-aliases: `a` has no ips",
            ),
            (
                "endpoints: [http://a:1]\ncilium-host-aliases: [{hostname: a, ips: [b]}]",
                "`/etc/etcd.yaml`: cilium-host-aliases: `a`: `b` is no IP address",
            ),
            (
                "endpoints: [http://a:1]\ncilium-host-aliases: [{hostname: a, ips: [192.0.2.1]}, {hostname: a, ips: [192.0.2.1]}]",
                "`/etc/etcd.yaml`: cilium-host-aliases: `a` is there twice",
            ),
        ] {
            assert_eq!(parse(text).expect_err("it is invalid"), expected);
        }
        let syntax = parse("endpoints: [x").expect_err("it is no YAML");
        assert!(syntax.starts_with("cannot parse `/etc/etcd.yaml`: "), "{syntax}");
    }

    #[test]
    fn files_that_are_missing_may_come_later() {
        let folder = tempfile::tempdir().expect("there is a folder");
        let path = folder.path().join("etcd.yaml");
        let missing = EtcdConfig::load(&path).expect_err("there is no file");
        assert!(missing.is_missing_file());
        let ca = folder.path().join("ca.crt");
        std::fs::write(
            &path,
            format!("endpoints: [https://a:1]\ntrusted-ca-file: {}\n", ca.display()),
        )
        .expect("it is written");

        let missing = EtcdConfig::load(&path).expect_err("there is no certificate");
        assert!(missing.is_missing_file());
        assert_eq!(
            missing.to_string(),
            format!("cannot read trusted-ca-file `{}`", ca.display())
        );

        std::fs::write(&ca, "").expect("it is written");
        EtcdConfig::load(&path).expect("all files are there");
    }
}
