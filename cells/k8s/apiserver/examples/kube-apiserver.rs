// SPDX-License-Identifier: Apache-2.0

//! Stands in for `kube-apiserver` in tests: refuses the flags that the real one refuses, waits for etcd, and serves
//! the embedded API server over TLS. Its state is in memory.
//!
//! As the real one, it needs a public key (or one in PKCS#1 or SEC 1) in `--service-account-key-file`, ends at flags
//! that it does not know, and does not allow anonymous requests together with `AlwaysAllow`. It knows the flags that
//! the tests use.
//!
//! The flags are written to the file `flags` in the folder of `--cert-dir`, one a line.

use std::{
    collections::HashMap,
    error::Error,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use skep_k8s_apiserver::{HttpOptions, HttpServer, OpenApiSchemas};
use skep_k8s_memory::{ApiServer, Mode, Registry, Rows, Settings, Tracker};
use skep_listen::tls::Tls;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

type AnyError = Box<dyn Error + Send + Sync>;

/// Flags that are known here. The real server has more: one that a test comes to use is added.
const FLAGS: [&str; 18] = [
    "advertise-address",
    "allow-privileged",
    "anonymous-auth",
    "authorization-mode",
    "bind-address",
    "cert-dir",
    "client-ca-file",
    "disable-admission-plugins",
    "etcd-servers",
    "feature-gates",
    "secure-port",
    "service-account-issuer",
    "service-account-key-file",
    "service-account-signing-key-file",
    "service-cluster-ip-range",
    "tls-cert-file",
    "tls-private-key-file",
    "token-auth-file",
];
/// Without these the real server does not start either.
const NEEDED: [&str; 4] = [
    "etcd-servers",
    "service-account-issuer",
    "service-account-key-file",
    "service-account-signing-key-file",
];
/// Object identifiers of public keys, in DER: rsaEncryption and id-ecPublicKey.
const KEYS: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01],
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01],
];

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags = Flags::parse(&arguments)?;
    for name in NEEDED {
        flags.get(name)?;
    }
    check_keys(&flags)?;
    let token = token(&flags)?;
    std::fs::create_dir_all(flags.get("cert-dir")?)?;
    std::fs::write(format!("{}/flags", flags.get("cert-dir")?), arguments.join("\n"))?;
    eprintln!("waiting for {}", flags.get("etcd-servers")?);
    let etcd = flags.get("etcd-servers")?.trim_start_matches("http://");
    while TcpStream::connect(etcd).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    serve(&flags, token).await
}

struct Flags<'a>(HashMap<&'a str, &'a str>);

impl<'a> Flags<'a> {
    fn parse(arguments: &'a [String]) -> Result<Self, AnyError> {
        let mut flags = HashMap::new();
        for argument in arguments {
            let Some(flag) = argument.strip_prefix("--") else {
                return Err(format!("unknown command {argument:?} for \"kube-apiserver\"").into());
            };
            let (name, value) = flag.split_once('=').unwrap_or((flag, "true"));
            if !FLAGS.contains(&name) {
                return Err(format!("unknown flag: --{name}").into());
            }
            flags.insert(name, value);
        }
        Ok(Self(flags))
    }

    fn get(&self, name: &str) -> Result<&'a str, AnyError> {
        let found = self.0.get(name).copied();
        found.ok_or_else(|| format!("--{name} must be specified").into())
    }

    /// A flag that need not be given.
    fn or(&self, name: &str, default: &'a str) -> &'a str {
        self.0.get(name).copied().unwrap_or(default)
    }
}

/// The blocks of a PEM file: label and content.
fn blocks(path: &Path) -> Result<Vec<(String, Vec<u8>)>, AnyError> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut blocks = Vec::new();
    for part in text.split("-----BEGIN ").skip(1) {
        let Some((label, rest)) = part.split_once("-----") else {
            continue;
        };
        let body: String = rest
            .split("-----END")
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        blocks.push((label.to_owned(), BASE64.decode(body)?));
    }
    Ok(blocks)
}

