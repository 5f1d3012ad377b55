// SPDX-License-Identifier: Apache-2.0

//! What `troubleshoot` says of a real etcd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use skep_kvstore_etcd::testing::{Authority, EtcdServer, ServerTls};
use skep_kvstore_etcd::troubleshoot::{Findings, troubleshoot};
use skep_kvstore_etcd::{ConfigSource, EtcdConfig};

const LIMIT: Duration = Duration::from_secs(5);

async fn check(folder: &Path, text: &str) -> (PathBuf, Findings) {
    let path = folder.join("alder");
    std::fs::write(&path, text).expect("it is written");
    let findings = troubleshoot(&ConfigSource::File(path.clone()), LIMIT).await;
    (path, findings)
}

#[tokio::test]
async fn a_store_that_can_be_reached_is_described() {
    let server = EtcdServer::start().await;
    let folder = tempfile::tempdir().expect("there is a folder");
    let port = server.port();

    let (path, findings) = check(
        folder.path(),
        &format!(
            "endpoints: [\"http://alder.mesh.cilium.io:{port}\"]\n\
             cilium-host-aliases: [{{hostname: alder.mesh.cilium.io, ips: [127.0.0.1]}}]\n"
        ),
    )
    .await;

    let text = &findings.text;
    assert!(findings.is_healthy, "{text}");
    let expected = format!(
        "📄 Configuration path: {}\n\n🔌 Endpoints:\n   - http://alder.mesh.cilium.io:{port}\n     ✅ Hostname resolved to: \
         127.0.0.1\n     ✅ TCP connection successfully established to 127.0.0.1:{port}\n     ℹ️  Etcd server version: 3.",
        path.display()
    );
    assert!(text.starts_with(&expected), "{text}");
    assert!(
        text.contains(
            "\n\n⚙️ Etcd client:\n   ✅ Etcd connection successfully established\n   ℹ️  Etcd cluster ID: "
        ),
        "{text}"
    );
}

#[tokio::test]
async fn certificates_are_printed_and_those_of_another_authority_are_failures() {
    let folder = tempfile::tempdir().expect("there is a folder");
    let authority = Authority::new("mesh");
    let ca = authority.write(folder.path());
    let (cert, key) = authority.sign(folder.path(), "server");
    let server = EtcdServer::start_with(Some(ServerTls {
        cert,
        key,
        client_ca: ca.clone(),
    }))
    .await;
    let (cert, key) = authority.sign(folder.path(), "client");
    let port = server.port();
    let text = |ca: &Path| {
        format!(
            "endpoints: [\"https://alder.mesh.cilium.io:{port}\"]\n\
             cilium-host-aliases: [{{hostname: alder.mesh.cilium.io, ips: [127.0.0.1]}}]\n\
             trusted-ca-file: {}\ncert-file: {}\nkey-file: {}\n",
            ca.display(),
            cert.display(),
            key.display()
        )
    };

    // Whether etcd answers yet: it was started without a look.
    let findings = async {
        loop {
            let (_, findings) = check(folder.path(), &text(&ca)).await;
            if findings.is_healthy {
                return findings;
            }
            tokio::task::yield_now().await;
        }
    };
    let findings = tokio::time::timeout(Duration::from_secs(30), findings)
        .await
        .expect("etcd answers");
    for line in [
        format!("     ✅ TLS connection successfully established to 127.0.0.1:{port}\n"),
        "     ℹ️  Negotiated TLS version: TLS 1.3, ciphersuite TLS_".to_owned(),
        "   ✅ TLS Root CA certificates:\n      - Serial number: ".to_owned(),
        "   ✅ TLS client certificates:\n      - Serial number: ".to_owned(),
        "           Not before: ".to_owned(),
    ] {
        assert!(findings.text.contains(&line), "{line} in {}", findings.text);
    }

    let other = tempfile::tempdir().expect("there is a folder");
    let other_ca = Authority::new("other").write(other.path());
    let (_, findings) = check(folder.path(), &text(&other_ca)).await;
    assert!(!findings.is_healthy);
    for line in [
        format!("     ❌ Failed to establish TLS connection to 127.0.0.1:{port}: "),
        "   ❌ Failed to establish etcd connection: ".to_owned(),
    ] {
        assert!(findings.text.contains(&line), "{line} in {}", findings.text);
    }

    authority.sign_expired(folder.path(), "client");
    let (_, findings) = check(folder.path(), &text(&ca)).await;
    assert!(!findings.is_healthy);
    let warning = "The certificate is not valid now";
    assert!(findings.text.contains(warning), "{}", findings.text);

    std::fs::remove_file(&cert).expect("it is removed");
    let (_, findings) = check(folder.path(), &text(&ca)).await;
    let missing = format!(
        "❌ Cannot use the configuration: cannot read cert-file `{}`: No such file",
        cert.display()
    );
    assert!(findings.text.contains(&missing), "{}", findings.text);
    std::fs::remove_file(&ca).expect("it is removed");
    let (_, findings) = check(folder.path(), &text(&ca)).await;
    let missing = format!(
        "❌ Cannot use the configuration: cannot read trusted-ca-file `{}`: No such file",
        ca.display()
    );
    assert!(findings.text.contains(&missing), "{}", findings.text);

    std::fs::write(&ca, "no certificate").expect("it is written");
    std::fs::write(&cert, "no certificate").expect("it is written");
    let (_, findings) = check(folder.path(), &text(&ca)).await;
    for (what, setting, path) in [
        ("TLS Root CA certificates", "trusted-ca-file", &ca),
        ("TLS client certificates", "cert-file", &cert),
    ] {
        let line = format!(
            "   ❌ {what}: {setting} `{}`: no certificate in it\n",
            path.display()
        );
        assert!(findings.text.contains(&line), "{line} in {}", findings.text);
    }
}

#[tokio::test]
async fn a_configuration_without_a_file_is_checked() {
    let server = EtcdServer::start().await;
    let config = EtcdConfig::of_address(&format!("http://127.0.0.1:{}", server.port())).expect("it is valid");

    let findings = troubleshoot(&ConfigSource::Config(config), LIMIT).await;

    let text = findings.text;
    assert!(findings.is_healthy, "{text}");
    assert!(
        text.starts_with("🔌 Endpoints:\n   - http://127.0.0.1:"),
        "{text}"
    );
    assert!(
        text.contains("✅ Etcd connection successfully established\n"),
        "{text}"
    );
}

#[tokio::test]
async fn failures_name_the_step() {
    let folder = tempfile::tempdir().expect("there is a folder");

    let (_, broken) = check(folder.path(), "endpoints: [").await;
    assert!(!broken.is_healthy);
    assert!(
        broken.text.contains("❌ Cannot use the configuration: "),
        "{}",
        broken.text
    );

    let (_, refused) = check(folder.path(), "endpoints: [\"http://127.0.0.1:1\"]").await;
    assert!(!refused.is_healthy);
    for line in [
        "     ❌ Failed to establish TCP connection to 127.0.0.1:1: ",
        "   ❌ Failed to establish etcd connection: ",
    ] {
        assert!(refused.text.contains(line), "{line} in {}", refused.text);
    }
}
