// SPDX-License-Identifier: Apache-2.0

//! Rules for names, labels and keys (RFC 1123, RFC 1035 and Kubernetes' own). Each returns what is wrong, or nothing.

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn too_long(limit: usize) -> Option<String> {
    Some(format!("must be no more than {limit} characters"))
}

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|b| edge(b) || *b == b'-')
}

/// A DNS sub-domain: the rule for most names.
pub(crate) fn subdomain(text: &str) -> Option<String> {
    if text.len() > 253 {
        return too_long(253);
    }
    (!text.split('.').all(is_label)).then(|| SUBDOMAIN.to_owned())
}

/// A DNS label: the rule for namespaces and services.
pub(crate) fn label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return too_long(63);
    }
    (!is_label(text)).then(|| LABEL.to_owned())
}

/// A DNS label that starts with a letter: the rule for versions of custom resources.
pub(crate) fn label_1035(text: &str) -> Option<String> {
    if text.len() > 63 {
        return too_long(63);
    }
    (!(is_label(text) && text.as_bytes()[0].is_ascii_lowercase())).then(|| LABEL_1035.to_owned())
}

/// What may stand in a path: the rule for RBAC objects.
pub(crate) fn path_segment(text: &str) -> Option<String> {
    if matches!(text, "." | "..") {
        return Some(format!("may not be '{text}'"));
    }
    text.chars()
        .find(|c| matches!(c, '/' | '%'))
        .map(|c| format!("may not contain '{c}'"))
}

fn is_qualified(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// The key of a label or annotation, with an optional prefix.
pub(crate) fn qualified_name(text: &str) -> Option<String> {
    let name = match text.split_once('/') {
        Some((prefix, name)) => {
            if prefix.is_empty() {
                return Some("prefix part must be non-empty".to_owned());
            }
            if let Some(problem) = subdomain(prefix) {
                return Some(format!("prefix part {problem}"));
            }
            name
        }
        None => text,
    };
    if name.is_empty() {
        return Some("name part must be non-empty".to_owned());
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 characters".to_owned());
    }
    (!is_qualified(name)).then(|| QUALIFIED.to_owned())
}

/// The value of a label.
pub(crate) fn label_value(text: &str) -> Option<String> {
    if text.len() > 63 {
        return too_long(63);
    }
    (!text.is_empty() && !is_qualified(text)).then(|| VALUE.to_owned())
}

/// The name of a port: at most 15 characters, letters and digits, a letter at least.
pub(crate) fn port_name(text: &str) -> Option<String> {
    if text.len() > 15 {
        return too_long(15);
    }
    let bytes = text.as_bytes();
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if !bytes.iter().all(|b| edge(b) || *b == b'-') || bytes.is_empty() {
        return Some("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !bytes.iter().any(u8::is_ascii_lowercase) {
        return Some("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        return Some("must not contain consecutive hyphens".to_owned());
    }
    (bytes.first() == Some(&b'-') || bytes.last() == Some(&b'-'))
        .then(|| "must not begin or end with a hyphen".to_owned())
}

/// The key of a ConfigMap or Secret.
pub(crate) fn config_key(text: &str) -> Option<String> {
    if text.len() > 253 {
        return too_long(253);
    }
    if text.is_empty()
        || !text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    {
        return Some("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')".to_owned());
    }
    matches!(text, "." | "..").then(|| format!("must not be '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_and_refuses_names() {
        for good in ["a", "a-b", "1.b-2.c", "web"] {
            assert_eq!(subdomain(good), None, "{good}");
        }
        for bad in ["", "A", "a_b", "-a", "a-", "a..b", ".a"] {
            assert!(subdomain(bad).is_some(), "{bad}");
        }
        assert!(label("a.b").is_some());
        assert!(label_1035("1a").is_some());
        assert!(label(&"a".repeat(64)).is_some());
        assert_eq!(qualified_name("example.com/Some_Name.x"), None);
        assert!(qualified_name("/x").is_some());
        assert!(qualified_name("x/").is_some());
        assert_eq!(port_name("http-2"), None);
        assert!(port_name("80").is_some());
        assert!(port_name("a--b").is_some());
    }
}
