// SPDX-License-Identifier: Apache-2.0

//! Shared serde helpers: `null` is zero, zero is not written.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// Decodes `null` as the zero value.
pub(super) fn or_zero<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Decodes a structure. A list is an error: serde alone takes its elements for fields.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

impl<T: Default> Default for Object<T> {
    fn default() -> Self {
        Self(T::default())
    }
}

/// Decodes a structure; `null` is the zero value.
pub(super) fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(maybe_object(deserializer)?.unwrap_or_default())
}

/// Decodes a structure that may be absent.
pub(super) fn maybe_object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|object| object.0))
}

/// Decodes a list of structures in which `null`, as a whole or as an element, is the zero value.
pub(super) fn objects<'de, D, T>(deserializer: D) -> Result<Box<[T]>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    let objects: Box<[Object<T>]> = list(deserializer)?;
    Ok(objects.into_iter().map(|object| object.0).collect())
}

/// Decodes a list in which `null`, as a whole or as an element, is the zero value.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Box<[T]>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    struct Elements<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Elements<T> {
        type Value = Box<[T]>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Box::default())
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(Box::default())
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_seq(self)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = seq.next_element::<Option<T>>()? {
                elements.push(element.unwrap_or_default());
            }
            Ok(elements.into_boxed_slice())
        }
    }

    deserializer.deserialize_option(Elements(PhantomData))
}

/// Whether a value is zero, and so not written.
pub(super) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Encodes a list that the API always prints: empty is `null`.
pub(super) fn list_or_null<S, T>(list: &[T], serializer: S) -> Result<S::Ok, S::Error>
where
    S: Serializer,
    T: Serialize,
{
    if list.is_empty() {
        serializer.serialize_none()
    } else {
        list.serialize(serializer)
    }
}
