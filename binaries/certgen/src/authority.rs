// SPDX-License-Identifier: Apache-2.0

//! The authority, and what it signs.

use std::{net::IpAddr, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, SerialNumber, string::Ia5String,
};
use time::OffsetDateTime;
use x509_parser::{pem::Pem, prelude::FromDer as _, prelude::X509Certificate};

use crate::{config::Certificate, key};

/// Clocks of nodes differ.
const SKEW: Duration = Duration::from_secs(300);

pub(crate) struct Authority {
    /// PEM.
    pub(crate) certificate: String,
    /// PEM.
    pub(crate) key: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, PEM.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Why a stored authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// It is replaced if an authority may be generated.
    #[error("{0} is missing or is not valid PEM")]
    Invalid(&'static str),
    /// As above.
    #[error("the key is of another certificate")]
    Mismatch,
    /// As above.
    #[error("it expires before certificates would")]
    ExpiresEarly,
    /// It cannot sign.
    #[error("cannot use it")]
    Issuer(#[from] rcgen::Error),
}

impl Authority {
    pub(crate) fn new(name: &str, validity: Duration) -> Result<Self, rcgen::Error> {
        let pair = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        limit(&mut params, validity);
        let certificate = params.self_signed(&pair)?.pem();
        Ok(Self {
            certificate,
            key: pair.serialize_pem(),
            issuer: Issuer::new(params, pair),
        })
    }

    /// A stored authority; it must be valid for `longest`.
    pub(crate) fn stored(certificate: &str, key: &str, longest: Duration) -> Result<Self, AuthorityError> {
        let pair = key::read(key).ok_or(AuthorityError::Invalid("ca.key"))?;
        let block = Pem::iter_from_buffer(certificate.as_bytes()).next();
        let block = block.and_then(Result::ok);
        let block = block.ok_or(AuthorityError::Invalid("ca.crt"))?;
        let (_, parsed) =
            X509Certificate::from_der(&block.contents).map_err(|_| AuthorityError::Invalid("ca.crt"))?;
        if parsed.public_key().subject_public_key.data.as_ref() != pair.public_key_raw() {
            return Err(AuthorityError::Mismatch);
        }
        let end = OffsetDateTime::now_utc() + longest;
        if parsed.validity().not_after.timestamp() < end.unix_timestamp() {
            return Err(AuthorityError::ExpiresEarly);
        }
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            issuer: Issuer::from_ca_cert_pem(certificate, pair)?,
        })
    }

    pub(crate) fn sign(&self, wanted: &Certificate) -> Result<Signed, rcgen::Error> {
        let pair = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, wanted.common_name.as_str());
        for host in &wanted.hosts {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(Ia5String::try_from(host.as_str())?),
            });
        }
        for usage in &wanted.usage {
            match usage.as_str() {
                "signing" | "digital signature" => params.key_usages.push(KeyUsagePurpose::DigitalSignature),
                "key encipherment" => params.key_usages.push(KeyUsagePurpose::KeyEncipherment),
                "server auth" => params
                    .extended_key_usages
                    .push(ExtendedKeyUsagePurpose::ServerAuth),
                "client auth" => params
                    .extended_key_usages
                    .push(ExtendedKeyUsagePurpose::ClientAuth),
                // Usages of cfssl that nothing here asks for.
                _ => {}
            }
        }
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from_slice(&serial(&pair)));
        limit(&mut params, wanted.validity);
        let certificate = params.signed_by(&pair, &self.issuer)?.pem();
        Ok(Signed {
            certificate,
            key: pair.serialize_pem(),
        })
    }
}

/// As random as the key.
fn serial(pair: &KeyPair) -> Vec<u8> {
    let point = pair.public_key_raw();
    let mut serial: Vec<u8> = point.iter().rev().take(16).copied().collect();
    // Positive, and not zero.
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}

fn limit(params: &mut CertificateParams, validity: Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - SKEW;
    params.not_after = now + validity;
}
