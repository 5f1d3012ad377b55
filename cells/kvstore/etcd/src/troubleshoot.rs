// SPDX-License-Identifier: Apache-2.0

//! Checks step by step whether etcd can be reached with a configuration file: endpoints, certificates, the client. The text is
//! that of Cilium's `troubleshoot` commands.

mod certificate;
mod endpoint;

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skep_kvstore_client::{Backend, KeyRange, RangeRequest, keys};
use tokio::time::timeout;

use crate::backend::{ConfigSource, Etcd, TransportOptions};
use crate::file::{CA_FILE, CERT_FILE, EtcdConfig, TlsFiles};
use crate::tls;

#[derive(Clone, Debug)]
pub struct Findings {
    /// What was checked, and how that went.
    pub text: String,
    pub is_healthy: bool,
}

/// A configuration file that cannot be used, and why.
pub fn unusable(path: &Path, error: &(dyn std::error::Error + 'static)) -> Findings {
    let mut report = Report::of_file(path);
    report.failed(0, "Cannot use the configuration", hive::error_chain(error));
    report.finish()
}

/// Checks a configuration. No check takes longer than `limit`.
pub async fn troubleshoot(source: &ConfigSource, limit: Duration) -> Findings {
    let (mut report, config) = match source {
        ConfigSource::File(path) => match EtcdConfig::load(path) {
            Ok(config) => (Report::of_file(path), Arc::new(config)),
            Err(error) => return unusable(path, &error),
        },
        // The endpoint says all there is.
        ConfigSource::Config(config) => (Report::default(), Arc::new(config.clone())),
    };
    let transport = TransportOptions {
        request_timeout: limit,
        status_timeout: limit,
        ..TransportOptions::default()
    };
    let etcd = Etcd::new(ConfigSource::Config((*config).clone()), transport);
    let statuses = timeout(limit, etcd.endpoints()).await.unwrap_or_default();

    report.line(0, "🔌 Endpoints:");
    for at in &config.endpoints {
        report.line(3, format!("- {}", at.address));
        endpoint::check(&mut report, &config, at, limit).await;
        let answer = statuses
            .iter()
            .find(|status| status.endpoint == at.address)
            .and_then(|status| status.answer.as_ref().ok());
        if let Some(answer) = answer {
            report.info(5, format!("Etcd server version: {}", answer.version));
        }
    }
    report.line(0, "");
    check_certificates(&mut report, &config.tls);
    report.line(0, "");
    check_client(&mut report, &etcd, limit).await;
    report.finish()
}

fn check_certificates(report: &mut Report, files: &TlsFiles) {
    report.line(0, "🔑 Digital certificates:");
    match &files.ca {
        Some(path) => check_file(report, "TLS Root CA certificates", CA_FILE, path),
        None => report.info(3, "TLS Root CA certificates: those of the system"),
    }
    match &files.client {
        Some((path, _)) => check_file(report, "TLS client certificates", CERT_FILE, path),
        None => report.info(3, "TLS client certificates: none"),
    }
}

fn check_file(report: &mut Report, what: &str, setting: &'static str, path: &Path) {
    match tls::certificates(setting, path) {
        Ok(certificates) => {
            report.ok(3, format!("{what}:"));
            for der in certificates {
                certificate::print(report, 6, &der);
            }
        }
        Err(error) => report.failed(3, what, hive::error_chain(&error)),
    }
}

/// Reads a key that every user of etcd may read.
async fn check_client(report: &mut Report, etcd: &Etcd, limit: Duration) {
    report.line(0, "⚙️ Etcd client:");
    let request = RangeRequest::new(KeyRange::key(keys::HEARTBEAT));
    let failure = match timeout(limit, etcd.range(request)).await {
        Ok(Ok(answer)) => {
            report.ok(3, "Etcd connection successfully established");
            report.info(3, format!("Etcd cluster ID: {:x}", answer.header.cluster_id));
            return;
        }
        Ok(Err(error)) => hive::error_chain(&error),
        Err(_) => no_answer(limit),
    };
    report.failed(3, "Failed to establish etcd connection", failure);
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

#[derive(Debug, Default)]
struct Report {
    text: String,
    has_failures: bool,
}

impl Report {
    fn of_file(path: &Path) -> Self {
        let mut report = Self::default();
        report.line(0, format!("📄 Configuration path: {}", path.display()));
        report.line(0, "");
        report
    }

    fn line(&mut self, indent: usize, line: impl Display) {
        let line = format!("{:indent$}{line}", "");
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn ok(&mut self, indent: usize, line: impl Display) {
        self.line(indent, format!("✅ {line}"));
    }

    fn info(&mut self, indent: usize, line: impl Display) {
        self.line(indent, format!("ℹ️  {line}"));
    }

    fn warn(&mut self, indent: usize, line: impl Display) {
        self.has_failures = true;
        self.line(indent, format!("⚠️  {line}"));
    }

    fn failed(&mut self, indent: usize, what: impl Display, error: impl Display) {
        self.has_failures = true;
        self.line(indent, format!("❌ {what}: {error}"));
    }

    fn finish(self) -> Findings {
        Findings {
            text: self.text,
            is_healthy: !self.has_failures,
        }
    }
}
