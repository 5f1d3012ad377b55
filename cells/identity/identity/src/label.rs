// SPDX-License-Identifier: Apache-2.0

//! One label of an identity.

use std::fmt;
use std::str::FromStr;

use compact_str::CompactString;
use ipnet::IpNet;

use crate::reserved::Reserved;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelSource {
    Unspec,
    K8s,
    Reserved,
    Cidr,
    CidrGroup,
    Fqdn,
    Node,
    Any,
    /// Another one, such as `container`, `cni`, `gen`, `directory` or `policy`.
    Other(CompactString),
}

impl LabelSource {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Unspec => "unspec",
            Self::K8s => "k8s",
            Self::Reserved => "reserved",
            Self::Cidr => "cidr",
            Self::CidrGroup => "cidrgroup",
            Self::Fqdn => "fqdn",
            Self::Node => "node",
            Self::Any => "any",
            Self::Other(word) => word,
        }
    }

    /// Whether labels of this source make an identity valid on one node only.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Reserved | Self::Cidr | Self::CidrGroup | Self::Fqdn)
    }
}

impl From<&str> for LabelSource {
    fn from(word: &str) -> Self {
        match word {
            "" | "unspec" => Self::Unspec,
            "k8s" => Self::K8s,
            "reserved" => Self::Reserved,
            "cidr" => Self::Cidr,
            "cidrgroup" => Self::CidrGroup,
            "fqdn" => Self::Fqdn,
            "node" => Self::Node,
            "any" => Self::Any,
            other => Self::Other(other.into()),
        }
    }
}

impl fmt::Display for LabelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text is not a label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// There is no key between source and value.
    #[error("label `{0}` has no key")]
    NoKey(String),
    /// It would end a label in the text of a set.
    #[error("label `{0}` contains `;`")]
    Semicolon(String),
}

/// A label of an identity: `source:key=value`, without `=` if the value is empty.
///
/// ```
/// use skep_identity::{Label, LabelSource};
///
/// let label: Label = "k8s:app=cart".parse()?;
/// assert_eq!((label.source(), label.key(), label.value()), (&LabelSource::K8s, "app", "cart"));
/// assert_eq!("app".parse::<Label>()?.to_string(), "unspec:app");
/// # Ok::<(), skep_identity::LabelError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    source: LabelSource,
    key: CompactString,
    value: CompactString,
}

impl Label {
    /// The label with these parts.
    ///
    /// # Errors
    ///
    /// [`LabelError`] for an empty key, and for a `;` in key or value.
    pub fn new(source: LabelSource, key: &str, value: &str) -> Result<Self, LabelError> {
        let text = || format!("{source}:{key}={value}");
        if key.is_empty() {
            return Err(LabelError::NoKey(text()));
        }
        if [source.as_str(), key, value]
            .iter()
            .any(|part| part.contains(';'))
        {
            return Err(LabelError::Semicolon(text()));
        }
        Ok(Self {
            source,
            key: key.into(),
            value: value.into(),
        })
    }

    /// The label of a network: `cidr:10.0.0.0/8`, with dashes for the colons of IPv6. `None` for networks of length 0, which
    /// are the world.
    ///
    /// ```
    /// use skep_identity::Label;
    ///
    /// let label = Label::cidr("2001:db8::/32".parse()?).map(|label| label.to_string());
    /// assert_eq!(label.as_deref(), Some("cidr:2001-db8--0/32"));
    /// # Ok::<(), ipnet::AddrParseError>(())
    /// ```
    pub fn cidr(net: IpNet) -> Option<Self> {
        if net.prefix_len() == 0 {
            return None;
        }
        let mut key = net.network().to_string().replace(':', "-");
        if key.starts_with('-') {
            key.insert(0, '0');
        }
        if key.ends_with('-') {
            key.push('0');
        }
        Some(Self {
            source: LabelSource::Cidr,
            key: compact_str::format_compact!("{key}/{}", net.prefix_len()),
            value: CompactString::default(),
        })
    }

    pub const fn source(&self) -> &LabelSource {
        &self.source
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value, which may be empty.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The reserved identity that it names.
    pub fn reserved(&self) -> Option<Reserved> {
        match self.source {
            LabelSource::Reserved => Reserved::from_name(&self.key),
            _ => None,
        }
    }
}

impl From<Reserved> for Label {
    fn from(reserved: Reserved) -> Self {
        Self {
            source: LabelSource::Reserved,
            key: CompactString::const_new(reserved.name()),
            value: CompactString::default(),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.key)?;
        match self.value.is_empty() {
            true => Ok(()),
            false => write!(f, "={}", self.value),
        }
    }
}

impl FromStr for Label {
    type Err = LabelError;

    /// Splits at the first `=`, and what is before it at the first `:`.
    fn from_str(text: &str) -> Result<Self, LabelError> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let (source, key) = name.split_once(':').unwrap_or(("", name));
        Self::new(source.into(), key, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_at_the_first_marks() {
        for (text, source, key, value) in [
            ("k8s:app=cart", "k8s", "app", "cart"),
            ("k8s:empty=", "k8s", "empty", ""),
            ("reserved:host", "reserved", "host", ""),
            ("app=a:b=c", "unspec", "app", "a:b=c"),
            ("container:x:y", "container", "x:y", ""),
            (":app", "unspec", "app", ""),
        ] {
            let label: Label = text.parse().unwrap();
            assert_eq!(
                (label.source().as_str(), label.key(), label.value()),
                (source, key, value)
            );
        }
    }

    #[test]
    fn labels_without_key_or_with_a_semicolon_are_invalid() {
        let error = |text: &str| text.parse::<Label>().unwrap_err().to_string();

        assert_eq!(error("k8s:=x"), "label `k8s:=x` has no key");
        assert_eq!(error(""), "label `unspec:=` has no key");
        assert_eq!(error("k8s:a=b;c"), "label `k8s:a=b;c` contains `;`");
    }

    #[test]
    fn sources_are_told_by_their_words() {
        for word in [
            "unspec",
            "k8s",
            "reserved",
            "cidr",
            "cidrgroup",
            "fqdn",
            "node",
            "any",
            "cni",
        ] {
            assert_eq!(LabelSource::from(word).as_str(), word);
        }
        assert!(
            !LabelSource::K8s.is_local() && !LabelSource::Node.is_local() && LabelSource::Fqdn.is_local()
        );
    }

    #[test]
    fn networks_have_labels_that_are_valid_keys() {
        for (net, label) in [
            ("10.0.0.0/8", Some("cidr:10.0.0.0/8")),
            ("10.1.2.3/8", Some("cidr:10.0.0.0/8")),
            ("::1/128", Some("cidr:0--1/128")),
            ("fd00::/8", Some("cidr:fd00--0/8")),
            ("::/1", Some("cidr:0--0/1")),
            ("0.0.0.0/0", None),
            ("::/0", None),
        ] {
            let found = Label::cidr(net.parse().unwrap()).map(|label| label.to_string());
            assert_eq!(found.as_deref(), label, "{net}");
        }
    }

    #[test]
    fn reserved_labels_are_told_by_source_and_key() {
        let reserved = |text: &str| text.parse::<Label>().unwrap().reserved();

        assert_eq!(reserved("reserved:host"), Some(Reserved::Host));
        assert_eq!(reserved("k8s:host"), None);
        assert_eq!(Label::from(Reserved::Health).to_string(), "reserved:health");
    }
}