/// The keys that verify the tokens of service accounts, and the one that signs them.
fn check_keys(flags: &Flags<'_>) -> Result<(), AnyError> {
    let verify = blocks(Path::new(flags.get("service-account-key-file")?))?;
    let is_public = |(label, content): &(String, Vec<u8>)| match label.as_str() {
        "PUBLIC KEY" | "CERTIFICATE" => KEYS
            .iter()
            .any(|key| content.windows(key.len()).any(|bytes| bytes == *key)),
        "RSA PUBLIC KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY" => true,
        _ => false,
    };
    if !verify.iter().any(is_public) {
        return Err("data does not contain any valid RSA or ECDSA public keys".into());
    }
    let sign = blocks(Path::new(flags.get("service-account-signing-key-file")?))?;
    if !sign.iter().any(|(label, _)| label.ends_with("PRIVATE KEY")) {
        return Err(
            "failed to parse service-account-issuer-key-file: data does not contain a valid RSA or ECDSA private key"
                .into(),
        );
    }
    Ok(())
}

/// The token that clients must show; empty where anonymous requests are let in.
fn token(flags: &Flags<'_>) -> Result<String, AnyError> {
    if let Ok(path) = flags.get("token-auth-file") {
        let text = std::fs::read_to_string(path)?;
        let first = text.lines().next().unwrap_or_default();
        if first.split(',').count() < 3 {
            return Err(format!(
                "token file {path:?} must have at least 3 columns (token, user name, user uid)"
            )
            .into());
        }
        return Ok(first.split(',').next().unwrap_or_default().to_owned());
    }
    let mut anonymous = flags.or("anonymous-auth", "true") == "true";
    if anonymous
        && flags
            .or("authorization-mode", "AlwaysAllow")
            .split(',')
            .any(|mode| mode == "AlwaysAllow")
    {
        eprintln!(
            "W AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting AnonymousAuth to false. \
             You should use a different authorizer"
        );
        anonymous = false;
    }
    if anonymous {
        return Ok(String::new());
    }
    // There is no client that has it.
    let unguessable: [u8; 32] = rand::random();
    Ok(BASE64.encode(unguessable))
}

/// Serves until the process ends.
async fn serve(flags: &Flags<'_>, token: String) -> Result<(), AnyError> {
    let networks = flags
        .or("service-cluster-ip-range", "10.0.0.0/24")
        .split(',')
        .map(str::parse);
    let settings = Settings {
        service_networks: networks.collect::<Result<_, _>>()?,
        admits_service_accounts: !flags
            .or("disable-admission-plugins", "")
            .split(',')
            .any(|name| name == "ServiceAccount"),
        schemas: Some(Arc::new(OpenApiSchemas)),
        ..Settings::default()
    };
    let (certificate, key) = certificate(flags)?;
    let options = HttpOptions {
        token,
        tls: Some(Tls::from_files(&certificate, &key)?),
        ..HttpOptions::default()
    };
    let tracker = Tracker::new(Rows::new(&statedb::Db::new())?, 10_000, false);
    let api = ApiServer::new(tracker, Registry::builtin(), Mode::Real(settings));
    let ip = flags.or("bind-address", "0.0.0.0").parse()?;
    let address = SocketAddr::new(ip, flags.or("secure-port", "6443").parse()?);
    let server = HttpServer::bind(address, api, options)?;
    eprintln!("serving on {address}");
    server.serve(CancellationToken::new()).await;
    Ok(())
}

/// Certificate and key that the flags name; as the real server, a pair of its own in the folder of `--cert-dir` where
/// they name none.
fn certificate(flags: &Flags<'_>) -> Result<(PathBuf, PathBuf), AnyError> {
    if let Ok(file) = flags.get("tls-cert-file") {
        return Ok((file.into(), flags.get("tls-private-key-file")?.into()));
    }
    let folder = Path::new(flags.get("cert-dir")?);
    let files = (folder.join("apiserver.crt"), folder.join("apiserver.key"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    std::fs::write(&files.0, made.cert.pem())?;
    std::fs::write(&files.1, made.signing_key.serialize_pem())?;
    Ok(files)
}
