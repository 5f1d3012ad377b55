// SPDX-License-Identifier: Apache-2.0

//! Metadata of objects.

use std::fmt;

use jiff::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::codec;
use super::{Labels, Str};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name, unique in its namespace and kind.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub name: Str,
    /// Prefix from which the API server generates the name.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub generate_name: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub namespace: Str,
    /// Unique id: a recreated object has another one.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub uid: Str,
    /// Opaque version, set by the API server.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub resource_version: Str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Timestamp>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub labels: Labels,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub annotations: Labels,
    /// Owners: the object is deleted with the last of them.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub owner_references: Box<[OwnerReference]>,
}

/// Metadata with the time of creation and the generation, for kinds that are judged by them: the others do not grow.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatedMetadata {
    #[serde(flatten)]
    pub common: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Timestamp>,
    /// Counts changes of the desired state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

// By hand: a flattened field would be decoded from a copy of the whole metadata, `managedFields` included.
impl<'de> Deserialize<'de> for CreatedMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = CreatedMetadata;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CreatedMetadata, A::Error> {
                let mut found = CreatedMetadata::default();
                let common = CommonFields {
                    map,
                    creation_timestamp: &mut found.creation_timestamp,
                    generation: &mut found.generation,
                };
                found.common = Metadata::deserialize(MapAccessDeserializer::new(common))?;
                Ok(found)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// The fields of [`CreatedMetadata`] that [`Metadata`] decodes; sets the others on the way.
struct CommonFields<'a, A> {
    map: A,
    creation_timestamp: &'a mut Option<Timestamp>,
    generation: &'a mut Option<i64>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for CommonFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<Str>()? {
            match key.as_str() {
                "creationTimestamp" => *self.creation_timestamp = self.map.next_value()?,
                "generation" => *self.generation = self.map.next_value()?,
                key => return seed.deserialize(key.into_deserializer()).map(Some),
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version of the owner.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub api_version: Str,
    #[serde(deserialize_with = "codec::or_zero")]
    pub kind: Str,
    #[serde(deserialize_with = "codec::or_zero")]
    pub name: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub uid: Str,
    /// Whether the owner is the managing controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    #[serde(rename = "type", deserialize_with = "codec::or_zero")]
    pub kind: Str,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "codec::or_zero")]
    pub status: Str,
    /// Generation of the object that the condition is about.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub observed_generation: i64,
    pub last_transition_time: Option<Timestamp>,
    #[serde(deserialize_with = "codec::or_zero")]
    pub reason: Str,
    #[serde(deserialize_with = "codec::or_zero")]
    pub message: Str,
}

#[cfg(test)]
mod tests {
    use serde::de::value::{Error, MapDeserializer};
    use serde::forward_to_deserialize_any;
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn metadata_with_creation_decodes_and_encodes_all_its_fields() {
        let mut object = json!({
            "name": "cart-0", "generation": 3, "labels": {"app": "cart"}, "uid": "u",
            "creationTimestamp": "2026-07-01T10:00:00Z", "namespace": "shop",
        });

        let metadata: CreatedMetadata = from_value(object.clone()).unwrap();

        assert_eq!(metadata.common, from_value(object.clone()).unwrap());
        assert_eq!(metadata.generation, Some(3));
        assert_eq!(
            metadata.creation_timestamp,
            Some("2026-07-01T10:00:00Z".parse().unwrap())
        );
        assert_eq!(to_value(&metadata).unwrap(), object);
        object["creationTimestamp"] = json!(null);
        assert_eq!(
            from_value::<CreatedMetadata>(object).unwrap().creation_timestamp,
            None
        );
    }

    /// A value that can be skipped, not decoded.
    struct Unread;

    impl<'de> Deserializer<'de> for Unread {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(serde::de::Error::custom("decoded"))
        }

        fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.visit_unit()
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map struct enum identifier
        }
    }

    impl IntoDeserializer<'_, Error> for Unread {
        type Deserializer = Self;

        fn into_deserializer(self) -> Self {
            self
        }
    }

    #[test]
    fn metadata_with_creation_skips_managed_fields() {
        let object = MapDeserializer::new(std::iter::once(("managedFields", Unread)));

        assert_eq!(
            CreatedMetadata::deserialize(object),
            Ok(CreatedMetadata::default())
        );
    }
}
