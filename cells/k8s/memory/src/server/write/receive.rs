// SPDX-License-Identifier: Apache-2.0

//! Decoding of what a client sent.

use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::Kind;
use crate::object;
use crate::schema::{Shape, decode};
use crate::server::options::{FieldValidation, WriteOptions};
use crate::server::{ApiServer, crd, schema};

impl ApiServer {
    /// Decodes what a client sent.
    pub(super) fn receive(
        &self,
        kind: &Kind,
        object: &mut Value,
        options: &WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let refuse = |why: String| {
            ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {why}",
                kind.kind,
                kind.gvr.version.as_str(),
                kind.kind
            ))
        };
        let (sent_kind, api_version) = (
            object::text(object, &["kind"]).to_owned(),
            object::text(object, &["apiVersion"]).to_owned(),
        );
        if !object.is_object() {
            return Err(refuse("the body is not an object".to_owned()));
        }
        if !api_version.is_empty() && api_version != kind.api_version() {
            return Err(ApiError::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({})",
                kind.api_version()
            )));
        }
        if !sent_kind.is_empty() && sent_kind != kind.kind {
            return Err(ApiError::bad_request(format!(
                "{sent_kind} in version {:?} cannot be handled as a {}: converting ({sent_kind}) to ({}): unknown conversion",
                kind.gvr.version.as_str(),
                kind.kind,
                kind.kind
            )));
        }
        let taken = object.take();
        *object = object::with_type(taken, &kind.api_version(), &kind.kind);
        if !self.is_real() {
            return Ok(());
        }
        let mut unknown = Vec::new();
        let meta = Shape::Named("meta.v1.ObjectMeta");
        let shape = if matches!(kind.shape, Shape::Named(_)) {
            &kind.shape
        } else {
            &Shape::Any
        };
        let decoded = decode(shape, object, &kind.kind).and_then(|decoded| {
            unknown = decoded.unknown;
            if let (None, Some(metadata)) = (shape.object(), object.get_mut("metadata")) {
                let decoded = decode(&meta, metadata, "ObjectMeta")?;
                unknown.extend(
                    decoded
                        .unknown
                        .into_iter()
                        .map(|field| format!("metadata.{field}")),
                );
            }
            Ok(())
        });
        decoded.map_err(|problem| refuse(problem.to_string()))?;
        if let Some(custom) = &kind.custom {
            unknown.extend(schema::prune(&custom.schema, object));
        }
        warnings.extend(crd::unheeded(kind, object));
        if unknown.is_empty() || options.validation == FieldValidation::Ignore {
            return Ok(());
        }
        let texts = unknown.iter().map(|field| format!("unknown field {field:?}"));
        if options.validation == FieldValidation::Strict {
            let list: Vec<String> = texts.collect();
            return Err(refuse(format!("strict decoding error: {}", list.join(", "))));
        }
        warnings.extend(texts);
        Ok(())
    }
}
