// SPDX-License-Identifier: Apache-2.0

//! Whom the client trusts, and how it logs in.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
pub(super) use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::RootCertStore;
pub(super) use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;

use super::*;

/// An authority that signs certificates.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            certificate: params.self_signed(&key).unwrap(),
            issuer: Issuer::new(params, key),
        }
    }

    fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// A certificate for 127.0.0.1 that servers and clients can use, with its key.
    fn sign(&self) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params
            .subject_alt_names
            .push(SanType::IpAddress("127.0.0.1".parse().unwrap()));
        params.distinguished_name.push(DnType::CommonName, "agent");
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// A server with a certificate of this authority; it asks clients for one of `clients`.
    fn server(&self, clients: Option<&Authority>) -> Arc<ServerConfig> {
        let (certificate, key) = self.sign();
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.certificate.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Arc::new(
            builder
                .with_single_cert(vec![certificate.der().clone()], key)
                .unwrap(),
        )
    }
}

/// Writes a kubeconfig; `user` is the flow form of what logs in.
fn kubeconfig(folder: &Path, server: &str, authority: &str, user: &str) -> PathBuf {
    let path = folder.join("config");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: \"{server}\", certificate-authority-data: {}}}}}]\n\
         users: [{{name: u, user: {user}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
        BASE64_STANDARD.encode(authority)
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn client(target: Target, settings: Settings) -> Api<Service> {
    let client = RemoteClient::new(target, settings).unwrap();
    Api::<Service>::namespaced(Arc::new(client), "shop")
}

fn with_kubeconfig(path: &Path) -> Api<Service> {
    client(
        Target::Kubeconfig(path.to_owned(), Vec::new()),
        Settings::default(),
    )
}

fn authorizations(server: &Server) -> Vec<String> {
    let script = server.script.lock();
    script
        .seen
        .iter()
        .map(|seen| seen.authorization.clone())
        .collect()
}

const WEB: &str = r#"{"metadata":{"name":"web"}}"#;
const UNAUTHORIZED: &str = r#"{"kind":"Status","code":401,"reason":"Unauthorized","message":"Unauthorized"}"#;

#[tokio::test]
async fn trusts_only_the_authority_of_the_kubeconfig() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = Server::start_with(Some(authority.server(None))).await;
    let folder = tempfile::tempdir().unwrap();

    let path = kubeconfig(folder.path(), &server.url, &stranger.pem(), "{token: t}");
    let error = with_kubeconfig(&path).get("web").await.unwrap_err();
    let text = hive::error_chain(&error);
    assert!(
        text.contains(&server.url) && text.contains("invalid peer certificate"),
        "{text}"
    );
    assert!(
        authorizations(&server).is_empty(),
        "a stranger must not see the token"
    );

    server.json(200, WEB);
    let path = kubeconfig(folder.path(), &server.url, &authority.pem(), "{token: t}");
    with_kubeconfig(&path).get("web").await.unwrap();
    assert_eq!(authorizations(&server), ["Bearer t"]);
}

#[tokio::test]
async fn shows_the_certificate_of_the_kubeconfig() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = Server::start_with(Some(authority.server(Some(&clients)))).await;
    let folder = tempfile::tempdir().unwrap();

    let path = kubeconfig(folder.path(), &server.url, &authority.pem(), "{}");
    with_kubeconfig(&path).get("web").await.unwrap_err();
    assert!(server.lines().is_empty());

    let (certificate, key) = clients.sign();
    let user = format!(
        "{{client-certificate-data: {}, client-key-data: {}}}",
        BASE64_STANDARD.encode(certificate.pem()),
        BASE64_STANDARD.encode(key.serialize_pem())
    );
    server.json(200, WEB);
    let path = kubeconfig(folder.path(), &server.url, &authority.pem(), &user);
    with_kubeconfig(&path).get("web").await.unwrap();
    assert_eq!(server.lines().len(), 1);
}

#[tokio::test]
async fn certificates_that_were_replaced_are_used_after_a_refusal() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = Server::start_with(Some(authority.server(Some(&clients)))).await;
    let folder = tempfile::tempdir().unwrap();
    let put = |(certificate, key): (rcgen::Certificate, KeyPair)| {
        std::fs::write(folder.path().join("agent.crt"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("agent.key"), key.serialize_pem()).unwrap();
    };
    put(Authority::new().sign());
    // Relative names are below the kubeconfig's folder.
    let user = "{client-certificate: agent.crt, client-key: agent.key}";
    let path = kubeconfig(folder.path(), &server.url, &authority.pem(), user);
    let remote = RemoteClient::new(Target::Kubeconfig(path, Vec::new()), Settings::default()).unwrap();
    let services = Api::<Service>::namespaced(Arc::new(remote.clone()), "shop");
    services.get("web").await.unwrap_err();

    put(clients.sign());
    server.json(200, WEB);
    // The handshake failed: the heartbeat drops the connection, and files are read again.
    let _ = remote.heartbeat(true).await;

    services.get("web").await.unwrap();
}

#[tokio::test]
async fn pods_log_in_with_their_service_account_and_its_newest_token() {
    let authority = Authority::new();
    let server = Server::start_with(Some(authority.server(None))).await;
    let account = tempfile::tempdir().unwrap();
    let settings = Settings {
        service_account: account.path().to_owned(),
        ..Settings::default()
    };
    let services = client(Target::Urls(vec![server.url.clone()]), settings);

    let missing = services.get("web").await.unwrap_err();
    let text = hive::error_chain(&missing);
    assert!(
        text.contains(&format!("service account in {}", account.path().display())) && text.contains("ca.crt"),
        "{text}"
    );

    std::fs::write(account.path().join("ca.crt"), authority.pem()).unwrap();
    std::fs::write(account.path().join("token"), "first\n").unwrap();
    server.json(200, WEB);
    services.get("web").await.unwrap();
    std::fs::write(account.path().join("token"), "second\n").unwrap();
    server.json(401, UNAUTHORIZED);
    server.json(200, WEB);
    services.get("web").await.unwrap_err();
    services.get("web").await.unwrap();

    assert_eq!(
        authorizations(&server),
        ["Bearer first", "Bearer first", "Bearer second"]
    );
}

#[tokio::test]
async fn falls_over_to_the_next_server_of_the_list_with_the_same_credentials() {
    let authority = Authority::new();
    let second = Server::start_with(Some(authority.server(None))).await;
    // Bound, so that no other process gets it, and not listening: connections fail.
    let silent = tokio::net::TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = silent.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = kubeconfig(folder.path(), "https://192.0.2.1", &authority.pem(), "{token: t}");
    let urls = vec![format!("https://{gone}"), second.url.clone()];
    let remote = RemoteClient::new(Target::Kubeconfig(path, urls), Settings::default()).unwrap();

    let version = remote
        .wait_connected(Duration::from_secs(30), Duration::from_millis(10))
        .await
        .unwrap();

    assert_eq!(version.minor, 33);
    assert_eq!(remote.server().unwrap(), second.url);
    second.json(200, WEB);
    Api::<Service>::namespaced(Arc::new(remote), "shop")
        .get("web")
        .await
        .unwrap();
    assert_eq!(authorizations(&second), ["Bearer t"]);
}
