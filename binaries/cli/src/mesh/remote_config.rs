// SPDX-License-Identifier: Apache-2.0

//! The configuration of a remote cluster: the file of its etcd client, and the certificates beside it.

use std::{fs, net::IpAddr, path::Path};

use clap::Args;
use skep_clustermesh_types::ClusterName;

/// Certificates that all remote clusters share, beside the configurations.
pub(crate) const COMMON: &str = "common-etcd-client";
/// Certificates for the etcd of the own cluster, beside the configurations.
const LOCAL: &str = "local-etcd-client";

/// How a remote cluster is reached.
#[derive(Debug, Args)]
pub(crate) struct RemoteOptions {
    /// Name of the remote cluster.
    #[arg(value_parser = cluster_name)]
    pub(crate) name: ClusterName,
    /// Endpoint of etcd, such as `https://birch.mesh.cilium.io:2379`; may be repeated.
    #[arg(long, required = true, value_delimiter = ',', value_parser = endpoint)]
    endpoint: Vec<Endpoint>,
    /// Address of the endpoints' host, instead of DNS; may be repeated.
    #[arg(long, value_delimiter = ',')]
    ip: Vec<IpAddr>,
    /// CA certificate file of etcd. Default of this, --cert and --key: the files common-etcd-client* beside the
    /// configuration.
    #[arg(long, requires_all = ["cert", "key"])]
    ca: Option<std::path::PathBuf>,
    /// Client certificate file.
    #[arg(long, requires_all = ["ca", "key"])]
    cert: Option<std::path::PathBuf>,
    /// Client key file.
    #[arg(long, requires_all = ["ca", "cert"])]
    key: Option<std::path::PathBuf>,
}

fn cluster_name(text: &str) -> Result<ClusterName, String> {
    text.parse::<ClusterName>().map_err(|error| error.to_string())
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint {
    url: String,
    host: String,
    is_tls: bool,
}

fn endpoint(text: &str) -> Result<Endpoint, &'static str> {
    let (is_tls, rest) = match text.split_once("://") {
        Some(("https", rest)) => (true, rest),
        Some(("http", rest)) => (false, rest),
        _ => return Err("it must begin with https:// or http://"),
    };
    let (host, port) = rest.rsplit_once(':').ok_or("it has no port")?;
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err("its port must be a number from 1 to 65535, and nothing may follow it");
    }
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) if address.parse::<std::net::Ipv6Addr>().is_ok() => address,
        None if is_host_name(host) => host,
        _ => return Err("its host must be a name, an IPv4 address or an IPv6 address in brackets"),
    };
    Ok(Endpoint {
        url: text.to_owned(),
        host: host.to_owned(),
        is_tls,
    })
}

fn is_host_name(host: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !host.is_empty() && host.bytes().all(is_plain)
}

/// Why a configuration cannot be made of the options.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OptionsError {
    /// A file of the options cannot be read.
    #[error("{option}: cannot read `{}`", path.display())]
    Read {
        option: &'static str,
        path: std::path::PathBuf,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
    /// The file is another one, or is in another form.
    #[error("{option}: `{}` has no PEM block of a {expected}", path.display())]
    Pem {
        option: &'static str,
        path: std::path::PathBuf,
        expected: &'static str,
    },
    /// A name that is resolved by `--ip` has to be a name.
    #[error("--ip is given, but the host of `{0}` is an address already")]
    NoName(String),
    /// Certificates are of no use without TLS.
    #[error("--ca, --cert and --key are given, but `{0}` is without TLS")]
    NoTls(String),
}

/// A certificate with its key, and whom to trust; in PEM.
#[derive(Debug)]
struct Certificates {
    ca: String,
    cert: String,
    key: String,
}

/// The configuration of a remote cluster.
#[derive(Debug)]
pub(crate) struct RemoteConfig {
    /// Name of the cluster, and of the file.
    pub(crate) name: ClusterName,
    endpoints: Vec<Endpoint>,
    ips: Vec<IpAddr>,
    certificates: Option<Certificates>,
}

impl RemoteConfig {
    /// Reads the files that the options name, and checks what belongs together.
    pub(crate) fn read(options: RemoteOptions) -> Result<Self, OptionsError> {
        let certificates = match (&options.ca, &options.cert, &options.key) {
            (Some(ca), Some(cert), Some(key)) => Some(Certificates {
                ca: pem("--ca", ca, "CERTIFICATE")?,
                cert: pem("--cert", cert, "CERTIFICATE")?,
                key: pem("--key", key, "PRIVATE KEY")?,
            }),
            _ => None,
        };
        if certificates.is_some()
            && let Some(plain) = options.endpoint.iter().find(|endpoint| !endpoint.is_tls)
        {
            return Err(OptionsError::NoTls(plain.url.clone()));
        }
        if !options.ip.is_empty()
            && let Some(address) = options
                .endpoint
                .iter()
                .find(|endpoint| endpoint.host.parse::<IpAddr>().is_ok())
        {
            return Err(OptionsError::NoName(address.url.clone()));
        }
        Ok(Self {
            name: options.name,
            endpoints: options.endpoint,
            ips: options.ip,
            certificates,
        })
    }

