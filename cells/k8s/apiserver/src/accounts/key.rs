// SPDX-License-Identifier: Apache-2.0

//! The key that signs tokens: JSON Web Signatures by ES256 (RFC 7515, RFC 7518 section 3.4), and nothing else.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::digest::{self, SHA256};
use ring::error::KeyRejected;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};

const ALGORITHM: &str = "ES256";
/// What precedes the point of a public key in its `SubjectPublicKeyInfo` (RFC 5480): id-ecPublicKey, prime256v1.
const SPKI: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Why a file has no key for tokens.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    /// The file cannot be read, or has no private key in PKCS#8 (`BEGIN PRIVATE KEY`).
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: pem::Error,
    },
    /// The key is not on the curve P-256. `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256` makes one.
    #[error("{}: not a key on the curve P-256: {why}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: KeyRejected,
    },
}

/// The key that signs the tokens of service accounts. Cheap to clone; clones share.
#[derive(Clone)]
pub struct SigningKey(Arc<Inner>);

struct Inner {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    id: String,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SigningKey")
            .field("id", &self.0.id)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: String,
}

impl SigningKey {
    /// A new key: tokens are valid until the server ends.
    #[must_use]
    pub fn generate() -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .expect("the system has random numbers");
        Self::from_der(document.as_ref(), random).expect("ring reads what it wrote")
    }

    /// Reads a private key on the curve P-256 from a PEM file.
    ///
    /// # Errors
    /// When the file cannot be read, or has no such key.
    pub fn from_file(path: &Path) -> Result<Self, SigningKeyError> {
        let path = path.to_owned();
        let key = match PrivatePkcs8KeyDer::from_pem_file(&path) {
            Ok(key) => key,
            Err(cause) => return Err(SigningKeyError::File { path, cause }),
        };
        Self::from_der(key.secret_pkcs8_der(), SystemRandom::new())
            .map_err(|why| SigningKeyError::Key { path, why })
    }

    fn from_der(der: &[u8], random: SystemRandom) -> Result<Self, KeyRejected> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &random)?;
        let info = [&SPKI, pair.public_key().as_ref()].concat();
        let id = BASE64.encode(digest::digest(&SHA256, &info));
        Ok(Self(Arc::new(Inner { pair, random, id })))
    }

    /// Signs claims: a token.
    pub(crate) fn sign(&self, claims: &impl serde::Serialize) -> String {
        let header = json!({ "alg": ALGORITHM, "kid": self.0.id });
        let claims = serde_json::to_vec(claims).expect("claims are an object with text for keys");
        let text = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims));
        let signature = self.0.pair.sign(&self.0.random, text.as_bytes());
        let signature = signature.expect("the system has random numbers");
        format!("{text}.{}", BASE64.encode(signature))
    }

    /// The claims of a token that this key has signed; nothing if it has not.
    pub(crate) fn verify<T: DeserializeOwned>(&self, token: &str) -> Option<T> {
        let (text, signature) = token.rsplit_once('.')?;
        let (header, claims) = text.split_once('.')?;
        let header: Header = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
        if header.alg != ALGORITHM || header.kid != self.0.id {
            return None;
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.0.pair.public_key())
            .verify(text.as_bytes(), &BASE64.decode(signature).ok()?)
            .ok()?;
        serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()
    }

    /// The public key as a JSON Web Key Set (RFC 7517), for those who verify tokens on their own.
    pub(crate) fn key_set(&self) -> Value {
        // An uncompressed point: 4, x, y.
        let point = &self.0.pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        json!({ "keys": [{
            "use": "sig", "kty": "EC", "kid": self.0.id, "crv": "P-256", "alg": ALGORITHM,
            "x": BASE64.encode(x), "y": BASE64.encode(y),
        }] })
    }

    /// What the key set says about the signatures.
    pub(crate) fn algorithm() -> &'static str {
        ALGORITHM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tampered(token: &str, part: usize, value: &Value) -> String {
        let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
        parts[part] = BASE64.encode(value.to_string());
        parts.join(".")
    }

    #[test]
    fn verifies_its_own_tokens_and_no_others() {
        let (key, other) = (SigningKey::generate(), SigningKey::generate());
        let claims = json!({ "sub": "robot" });

        let token = key.sign(&claims);

        assert_eq!(key.verify::<Value>(&token), Some(claims));
        assert_eq!(other.verify::<Value>(&token), None);
        let none = json!({ "alg": "none", "kid": key.0.id });
        let (unsigned, _) = token.rsplit_once('.').unwrap();
        for forged in [
            tampered(&token, 1, &json!({ "sub": "admin" })),
            tampered(&token, 0, &none),
            format!("{}.", tampered(unsigned, 0, &none)),
            unsigned.to_owned(),
            String::new(),
            "a.b.c".to_owned(),
        ] {
            assert_eq!(key.verify::<Value>(&forged), None, "{forged}");
        }
    }

    /// What others verify tokens with: the key set alone.
    #[test]
    fn the_key_set_verifies_tokens() {
        let key = SigningKey::generate();
        let token = key.sign(&json!({ "sub": "robot" }));

        let set = key.key_set();

        let part = |name: &str| BASE64.decode(set["keys"][0][name].as_str().unwrap()).unwrap();
        let point = [vec![4], part("x"), part("y")].concat();
        let (text, signature) = token.rsplit_once('.').unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(text.as_bytes(), &BASE64.decode(signature).unwrap())
            .unwrap();
        let header = BASE64.decode(token.split('.').next().unwrap()).unwrap();
        let header: Value = serde_json::from_slice(&header).unwrap();
        assert_eq!(header["kid"], set["keys"][0]["kid"]);
    }

    #[test]
    fn a_key_in_a_file_verifies_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("accounts.key");
        let pair = rcgen::KeyPair::generate().unwrap();
        std::fs::write(&file, pair.serialize_pem()).unwrap();

        let token = SigningKey::from_file(&file).unwrap().sign(&json!({ "a": 1 }));

        let restarted = SigningKey::from_file(&file).unwrap();
        assert_eq!(restarted.verify(&token), Some(json!({ "a": 1 })));
        // The id is the digest of the public key, as on a real server.
        let digest = BASE64.encode(digest::digest(&SHA256, &pem_bytes(&pair.public_key_pem())));
        assert_eq!(restarted.0.id, digest);
    }

    fn pem_bytes(text: &str) -> Vec<u8> {
        let lines: String = text.lines().filter(|line| !line.starts_with('-')).collect();
        base64::prelude::BASE64_STANDARD.decode(lines).unwrap()
    }

    #[test]
    fn what_is_no_such_key_is_an_error_with_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("accounts.key");

        assert!(matches!(
            SigningKey::from_file(&file),
            Err(SigningKeyError::File { .. })
        ));
        std::fs::write(
            &file,
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        )
        .unwrap();
        let error = SigningKey::from_file(&file).unwrap_err();
        assert!(matches!(error, SigningKeyError::Key { .. }), "{error:?}");
        assert!(error.to_string().contains("accounts.key"), "{error}");
    }
}
