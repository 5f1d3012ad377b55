// SPDX-License-Identifier: Apache-2.0

//! Labels and annotations as sorted slices, and selectors over them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde::{Deserialize as DeserializeDerive, Serialize as SerializeDerive};

use super::Str;
use super::codec;

/// Keys that nearly every object carries: kept as references to these constants, never copied.
const FREQUENT_KEYS: &[&str] = &[
    "app.kubernetes.io/component",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "endpoints.kubernetes.io/last-change-trigger-time",
    "endpointslice.kubernetes.io/managed-by",
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubernetes.io/metadata.name",
    "kubernetes.io/service-name",
    "service.kubernetes.io/headless",
    "statefulset.kubernetes.io/pod-name",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

const FREQUENT_VALUES: &[&str] = &[
    "endpointslice-controller.k8s.io",
    "endpointslicemirroring-controller.k8s.io",
];

fn interned(text: &str, table: &'static [&'static str]) -> Str {
    // Up to 24 bytes fit into the value itself.
    if text.len() > 24
        && let Some(known) = table.iter().find(|known| **known == text)
    {
        return Str::const_new(known);
    }
    Str::new(text)
}

/// Labels or annotations: text to text, sorted by key, 16 bytes when empty.
///
/// ```
/// use skep_k8s_types::slim::Labels;
///
/// let labels = Labels::from_iter([("zone", "b"), ("app", "web")]);
/// assert_eq!(labels.get("app"), Some("web"));
/// assert_eq!(labels.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["app", "zone"]);
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Labels(Box<[(Str, Str)]>);

impl Labels {
    pub fn get(&self, key: &str) -> Option<&str> {
        let index = self
            .0
            .binary_search_by(|(candidate, _)| candidate.as_str().cmp(key))
            .ok()?;
        Some(self.0[index].1.as_str())
    }

    /// Whether a key is there, with any value.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &str)> + ExactSizeIterator {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    pub fn remove(&mut self, key: &str) {
        if self.contains_key(key) {
            self.0 = std::mem::take(&mut self.0)
                .into_iter()
                .filter(|(candidate, _)| candidate != key)
                .collect();
        }
    }

    /// Later pairs win over earlier ones with the same key.
    fn from_pairs(mut pairs: Vec<(Str, Str)>) -> Self {
        // Stable: of equal keys the last one written stays last.
        pairs.sort_by(|left, right| left.0.cmp(&right.0));
        let mut unique: Vec<(Str, Str)> = Vec::with_capacity(pairs.len());
        for pair in pairs {
            match unique.last_mut() {
                Some(last) if last.0 == pair.0 => last.1 = pair.1,
                _ => unique.push(pair),
            }
        }
        Self(unique.into_boxed_slice())
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self::from_pairs(
            pairs
                .into_iter()
                .map(|(key, value)| {
                    (
                        interned(key.as_ref(), FREQUENT_KEYS),
                        interned(value.as_ref(), FREQUENT_VALUES),
                    )
                })
                .collect(),
        )
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key.as_str(), value.as_str())?;
        }
        map.end()
    }
}

/// A key or value, looked up in a table before it is copied.
struct Interned<const KEY: bool>(Str);

impl<'de, const KEY: bool> Deserialize<'de> for Interned<KEY> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text<const KEY: bool>;

        impl<const KEY: bool> Visitor<'_> for Text<KEY> {
            type Value = Interned<KEY>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Interned(interned(
                    text,
                    if KEY { FREQUENT_KEYS } else { FREQUENT_VALUES },
                )))
            }
        }

        deserializer.deserialize_str(Text::<KEY>)
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Labels;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map of strings")
            }

            fn visit_unit<E>(self) -> Result<Labels, E> {
                Ok(Labels::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut pairs = Vec::new();
                while let Some(Interned(key)) = map.next_key::<Interned<true>>()? {
                    let value = map.next_value::<Option<Interned<false>>>()?;
                    pairs.push((key, value.map(|value| value.0).unwrap_or_default()));
                }
                Ok(Labels::from_pairs(pairs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

/// Selects objects by their labels: all parts must hold. The empty selector selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, SerializeDerive, DeserializeDerive)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub match_labels: Labels,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub match_expressions: Box<[SelectorRequirement]>,
}

/// One requirement of a [`LabelSelector`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, SerializeDerive, DeserializeDerive)]
#[serde(rename_all = "camelCase", default)]
pub struct SelectorRequirement {
    #[serde(deserialize_with = "codec::or_zero")]
    pub key: Str,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    #[serde(deserialize_with = "codec::or_zero")]
    pub operator: Str,
    /// Values for `In` and `NotIn`.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::list")]
    pub values: Box<[Str]>,
}
