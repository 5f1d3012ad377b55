// SPDX-License-Identifier: Apache-2.0

//! What a certificate says.

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::Report;

/// Prints whose certificate it is, who signed it, and from when to when it is valid.
pub(super) fn print(report: &mut Report, indent: usize, der: &CertificateDer<'_>) {
    let certificate = match X509Certificate::from_der(der) {
        Ok((_, certificate)) => certificate,
        Err(error) => return report.failed(indent, "Cannot parse the certificate", error),
    };
    let validity = certificate.validity();
    report.line(
        indent,
        format!("- Serial number: {}", certificate.raw_serial_as_string()),
    );
    let indent = indent + 2;
    report.line(indent, format!("Subject: {}", certificate.subject()));
    report.line(indent, format!("Issuer: {}", certificate.issuer()));
    report.line(indent, "Validity:");
    report.line(indent + 3, format!("Not before: {}", validity.not_before));
    report.line(indent + 3, format!("Not after: {}", validity.not_after));
    if !validity.is_valid() {
        report.warn(indent, "The certificate is not valid now");
    }
}
