// SPDX-License-Identifier: Apache-2.0

//! Content negotiation: what the client accepts, what it sent.

use serde_json::Value;
use skep_k8s_memory::ApiError;

/// The form of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Objects as they are.
    Plain,
    /// A `Table` of this version of its group.
    Table(String),
    /// Only metadata.
    Metadata,
    /// Aggregated discovery of this version of its group.
    Discovery(String),
}

/// What the client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Accept {
    pub(super) form: Form,
    pub(super) yaml: bool,
}

struct MediaType<'a> {
    name: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl MediaType<'_> {
    /// How much the client wants it; 0 is not at all.
    fn quality(&self) -> f32 {
        let quality = self.parameters.iter().find(|(key, _)| *key == "q");
        quality.and_then(|(_, text)| text.parse().ok()).unwrap_or(1.0)
    }
}

fn parse(text: &str) -> MediaType<'_> {
    let mut parts = text.split(';');
    let name = parts.next().unwrap_or_default().trim();
    let parameters = parts
        .filter_map(|p| p.split_once('='))
        .map(|(k, v)| (k.trim(), v.trim()))
        .collect();
    MediaType { name, parameters }
}

impl Accept {
    /// Reads an `Accept` header. `discovery` allows the aggregated form, which other requests do not have.
    pub(super) fn parse(header: &str, discovery: bool) -> Result<Self, ApiError> {
        if header.trim().is_empty() {
            return Ok(Accept {
                form: Form::Plain,
                yaml: false,
            });
        }
        let mut accepted: Vec<MediaType<'_>> = header
            .split(',')
            .map(parse)
            .filter(|media| media.quality() > 0.0)
            .collect();
        // Those that are wanted alike stay in their order.
        accepted.sort_by(|a, b| b.quality().total_cmp(&a.quality()));
        for media in accepted {
            let parameter = |key: &str| {
                media
                    .parameters
                    .iter()
                    .find(|(k, _)| *k == key)
                    .map_or("", |(_, v)| *v)
            };
            let yaml = match media.name {
                "application/json" | "*/*" | "application/*" => false,
                "application/yaml" => true,
                _ => continue,
            };
            let form = match (parameter("as"), parameter("g"), parameter("v")) {
                ("", ..) => Form::Plain,
                ("Table", "meta.k8s.io", version @ ("v1" | "v1beta1")) => Form::Table(version.to_owned()),
                ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", _) => Form::Metadata,
                ("APIGroupDiscoveryList", "apidiscovery.k8s.io", version @ ("v2" | "v2beta1"))
                    if discovery =>
                {
                    Form::Discovery(version.to_owned())
                }
                _ => continue,
            };
            return Ok(Accept { form, yaml });
        }
        Err(ApiError::not_acceptable())
    }
}

/// Reads a body of this content type.
pub(super) fn decode(content_type: &str, body: &[u8]) -> Result<Value, ApiError> {
    match parse(content_type).name {
        ""
        | "application/json"
        | "application/merge-patch+json"
        | "application/json-patch+json"
        | "application/strategic-merge-patch+json" => serde_json::from_slice(body).map_err(|error| {
            ApiError::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
        }),
        "application/yaml" | "application/apply-patch+yaml" => {
            let text = std::str::from_utf8(body)
                .map_err(|_| ApiError::bad_request("error decoding YAML: the body is not UTF-8"))?;
            // YAML contains JSON, and JSON is faster to read.
            if let Ok(value) = serde_json::from_str(text) {
                return Ok(value);
            }
            serde_norway::from_str(text)
                .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))
        }
        _ => Err(ApiError::unsupported_media_type(
            "application/json, application/yaml",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kubectl_accepts() {
        let get = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(
            Accept::parse(get, false).unwrap().form,
            Form::Table("v1".to_owned())
        );
        let discovery =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(
            Accept::parse(discovery, true).unwrap().form,
            Form::Discovery("v2".to_owned())
        );
        assert_eq!(Accept::parse(discovery, false).unwrap().form, Form::Plain);
        let protobuf = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(Accept::parse(protobuf, false).unwrap().form, Form::Plain);
        assert!(Accept::parse("application/yaml", false).unwrap().yaml);
        let preferred = "application/json;q=0.5, application/yaml;q=0.9";
        assert!(Accept::parse(preferred, false).unwrap().yaml);
        assert_eq!(
            Accept::parse("application/json;q=0", false).unwrap_err().code,
            406
        );
        assert_eq!(
            Accept::parse("application/vnd.kubernetes.protobuf", false)
                .unwrap_err()
                .code,
            406
        );
    }
}
