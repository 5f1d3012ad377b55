// SPDX-License-Identifier: Apache-2.0

//! Removes secrets from texts.

use std::borrow::Cow;

use regex::{Captures, Regex};

const REDACTED: &str = "REDACTED";

/// Names whose values are secrets, at their end.
const NAMES: &str = r"(?:password|passwd|passphrase|secret|token|api-?key|private-?key|key-data|access-?key|psk|credentials?|authorization|cookie-secret)";

/// Removes the secrets of texts.
#[derive(Debug)]
pub(crate) struct Redactor {
    private_keys: Regex,
    /// Data of Secrets, in JSON and YAML.
    kubernetes: Regex,
    named: [Regex; 2],
    addresses: Regex,
    bearers: Regex,
}

impl Redactor {
    pub(crate) fn new() -> Result<Self, regex::Error> {
        Ok(Self {
            private_keys: Regex::new(
                r"(?s)-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
            )?,
            kubernetes: Regex::new(
                r#"("(?:data|stringData)":\s*\{)[^{}]*(\}(?s:[^{}]*)"kind":\s*"Secret")"#,
            )?,
            // `name: value`, `name=value`, `"name": "value"`; a value in quotes may have escaped ones.
            named: [
                Regex::new(&format!(r#"(?i)("[\w.-]*{NAMES}"\s*:\s*)"(?:[^"\\]|\\.)*""#))?,
                Regex::new(&format!(
                    r#"(?im)(^|[\s,{{;&?"'=])([\w.-]*{NAMES})(\s*[=:]\s*)[^\s,;&"'{{}}\[]+"#
                ))?,
            ],
            addresses: Regex::new(r"([a-z][a-z0-9+.-]*://[^\s/:@]+):[^\s/@]+@")?,
            bearers: Regex::new(r"(?i)\b(bearer|basic)(\s+)[\w.~+/=-]{8,}")?,
        })
    }

    pub(crate) fn text(&self, text: &str) -> String {
        let text = self.private_keys.replace_all(text, |found: &Captures<'_>| {
            format!("{REDACTED} {}PRIVATE KEY", &found[1])
        });
        let text = replaced(
            &self.kubernetes,
            text,
            &format!("${{1}}\"{REDACTED}\": \"\"${{2}}"),
        );
        let text = replaced(&self.bearers, text, &format!("${{1}}${{2}}{REDACTED}"));
        let text = replaced(&self.named[0], text, &format!("${{1}}\"{REDACTED}\""));
        let text = replaced(&self.named[1], text, &format!("${{1}}${{2}}${{3}}{REDACTED}"));
        replaced(&self.addresses, text, &format!("${{1}}:{REDACTED}@")).into_owned()
    }
}

fn replaced<'a>(pattern: &Regex, text: Cow<'a, str>, by: &str) -> Cow<'a, str> {
    match pattern.replace_all(&text, by) {
        Cow::Borrowed(_) => text,
        Cow::Owned(changed) => Cow::Owned(changed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_and_the_rest_stays() {
        let redactor = Redactor::new().unwrap();
        for (text, expected) in [
            ("etcd-password: hunter2\nx: y", "etcd-password: REDACTED\nx: y"),
            (
                r#"{"clientToken": "a\"b", "id": 7}"#,
                r#"{"clientToken": "REDACTED", "id": 7}"#,
            ),
            (
                "Authorization: Bearer abcdefgh12345",
                "Authorization: REDACTED REDACTED",
            ),
            (
                "endpoints: https://root:pw@10.0.0.1:2379",
                "endpoints: https://root:REDACTED@10.0.0.1:2379",
            ),
            ("--etcd-opt=token=abc,x=1", "--etcd-opt=token=REDACTED,x=1"),
            (
                "a\n-----BEGIN EC PRIVATE KEY-----\nMHc\nCAQ\n-----END EC PRIVATE KEY-----\nb",
                "a\nREDACTED EC PRIVATE KEY\nb",
            ),
            (
                r#"{"data": {"tls.key": "TUhj"}, "kind": "Secret"}"#,
                r#"{"data": {"REDACTED": ""}, "kind": "Secret"}"#,
            ),
            ("    client-key-data: TUhj", "    client-key-data: REDACTED"),
        ] {
            assert_eq!(redactor.text(text), expected);
        }
        for kept in [
            "k8s:app=token-service identity=7",
            "enable-k8s-secrets-namespace: cilium-secrets",
            "PolicyEnforcement: default",
            r#"{"key": "10.0.0.1:80", "value": "tokens 7"}"#,
        ] {
            assert_eq!(redactor.text(kept), kept);
        }
    }
}
