// SPDX-License-Identifier: Apache-2.0

//! Rounds of writes: nodes that are due together, and a pause after them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::recorder::IpamRecorder;

/// Shortest time between two rounds.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Rounds {
    recorder: Arc<dyn IpamRecorder>,
    queued: BTreeSet<String>,
    /// When the first of the queued nodes was queued.
    since: Option<Instant>,
    round: Option<Round>,
    next: Instant,
}

struct Round {
    /// Nodes that were queued when it began.
    left: BTreeSet<String>,
    nodes: usize,
    waited: Duration,
    began: Instant,
}

impl Rounds {
    pub(crate) fn new(recorder: Arc<dyn IpamRecorder>) -> Self {
        Self {
            recorder,
            queued: BTreeSet::new(),
            since: None,
            round: None,
            next: Instant::now(),
        }
    }

    pub(crate) fn queued(&mut self, node: &str) {
        self.recorder.queued();
        self.queued.insert(node.to_owned());
        self.since.get_or_insert_with(Instant::now);
    }

    /// Time until the next node may be assigned.
    pub(crate) fn wait(&self) -> Duration {
        match self.round {
            Some(_) => Duration::ZERO,
            None => self.next.saturating_duration_since(Instant::now()),
        }
    }

    pub(crate) fn begun(&mut self, node: &str) {
        let round = self.round.get_or_insert_with(|| Round {
            left: std::mem::take(&mut self.queued),
            nodes: 0,
            waited: self.since.take().map_or(Duration::ZERO, |since| since.elapsed()),
            began: Instant::now(),
        });
        self.queued.remove(node);
        round.nodes += 1;
    }

    pub(crate) fn finished(&mut self, node: &str, is_unanswered: bool) {
        let is_over = |round: &mut Round| {
            round.left.remove(node);
            round.left.is_empty() || is_unanswered
        };
        let Some(mut round) = self.round.take_if(is_over) else {
            return;
        };
        if !round.left.is_empty() {
            self.queued.append(&mut round.left);
            self.since.get_or_insert_with(Instant::now);
        }
        self.recorder
            .round(round.nodes, round.waited, round.began.elapsed());
        self.next = Instant::now() + PAUSE;
    }
}
