// SPDX-License-Identifier: Apache-2.0

//! Where the API server is and how to log in.

use std::path::{Path, PathBuf};

use http::Uri;
use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo, NamedCluster,
    NamedContext,
};

/// Variables of a pod's environment that say where the API server is.
const SERVICE: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];

/// Why there is no usable address.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// An address in `k8s-api-server-urls` is invalid.
    #[error("`{url}` in k8s-api-server-urls is not the address of a server, such as https://192.0.2.1:6443")]
    Url {
        /// The text.
        url: String,
    },
    /// The kubeconfig cannot be read or used.
    #[error("kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        cause: Box<KubeconfigError>,
    },
    /// The file of a token cannot be read.
    #[error("token {path}", path = path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        cause: std::io::Error,
    },
    /// The service account of the pod cannot be read.
    #[error("service account in {folder}", folder = folder.display())]
    ServiceAccount {
        /// Where it should be.
        folder: PathBuf,
        /// Cause.
        #[source]
        cause: Box<KubeconfigError>,
    },
}

/// How to find a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The cluster of a kubeconfig file, optionally at other addresses.
    Kubeconfig(PathBuf, Vec<String>),
    /// The cluster at explicit addresses; those with `https` log in with the pod's service account.
    Urls(Vec<String>),
    /// The cluster of the pod's environment, with its service account.
    InCluster,
    /// No cluster.
    Nowhere,
}

impl Target {
    /// Chooses: kubeconfig, then explicit addresses, then the pod's environment.
    pub fn choose(kubeconfig: Option<&Path>, urls: &[String]) -> Self {
        Self::choose_from(kubeconfig, urls, service_url().is_some())
    }

    fn choose_from(kubeconfig: Option<&Path>, urls: &[String], inside: bool) -> Self {
        match (kubeconfig, urls.is_empty()) {
            (Some(path), _) => Self::Kubeconfig(path.to_owned(), urls.to_vec()),
            (None, false) => Self::Urls(urls.to_vec()),
            (None, true) if inside => Self::InCluster,
            (None, true) => Self::Nowhere,
        }
    }

    /// Number of addresses.
    pub fn servers(&self) -> usize {
        match self {
            Self::Kubeconfig(_, urls) => urls.len().max(1),
            Self::Urls(urls) => urls.len(),
            Self::InCluster => 1,
            Self::Nowhere => 0,
        }
    }

    /// The explicit address with this index.
    pub(super) fn url(&self, index: usize) -> Option<&str> {
        match self {
            Self::Kubeconfig(_, urls) | Self::Urls(urls) => urls.get(index).map(String::as_str),
            Self::InCluster | Self::Nowhere => None,
        }
    }

    /// Whether all addresses are well-formed. Reads no files.
    pub(super) fn check(&self) -> Result<(), TargetError> {
        match self {
            Self::Kubeconfig(_, urls) | Self::Urls(urls) => {
                urls.iter().try_for_each(|url| parse_url(url).map(drop))
            }
            Self::InCluster | Self::Nowhere => Ok(()),
        }
    }

    /// Reads certificates and tokens; those of the pod from the folder `account`. `None` if there is no cluster.
    pub(super) async fn load(
        &self,
        index: usize,
        account: &Path,
    ) -> Result<Option<kube::Config>, TargetError> {
        let explicit = self.url(index).map(parse_url).transpose()?;
        let mut config = match self {
            Self::Nowhere => return Ok(None),
            Self::InCluster => match service_url() {
                Some(url) => from_account(account, &url).await?,
                None => return Ok(None),
            },
            Self::Kubeconfig(path, _) => from_kubeconfig(path).await?,
            Self::Urls(_) => match &explicit {
                Some(url) if url.scheme_str() == Some("https") => {
                    from_account(account, &url.to_string()).await?
                }
                Some(url) => kube::Config::new(url.clone()),
                None => return Ok(None),
            },
        };
        if let Some(url) = explicit {
            config.cluster_url = url;
        }
        if config.cluster_url.scheme_str() == Some("http") {
            // Otherwise those of the system are read and kept, and it is an error if there are none.
            config.root_cert.get_or_insert_default();
        }
        Ok(Some(config))
    }
}

fn parse_url(url: &str) -> Result<Uri, TargetError> {
    let fail = || TargetError::Url { url: url.to_owned() };
    // A bare address means plain HTTP, as for Kubernetes' own tools.
    let full = if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    };
    let uri: Uri = full.parse().map_err(|_| fail())?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    if known && uri.host().is_some_and(|host| !host.is_empty()) {
        Ok(uri)
    } else {
        Err(fail())
    }
}

/// The API server that the pod's environment names.
fn service_url() -> Option<String> {
    let [host, port] = SERVICE.map(|name| std::env::var(name).unwrap_or_default());
    if host.is_empty() || port.is_empty() {
        return None;
    }
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    Some(format!("https://{host}:{port}"))
}

/// Takes certificate authority and token of the service account in `folder`.
async fn from_account(folder: &Path, url: &str) -> Result<kube::Config, TargetError> {
    let fail = |cause| TargetError::ServiceAccount {
        folder: folder.to_owned(),
        cause: Box::new(cause),
    };
    let name = "pod".to_owned();
    let file = |name: &str| Some(folder.join(name).display().to_string());
    let config = Kubeconfig {
        clusters: vec![NamedCluster {
            name: name.clone(),
            cluster: Some(Cluster {
                server: Some(url.to_owned()),
                certificate_authority: file("ca.crt"),
                ..Cluster::default()
            }),
        }],
        auth_infos: vec![NamedAuthInfo {
            name: name.clone(),
            auth_info: Some(AuthInfo {
                token_file: file("token"),
                ..AuthInfo::default()
            }),
        }],
        contexts: vec![NamedContext {
            name: name.clone(),
            context: Some(Context {
                cluster: name.clone(),
                user: Some(name.clone()),
                ..Context::default()
            }),
        }],
        current_context: Some(name),
        ..Kubeconfig::default()
    };
    kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .map_err(fail)
}

async fn from_kubeconfig(path: &Path) -> Result<kube::Config, TargetError> {
    let fail = |cause| TargetError::Kubeconfig {
        path: path.to_owned(),
        cause: Box::new(cause),
    };
    let file = Kubeconfig::read_from(path).map_err(fail)?;
    kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_tls_no_certificates_of_the_system_are_read() {
        let target = Target::Urls(vec!["192.0.2.1:8080".into()]);

        let config = target.load(0, Path::new("/nowhere")).await.unwrap().unwrap();

        assert_eq!(config.root_cert, Some(vec![]));
    }

    #[test]
    fn kubeconfig_wins_over_addresses_and_these_over_the_pod() {
        let urls = ["http://192.0.2.1:8080".to_owned()];
        let path = Path::new("/etc/kubeconfig");

        assert_eq!(
            Target::choose_from(Some(path), &urls, true),
            Target::Kubeconfig(path.to_owned(), urls.to_vec())
        );
        assert_eq!(
            Target::choose_from(None, &urls, true),
            Target::Urls(urls.to_vec())
        );
        assert_eq!(Target::choose_from(None, &[], true), Target::InCluster);
        assert_eq!(Target::choose_from(None, &[], false), Target::Nowhere);
    }

    #[test]
    fn malformed_address_is_named() {
        let target = Target::Urls(vec!["https://192.0.2.1:6443".into(), "ftp://x".into()]);

        assert_eq!(
            target.check().unwrap_err().to_string(),
            "`ftp://x` in k8s-api-server-urls is not the address of a server, such as https://192.0.2.1:6443"
        );
    }
}
