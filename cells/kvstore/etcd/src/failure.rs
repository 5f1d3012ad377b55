// SPDX-License-Identifier: Apache-2.0

//! What errors of etcd and of the transport mean.

use std::error::Error as _;
use std::sync::Arc;

use skep_kvstore_client::{BackendError, Cause, LeaseId, Revision};
use tonic::{Code, Status};

use crate::connector::ConnectError;

/// What a request was about, for its errors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct About {
    pub(crate) revision: Revision,
    pub(crate) lease: LeaseId,
}

/// What went wrong at one endpoint.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: BackendError,
    /// Whether another endpoint may do better.
    pub(crate) is_endpoint: bool,
    /// Whether the request was not sent.
    pub(crate) is_unsent: bool,
}

impl Failure {
    pub(crate) fn of(error: etcd_client::Error, endpoint: &str, about: About) -> Self {
        match error {
            etcd_client::Error::GRpcStatus(status) => Self::of_status(status, endpoint, about),
            // A renewal of a lease that the server does not know.
            etcd_client::Error::LeaseKeepAliveError(reason) if reason.contains("not found") => {
                Self::answer(BackendError::LeaseNotFound { lease: about.lease })
            }
            etcd_client::Error::InvalidArgs(reason) => Self::answer(BackendError::Invalid { reason }),
            error => Self {
                is_unsent: is_connect_error(&error),
                ..Self::unavailable(endpoint, Arc::new(error))
            },
        }
    }

    fn of_status(status: Status, endpoint: &str, about: About) -> Self {
        let message = status.message();
        let says = |part: &str| message.contains(part);
        let error = match status.code() {
            _ if says("lease not found") => BackendError::LeaseNotFound { lease: about.lease },
            _ if says("has been compacted") => BackendError::Compacted {
                requested: about.revision,
                oldest: Revision::NONE,
            },
            _ if says("is a future revision") => BackendError::FutureRevision {
                requested: about.revision,
            },
            _ if says("database space exceeded") => BackendError::NoSpace,
            _ if says("no leader") => {
                return Self {
                    error: BackendError::NoLeader,
                    is_endpoint: true,
                    is_unsent: false,
                };
            }
            Code::PermissionDenied | Code::Unauthenticated => BackendError::Denied {
                reason: message.to_owned(),
            },
            Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition | Code::NotFound => {
                // Authentication is refused with this code as well.
                if says("authentication") || says("user name is empty") || says("auth token") {
                    BackendError::Denied {
                        reason: message.to_owned(),
                    }
                } else {
                    BackendError::Invalid {
                        reason: message.to_owned(),
                    }
                }
            }
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => {
                return Self {
                    is_unsent: is_connect_error(&status),
                    ..Self::unavailable(endpoint, cause_of(status))
                };
            }
            // The transport reports connections that break as unknown errors with a source.
            Code::Unknown | Code::Internal if status.source().is_some() => {
                return Self {
                    is_unsent: is_connect_error(&status),
                    ..Self::unavailable(endpoint, cause_of(status))
                };
            }
            code => BackendError::Failed {
                code: format!("{code:?}"),
                reason: message.to_owned(),
            },
        };
        Self::answer(error)
    }

    /// The store has answered: another endpoint would say the same.
    pub(crate) fn answer(error: BackendError) -> Self {
        Self {
            error,
            is_endpoint: false,
            is_unsent: false,
        }
    }

    pub(crate) fn unavailable(endpoint: &str, cause: Cause) -> Self {
        Self {
            error: BackendError::Unavailable {
                endpoints: endpoint.to_owned(),
                cause,
            },
            is_endpoint: true,
            is_unsent: false,
        }
    }
}

/// Why an endpoint has not answered, without what the transport wraps around it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Reason(String);

/// The text of a status contains that of all its causes: the innermost one is enough, or how connecting failed.
fn cause_of(status: Status) -> Cause {
    let mut inner = status.source();
    while let Some(error) = inner {
        if error.is::<ConnectError>() || error.source().is_none() {
            return Arc::new(Reason(hive::error_chain(error)));
        }
        inner = error.source();
    }
    Arc::new(Reason(status.message().to_owned()))
}

/// Whether no connection could be made, so that nothing was sent.
fn is_connect_error(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<ConnectError>() {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(status: Status) -> &'static str {
        let about = About {
            revision: Revision(7),
            lease: LeaseId(9),
        };
        Failure::of(etcd_client::Error::GRpcStatus(status), "http://a:1", about)
            .error
            .reason()
    }

    #[test]
    fn of_an_endpoint_that_cannot_be_reached_the_cause_alone_is_told() {
        let connect = ConnectError::Tcp {
            address: ([10, 0, 0, 1], 2379).into(),
            cause: std::io::Error::other("refused"),
        };
        let wrapped = Status::from_error(Box::new(connect));
        for (status, expected) in [
            (wrapped, "cannot connect to 10.0.0.1:2379: refused"),
            (
                Status::unavailable("etcdserver: request timed out"),
                "etcdserver: request timed out",
            ),
        ] {
            assert_eq!(cause_of(status).to_string(), expected);
        }
    }

    #[test]
    fn what_etcd_says_has_a_meaning() {
        for (status, expected) in [
            (
                Status::not_found("etcdserver: requested lease not found"),
                "lease-not-found",
            ),
            (
                Status::out_of_range("etcdserver: mvcc: required revision has been compacted"),
                "compacted",
            ),
            (
                Status::out_of_range("etcdserver: mvcc: required revision is a future revision"),
                "future-revision",
            ),
            (
                Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
                "no-space",
            ),
            (Status::unavailable("etcdserver: no leader"), "no-leader"),
            (
                Status::permission_denied("etcdserver: permission denied"),
                "denied",
            ),
            (
                Status::unauthenticated("etcdserver: invalid auth token"),
                "denied",
            ),
            (
                Status::invalid_argument("etcdserver: authentication failed, invalid user ID or password"),
                "denied",
            ),
            (
                Status::invalid_argument("etcdserver: request is too large"),
                "invalid",
            ),
            (
                Status::unavailable("etcdserver: request timed out"),
                "unavailable",
            ),
            (Status::internal("etcdserver: oops"), "failed"),
        ] {
            let text = status.message().to_owned();
            assert_eq!(reason(status), expected, "{text}");
        }
    }
}
