// SPDX-License-Identifier: Apache-2.0

//! How long a script may run: until a deadline, or until it is cancelled.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why a script was ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Interruption {
    /// The script exceeded its deadline.
    #[error("context deadline exceeded")]
    DeadlineExceeded,
    /// The script was cancelled: its runner stops, or the shell's client hung up.
    #[error("context canceled")]
    Canceled,
}

/// The time in which a script may run. Cheap to clone; all clones end together.
#[derive(Debug, Clone, Default)]
pub struct Lifetime {
    token: CancellationToken,
    deadline: Option<Instant>,
}

impl Lifetime {
    /// Ends only by [`Lifetime::cancel`].
    pub fn unlimited() -> Self {
        Self::default()
    }

    /// Ends at `deadline` at the latest.
    pub fn until(deadline: Instant) -> Self {
        Self {
            token: CancellationToken::new(),
            deadline: Some(deadline),
        }
    }

    /// Ends when `token` is cancelled, and at `deadline` if one is given.
    pub fn new(token: CancellationToken, deadline: Option<Instant>) -> Self {
        Self { token, deadline }
    }

    /// The end by time, if there is one.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The token which ends it early.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Ends it now.
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// A lifetime which ends with this one, or alone.
    pub fn child(&self) -> Self {
        Self {
            token: self.token.child_token(),
            deadline: self.deadline,
        }
    }

    /// The same without a deadline.
    pub(crate) fn without_deadline(&self) -> Self {
        Self {
            token: self.token.clone(),
            deadline: None,
        }
    }

    /// The same with a deadline that is later by `duration`.
    pub(crate) fn extended(&self, duration: Duration) -> Self {
        Self {
            token: self.token.clone(),
            deadline: self.deadline.map(|deadline| deadline + duration),
        }
    }

    /// Why it is over, or `None` while it is not.
    pub fn state(&self) -> Option<Interruption> {
        if self.token.is_cancelled() {
            Some(Interruption::Canceled)
        } else if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            Some(Interruption::DeadlineExceeded)
        } else {
            None
        }
    }

    /// Waits for the end. The future does not borrow the lifetime.
    pub fn interrupted(&self) -> impl Future<Output = Interruption> + Send + 'static {
        let token = self.token.clone();
        let deadline = self.deadline;
        async move {
            let Some(deadline) = deadline else {
                token.cancelled().await;
                return Interruption::Canceled;
            };
            tokio::select! {
                biased;
                () = token.cancelled() => Interruption::Canceled,
                () = tokio::time::sleep_until(deadline) => Interruption::DeadlineExceeded,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_may_stand_still() {
        let lifetime = Lifetime::until(Instant::now() + Duration::from_secs(1));
        let untimed = lifetime.without_deadline();

        tokio::time::advance(Duration::from_secs(5)).await;
        let extended = lifetime.extended(Duration::from_secs(5));

        assert_eq!(lifetime.state(), Some(Interruption::DeadlineExceeded));
        assert_eq!((untimed.state(), extended.state()), (None, None));
        lifetime.cancel();
        assert_eq!(untimed.state(), Some(Interruption::Canceled));
        assert_eq!(extended.state(), Some(Interruption::Canceled));
    }
}