    /// The copy that kvstoremesh keeps of this cluster in the own etcd, as agents are to read it.
    pub(crate) fn cached(&self, namespace: &str) -> RemoteFile {
        let host = format!("clustermesh-apiserver.{namespace}.svc");
        RemoteFile {
            urls: vec![format!("https://{host}:2379")],
            tls: Some(LOCAL.to_owned()),
            aliases: Vec::new(),
        }
    }

    /// Whether it uses certificates that are not part of it.
    pub(crate) fn uses_common_certificates(&self) -> bool {
        self.certificates.is_none() && self.endpoints.iter().any(|endpoint| endpoint.is_tls)
    }

    /// The file of the etcd client.
    pub(crate) fn file(&self) -> RemoteFile {
        let tls = match self.certificates {
            Some(_) => Some(self.prefix()),
            None if self.uses_common_certificates() => Some(COMMON.to_owned()),
            None => None,
        };
        let mut hosts: Vec<String> = Vec::new();
        for endpoint in self.endpoints.iter().filter(|_| !self.ips.is_empty()) {
            if !hosts.contains(&endpoint.host) {
                hosts.push(endpoint.host.clone());
            }
        }
        RemoteFile {
            urls: self
                .endpoints
                .iter()
                .map(|endpoint| endpoint.url.clone())
                .collect(),
            tls,
            aliases: hosts.into_iter().map(|host| (host, self.ips.clone())).collect(),
        }
    }

    /// Names and contents of the files of certificates, which the configuration names.
    pub(crate) fn certificates(&self) -> Vec<(String, &str)> {
        let Some(certificates) = &self.certificates else {
            return Vec::new();
        };
        let prefix = self.prefix();
        vec![
            (format!("{prefix}-ca.crt"), &*certificates.ca),
            (format!("{prefix}.crt"), &*certificates.cert),
            (format!("{prefix}.key"), &*certificates.key),
        ]
    }

    fn prefix(&self) -> String {
        format!("{}.etcd-client", self.name)
    }
}

fn pem(option: &'static str, path: &Path, expected: &'static str) -> Result<String, OptionsError> {
    let text = fs::read_to_string(path).map_err(|cause| OptionsError::Read {
        option,
        path: path.to_owned(),
        cause,
    })?;
    // Private keys have names such as `EC PRIVATE KEY`, and those of certificates are never followed by another word.
    let has_block = text.lines().any(|line| {
        let label = line.trim_end().strip_prefix("-----BEGIN ");
        label.is_some_and(|label| {
            label
                .strip_suffix("-----")
                .is_some_and(|label| label.ends_with(expected))
        })
    });
    if has_block {
        return Ok(text);
    }
    Err(OptionsError::Pem {
        option,
        path: path.to_owned(),
        expected,
    })
}

/// A file of an etcd client, in the words of Cilium's chart.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    urls: Vec<String>,
    /// What the names of the certificate files begin with.
    tls: Option<String>,
    aliases: Vec<(String, Vec<IpAddr>)>,
}

impl RemoteFile {
    /// The text, for a client that has certificates in `directory`.
    pub(crate) fn text(&self, directory: &Path) -> String {
        let mut text = "endpoints:\n".to_owned();
        for url in &self.urls {
            text.push_str(&format!("- {url}\n"));
        }
        if let Some(prefix) = &self.tls {
            let files = [
                ("trusted-ca-file", "-ca.crt"),
                ("key-file", ".key"),
                ("cert-file", ".crt"),
            ];
            for (field, suffix) in files {
                let path = directory.join(format!("{prefix}{suffix}"));
                text.push_str(&format!("{field}: {}\n", quoted(&path.to_string_lossy())));
            }
        }
        if !self.aliases.is_empty() {
            text.push_str("cilium-host-aliases:\n");
        }
        for (host, ips) in &self.aliases {
            text.push_str(&format!("- hostname: {host}\n  ips:\n"));
            for ip in ips {
                text.push_str(&format!("  - {}\n", quoted(&ip.to_string())));
            }
        }
        text
    }
}

/// A scalar of YAML: as it is, or as a string of JSON, which is one of YAML as well.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    if text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_scheme_host_and_port() {
        let host = |text| endpoint(text).map(|endpoint| endpoint.host);

        assert_eq!(
            host("https://birch.mesh.cilium.io:2379").as_deref(),
            Ok("birch.mesh.cilium.io")
        );
        assert_eq!(host("http://[2001:db8::1]:2379").as_deref(), Ok("2001:db8::1"));
        for wrong in [
            "birch:2379",
            "unix://birch:1",
            "https://birch",
            "https://birch:0",
            "https://birch:2379/",
            "https://:2379",
            "https://a b:2379",
            "https://2001:db8::1:2379",
            "https://[birch]:2379",
        ] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
    }
}
