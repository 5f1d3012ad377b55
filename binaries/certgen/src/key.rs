// SPDX-License-Identifier: Apache-2.0

//! Private keys in the forms that Helm (PKCS #1) and cfssl (SEC 1) write: ring reads PKCS #8 only.

use rcgen::KeyPair;
use x509_parser::pem::Pem;

/// `rsaEncryption`, with its null parameters.
const RSA: &[u8] = &[
    0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];
/// `ecPublicKey` on the curve P-256.
const P256: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07,
];
/// `ecPublicKey` on the curve P-384.
const P384: &[u8] = &[
    0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00,
    0x22,
];

/// Reads a private key in PEM; `None` if there is none that can sign.
pub(crate) fn read(text: &str) -> Option<KeyPair> {
    let blocks = Pem::iter_from_buffer(text.as_bytes()).filter_map(Result::ok);
    let mut keys = blocks.filter_map(|block| match block.label.as_str() {
        "PRIVATE KEY" => KeyPair::try_from(block.contents).ok(),
        "RSA PRIVATE KEY" => KeyPair::try_from(wrapped(RSA, &block.contents)).ok(),
        "EC PRIVATE KEY" => [P256, P384]
            .iter()
            .find_map(|curve| KeyPair::try_from(wrapped(curve, &block.contents)).ok()),
        _ => None,
    });
    keys.next()
}

/// `PrivateKeyInfo` (RFC 5208) of a key.
fn wrapped(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let version = [0x02, 0x01, 0x00];
    let body = [&version[..], algorithm, &element(0x04, key)].concat();
    element(0x30, &body)
}

/// A DER element.
fn element(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = body.len().to_be_bytes();
    let significant: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    match significant[..] {
        [] => out.push(0),
        [short] if short < 0x80 => out.push(short),
        _ => {
            out.push(0x80 | significant.len().to_le_bytes()[0]);
            out.extend(significant);
        }
    }
    out.extend_from_slice(body);
    out
}
