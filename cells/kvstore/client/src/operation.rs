// SPDX-License-Identifier: Apache-2.0

//! Kinds of operations, and who measures them.

use std::fmt;
use std::time::Duration;

/// What a client does with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Get,
    /// Reads the keys of a prefix.
    List,
    Put,
    /// Writes a key unless it has that value already.
    PutIfDifferent,
    /// Writes a key unless it exists.
    Create,
    Delete,
    /// Deletes the keys of a prefix.
    DeletePrefix,
    Batch,
    Watch,
    Lock,
    Unlock,
    AcquireLease,
    KeepAlive,
    RevokeLease,
}

impl Operation {
    /// Value of the label `kind` of metrics, as Cilium has it.
    pub fn kind(self, if_locked: bool) -> &'static str {
        match (self, if_locked) {
            (Self::Get, false) => "Get",
            (Self::Get, true) => "GetIfLocked",
            (Self::List, false) => "ListPrefix",
            (Self::List, true) => "ListPrefixIfLocked",
            (Self::Put, false) => "Update",
            (Self::Put, true) => "UpdateIfLocked",
            (Self::PutIfDifferent, false) => "UpdateIfDifferent",
            (Self::PutIfDifferent, true) => "UpdateIfDifferentIfLocked",
            (Self::Create, false) => "CreateOnly",
            (Self::Create, true) => "CreateOnlyIfLocked",
            (Self::Delete, false) => "Delete",
            (Self::Delete, true) => "DeleteIfLocked",
            (Self::DeletePrefix, _) => "DeletePrefix",
            (Self::Batch, _) => "Batch",
            (Self::Watch, _) => "Watch",
            (Self::Lock, _) => "Lock",
            (Self::Unlock, _) => "Unlock",
            (Self::AcquireLease, _) => "AcquireLease",
            (Self::KeepAlive, _) => "KeepAlive",
            (Self::RevokeLease, _) => "RevokeLease",
        }
    }

    /// Value of the label `action` of metrics: `read`, `set` or `delete`.
    pub fn action(self) -> &'static str {
        match self {
            Self::Get | Self::List | Self::Watch => "read",
            Self::Delete | Self::DeletePrefix | Self::Unlock | Self::RevokeLease => "delete",
            Self::Put
            | Self::PutIfDifferent
            | Self::Create
            | Self::Batch
            | Self::Lock
            | Self::AcquireLease
            | Self::KeepAlive => "set",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Put | Self::PutIfDifferent => "write",
            Self::Create => "create",
            Self::Delete => "delete",
            Self::DeletePrefix => "delete prefix",
            Self::Batch => "write keys from",
            Self::Watch => "watch",
            Self::Lock => "lock",
            Self::Unlock => "unlock",
            Self::AcquireLease => "acquire a lease for",
            Self::KeepAlive => "renew lease",
            Self::RevokeLease => "revoke lease",
        })
    }
}

/// One operation that was done, or failed.
#[derive(Clone, Copy, Debug)]
pub struct OperationRecord<'a> {
    pub client: &'a str,
    pub operation: Operation,
    pub if_locked: bool,
    pub key: &'a str,
    pub is_success: bool,
    /// How long the store took, without the wait for the rate limit.
    pub took: Duration,
}

/// Measures what a client does, and its limiter, which has its name. All methods return at once.
pub trait Recorder: skep_base_limiter::Recorder {
    fn operation(&self, record: &OperationRecord<'_>) {
        let _ = record;
    }

    /// An event of a watch waited for its consumer. `action` is `create`, `modify`, `delete` or `listDone`.
    fn event(&self, prefix: &str, action: &'static str, waited: Duration) {
        let _ = (prefix, action, waited);
    }

    /// A quorum check failed. `reason` is `lock timeout` or `no event received`.
    fn quorum_error(&self, reason: &'static str) {
        let _ = reason;
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecorder;

impl skep_base_limiter::Recorder for NoRecorder {}

impl Recorder for NoRecorder {}
