// SPDX-License-Identifier: Apache-2.0

//! Errors as the specification has them: a code, a message, details.

use std::{error::Error, io};

use serde_json::{Value, json};
use skep_base_net::NetError;

/// Codes of the specification, and of the plugin from 100 on.
pub(crate) mod code {
    pub(crate) const VERSION: u32 = 1;
    pub(crate) const ENVIRONMENT: u32 = 4;
    pub(crate) const IO: u32 = 5;
    pub(crate) const DECODE: u32 = 6;
    pub(crate) const CONFIG: u32 = 7;
    pub(crate) const NETNS: u32 = 8;
    pub(crate) const TRY_AGAIN: u32 = 11;
    pub(crate) const UNAVAILABLE: u32 = 50;
    pub(crate) const HEALTHZ: u32 = 100;
    pub(crate) const UNHEALTHY: u32 = 101;
    pub(crate) const INTERNAL: u32 = 999;
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CniError {
    pub(crate) code: u32,
    pub(crate) message: String,
    pub(crate) details: String,
}

impl CniError {
    pub(crate) fn new(code: u32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: String::new(),
        }
    }

    pub(crate) fn detailed(code: u32, message: &str, details: impl Into<String>) -> Self {
        Self {
            details: details.into(),
            ..Self::new(code, message)
        }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(code::INTERNAL, message)
    }

    pub(crate) fn document(&self) -> Value {
        let mut document = json!({"code": self.code, "msg": self.message});
        if !self.details.is_empty() {
            document["details"] = self.details.clone().into();
        }
        document
    }
}

/// Text of a system call's error, without its number: `no such file or directory`.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.to_lowercase()
}

/// Text of what the kernel refused.
pub(crate) fn kernel(error: &NetError) -> String {
    let cause = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    cause.map_or_else(|| error.to_string(), plain)
}
