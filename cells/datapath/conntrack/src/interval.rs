// SPDX-License-Identifier: Apache-2.0

//! Time until the next pass, by how much the last one removed.

use std::time::Duration;

use crate::Config;

const FIRST: Duration = Duration::from_secs(5 * 60);
const SHORTEST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);

/// A pass that removed more than this part of a map came late.
const MUCH: f64 = 0.25;
/// A pass that removed less came early.
const LITTLE: f64 = 0.05;

#[derive(Debug)]
pub(crate) struct Interval {
    fixed: Option<Duration>,
    longest: Duration,
    current: Duration,
}

impl Interval {
    pub(crate) fn new(config: &Config) -> Self {
        let set = |time: Duration| Some(time).filter(|time| !time.is_zero());
        let fixed = set(config.interval);
        let longest = set(config.max_interval).unwrap_or(LONGEST);
        Self {
            fixed,
            longest,
            current: fixed.unwrap_or(FIRST.min(longest)),
        }
    }

    /// Time between the last pass and the next one.
    pub(crate) const fn current(&self) -> Duration {
        self.current
    }

    /// After a pass, `passed` after the one before it (`None` for the first), that removed this part of what a map can hold:
    /// of the map where it was most.
    pub(crate) fn adapt(&mut self, passed: Option<Duration>, removed: f64) {
        if self.fixed.is_some() {
            return;
        }
        let expected = self.current;
        let removed = match passed {
            // It would have been more, had the pass come when it was due.
            Some(passed) if passed < expected && !passed.is_zero() => {
                removed * (expected.as_secs_f64() / passed.as_secs_f64())
            }
            _ => removed,
        };
        let next = if removed > MUCH {
            expected.mul_f64(1.0 - removed.min(0.9)).max(SHORTEST)
        } else if removed > 0.0 && removed < LITTLE {
            expected.mul_f64(1.5).min(LONGEST)
        } else {
            expected
        };
        self.current = Duration::from_secs_f64(next.as_secs_f64().round()).min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(interval: u64, max_interval: u64) -> Config {
        Config {
            interval: Duration::from_secs(interval),
            max_interval: Duration::from_secs(max_interval),
        }
    }

    fn seconds(interval: &Interval) -> u64 {
        interval.current().as_secs()
    }

    #[test]
    fn much_to_remove_shortens_the_interval() {
        let mut interval = Interval::new(&config(0, 0));
        assert_eq!(seconds(&interval), 300);

        interval.adapt(None, 0.4);
        assert_eq!(seconds(&interval), 180);
        interval.adapt(Some(Duration::from_secs(180)), 0.25);
        assert_eq!(seconds(&interval), 180, "as much as it may be");
        interval.adapt(Some(Duration::from_secs(180)), 1.0);
        assert_eq!(seconds(&interval), 18);
        interval.adapt(Some(Duration::from_secs(18)), 1.0);
        assert_eq!(seconds(&interval), 10, "the shortest");
    }

    #[test]
    fn little_to_remove_makes_it_longer() {
        let mut interval = Interval::new(&config(0, 0));

        interval.adapt(None, 0.01);
        assert_eq!(seconds(&interval), 450);
        interval.adapt(Some(Duration::from_secs(450)), 0.0);
        assert_eq!(seconds(&interval), 450, "nothing says nothing");
        interval.adapt(Some(Duration::from_secs(450)), 0.05);
        assert_eq!(seconds(&interval), 450);
        for _ in 0..20 {
            let passed = interval.current();
            interval.adapt(Some(passed), 0.049);
        }
        assert_eq!(interval.current(), LONGEST);
    }

    #[test]
    fn passes_that_come_early_count_for_more() {
        let mut interval = Interval::new(&config(0, 0));

        // A tenth in a third of the time.
        interval.adapt(Some(Duration::from_secs(100)), 0.1);
        assert_eq!(seconds(&interval), 210);
        // Late ones count as they are.
        interval.adapt(Some(Duration::from_secs(1000)), 0.1);
        assert_eq!(seconds(&interval), 210);
    }

    #[test]
    fn settings_fix_the_interval_or_its_end() {
        let mut fixed = Interval::new(&config(30, 0));
        fixed.adapt(Some(Duration::from_secs(30)), 0.9);
        assert_eq!(seconds(&fixed), 30);

        let mut capped = Interval::new(&config(0, 60));
        assert_eq!(seconds(&capped), 60);
        capped.adapt(Some(Duration::from_secs(60)), 0.01);
        assert_eq!(seconds(&capped), 60);
    }
}
