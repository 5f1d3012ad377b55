// SPDX-License-Identifier: Apache-2.0

//! Objects as they arrive, and their decoding.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::kind::{Kind, Resource};
use crate::slim::Str;
use crate::slim::codec::Object;

/// Namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjectKey {
    pub namespace: Str,
    pub name: Str,
}

impl ObjectKey {
    pub fn of(object: &impl Resource) -> Self {
        let metadata = object.metadata();
        Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
        }
    }
}

/// `namespace/name`, or `name` for cluster-scoped objects.
impl fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(formatter, "{}/", self.namespace)?;
        }
        formatter.write_str(&self.name)
    }
}

/// An object that does not match the schema of its kind. The writer of the object must fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {object}{}{path}: {reason}", if path.is_empty() { "" } else { ": " })]
pub struct DecodeError {
    pub kind: Str,
    /// Namespace and name, as far as they could be read.
    pub object: Box<ObjectKey>,
    /// Version of the object, as far as that could be read.
    pub resource_version: Str,
    /// Field, such as `spec.ports[0].port`; empty if the text is not a JSON object.
    pub path: String,
    pub reason: String,
}

impl DecodeError {
    pub(crate) fn of(object: &Value, kind: &Kind, path: &str, reason: &str) -> Self {
        let text = |field: &str| Str::new(object["metadata"][field].as_str().unwrap_or_default());
        Self {
            kind: kind.kind.clone(),
            object: Box::new(ObjectKey {
                namespace: text("namespace"),
                name: text("name"),
            }),
            resource_version: text("resourceVersion"),
            path: if path == "." {
                String::new()
            } else {
                path.to_owned()
            },
            // Values may be quoted: keep log lines short.
            reason: shortened(reason),
        }
    }
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 300;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An object from an API server, not decoded yet. Cheap to clone.
#[derive(Clone)]
pub struct RawObject(Form);

#[derive(Clone)]
enum Form {
    Json(Bytes),
    Value(Arc<Value>),
    Typed(Arc<dyn Any + Send + Sync>, Arc<dyn Fn() -> Value + Send + Sync>),
}

impl RawObject {
    /// From JSON text. A slice of a larger buffer keeps that buffer alive until decoded.
    pub fn from_json(text: Bytes) -> Self {
        Self(Form::Json(text))
    }

    pub fn from_value(value: Arc<Value>) -> Self {
        Self(Form::Value(value))
    }

    /// From a decoded object: [`decode`](Self::decode) into the same type only counts a reference up.
    pub fn from_typed<T: Resource>(object: Arc<T>) -> Self {
        let again = object.clone();
        Self(Form::Typed(
            object,
            Arc::new(move || serde_json::to_value(&*again).unwrap_or_default()),
        ))
    }

    /// The object as `T`, compacted ([`Resource::compact`]).
    ///
    /// # Errors
    ///
    /// [`DecodeError`] naming object and field if the object is not a `T`.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use skep_k8s_types::{RawObject, slim::Service};
    ///
    /// let text = br#"{"metadata": {"namespace": "shop", "name": "web"}, "spec": {"ports": [{"port": "80"}]}}"#;
    /// let error = RawObject::from_json(Bytes::from_static(text)).decode::<Service>().unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     r#"Service shop/web: spec.ports[0].port: invalid type: string "80", expected i32"#
    /// );
    /// ```
    pub fn decode<T: Resource>(&self) -> Result<Arc<T>, DecodeError> {
        let mut object: T = match &self.0 {
            Form::Json(text) => match serde_json::from_slice::<Object<T>>(text) {
                Ok(object) => object.0,
                // The path is only computed after a failure: it costs a third of the speed.
                Err(error) => return Err(explain_json::<T>(text, &error)),
            },
            Form::Value(value) => Self::decode_value(value)?,
            Form::Typed(object, value) => match object.clone().downcast::<T>() {
                Ok(object) => return Ok(object),
                Err(_) => Self::decode_value(&value())?,
            },
        };
        object.compact();
        Ok(Arc::new(object))
    }

    /// A parsed object as `T`, as it is.
    pub(crate) fn decode_value<T: Resource>(value: &Value) -> Result<T, DecodeError> {
        let decoded = Object::<T>::deserialize(value).map(|object| object.0);
        decoded.map_err(
            |error| match serde_path_to_error::deserialize::<_, Object<T>>(value) {
                Err(found) => DecodeError::of(
                    value,
                    &T::kind(),
                    &found.path().to_string(),
                    &found.inner().to_string(),
                ),
                Ok(_) => DecodeError::of(value, &T::kind(), "", &error.to_string()),
            },
        )
    }

    /// The object as a JSON value. A typed object has only the fields of its type.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the text is not JSON.
    pub fn to_value(&self) -> Result<Arc<Value>, DecodeError> {
        match &self.0 {
            Form::Json(text) => serde_json::from_slice(text)
                .map(Arc::new)
                .map_err(|error| DecodeError {
                    kind: Str::const_new("object"),
                    object: Box::default(),
                    resource_version: Str::default(),
                    path: String::new(),
                    reason: shortened(&error.to_string()),
                }),
            Form::Value(value) => Ok(value.clone()),
            Form::Typed(_, value) => Ok(Arc::new(value())),
        }
    }
}

impl fmt::Debug for RawObject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_value() {
            Ok(value) => write!(formatter, "{value}"),
            Err(error) => write!(formatter, "<{error}>"),
        }
    }
}

fn explain_json<T: DeserializeOwned + Resource>(text: &[u8], error: &serde_json::Error) -> DecodeError {
    let value: Value = serde_json::from_slice(text).unwrap_or_default();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    match serde_path_to_error::deserialize::<_, Object<T>>(&mut deserializer) {
        Err(found) => {
            let reason = found.inner().to_string();
            // The position is of no use without the text.
            let reason = reason
                .rsplit_once(" at line ")
                .map_or(reason.as_str(), |(text, _)| text)
                .to_owned();
            DecodeError::of(&value, &T::kind(), &found.path().to_string(), &reason)
        }
        Ok(_) => DecodeError::of(&value, &T::kind(), "", &error.to_string()),
    }
}
