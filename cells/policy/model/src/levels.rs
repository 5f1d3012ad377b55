// SPDX-License-Identifier: Apache-2.0

//! Levels of rules: the places of their tiers and priorities in one order, and precedences in policy maps.

use std::collections::BTreeMap;

use crate::rule::{Tier, Verdict};

/// Levels have 24 bits.
const MAX_LEVEL: u32 = 0x00ff_ffff;

/// Precedence of what a rule of a level says: higher ones win. The low byte is 255 for a deny, 1 for an allow, more for
/// redirects of a stronger listener, 0 for a pass.
pub const fn precedence(level: u32, low: u8) -> u32 {
    (MAX_LEVEL - level) << 8 | low as u32
}

/// The level of a precedence.
pub const fn level(precedence: u32) -> u32 {
    MAX_LEVEL - (precedence >> 8)
}

pub const DENY: u8 = 255;
pub const ALLOW: u8 = 1;
pub const PASS: u8 = 0;

/// Low byte of a redirect to a listener of this priority.
pub const fn redirect(listener_priority: u8) -> u8 {
    match listener_priority {
        0 => 2,
        priority => 255 - priority,
    }
}

/// First and last level of a tier. Behind a pass there is room for the levels of all later tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierRange {
    pub first: u32,
    pub last: u32,
}

/// Rules have more distinct priorities than there are levels, those for passes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoint policy direction has more than 2^24 distinct priorities")]
pub struct TooManyLevels;

/// Levels of the rules of a direction, which are sorted by tier and priority.
pub fn levels(
    rules: &[(Tier, f64, Verdict)],
) -> Result<(Vec<u32>, BTreeMap<Tier, TierRange>), TooManyLevels> {
    let mut priorities: BTreeMap<Tier, Vec<(f64, bool)>> = BTreeMap::new();
    for (tier, priority, verdict) in rules {
        let list = priorities.entry(*tier).or_default();
        let is_pass = *verdict == Verdict::Pass;
        match list.last_mut() {
            #[expect(clippy::float_cmp, reason = "the same number")]
            Some(last) if last.0 == *priority => last.1 |= is_pass,
            _ => list.push((*priority, is_pass)),
        }
    }
    // From the last tier on: how many levels a tier needs, those behind its passes included.
    let mut needs: Vec<(Tier, u64, u64)> = Vec::new();
    let mut below = 0_u64;
    for (tier, list) in priorities.iter().rev() {
        let passes = list.iter().filter(|(_, is_pass)| *is_pass).count() as u64;
        let own = (list.len() as u64).next_multiple_of(10);
        let need = (own + (passes + 1).saturating_mul(below)).next_multiple_of(10);
        needs.push((*tier, need, below));
        below = need;
        if need > u64::from(MAX_LEVEL) {
            return Err(TooManyLevels);
        }
    }
    let mut ranges = BTreeMap::new();
    let mut by_priority = Vec::new();
    let mut base = 0_u64;
    for (tier, need, below) in needs.into_iter().rev() {
        let next = base + need - below;
        let mut level = base;
        for (priority, is_pass) in priorities.get(&tier).into_iter().flatten() {
            by_priority.push((tier, *priority, level));
            level += 1 + if *is_pass { below } else { 0 };
        }
        let as_level = |level: u64| u32::try_from(level).map_err(|_| TooManyLevels);
        let range = TierRange {
            first: as_level(base)?,
            last: as_level(next.saturating_sub(1))?,
        };
        ranges.insert(tier, range);
        base = next;
    }
    if base + below > u64::from(MAX_LEVEL) {
        return Err(TooManyLevels);
    }
    let mut levels = Vec::with_capacity(rules.len());
    let mut found = by_priority.into_iter().peekable();
    for (tier, priority, _) in rules {
        while found.peek().is_some_and(|(t, p, _)| (t, p) != (tier, priority)) {
            found.next();
        }
        let level = found.peek().map_or(MAX_LEVEL.into(), |(.., level)| *level);
        levels.push(u32::try_from(level).map_err(|_| TooManyLevels)?);
    }
    Ok((levels, ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules of a tier: priorities, and whether they hold a pass.
    fn bases(tiers: &[&[(f64, bool)]]) -> Vec<u32> {
        let rules: Vec<_> = tiers
            .iter()
            .enumerate()
            .flat_map(|(tier, list)| {
                list.iter().map(move |(priority, is_pass)| {
                    let verdict = if *is_pass { Verdict::Pass } else { Verdict::Deny };
                    (Tier(u8::try_from(tier).unwrap()), *priority, verdict)
                })
            })
            .collect();
        let (levels, ranges) = levels(&rules).unwrap();
        assert_eq!(levels.len(), rules.len());
        ranges.values().map(|range| range.first).collect()
    }

    #[test]
    fn tiers_start_where_documented() {
        let eleven: Vec<_> = (0..=10).map(|priority| (f64::from(priority), false)).collect();

        assert_eq!(bases(&[&[(0.0, false)]]), [0]);
        assert_eq!(bases(&[&[(0.0, true)], &eleven]), [0, 30]);
        assert_eq!(bases(&[&[(0.0, true)], &[(0.0, false)]]), [0, 20]);
        assert_eq!(bases(&[&[(0.0, false), (1.0, false)], &[(0.0, false)]]), [0, 10]);
        assert_eq!(
            bases(&[&[(0.0, true)], &[(1.0, true)], &[(0.0, false)]]),
            [0, 40, 60]
        );
        assert_eq!(bases(&[&[(0.0, true)], &[], &[(0.0, false)]]), [0, 20]);
        assert_eq!(bases(&[&[], &[], &[(0.0, false)]]), [0]);
    }

    #[test]
    fn priorities_behind_a_pass_leave_room() {
        let rules = [
            (Tier(100), 5.0, Verdict::Pass),
            (Tier(100), 6.0, Verdict::Deny),
            (Tier(200), 0.0, Verdict::Allow),
            (Tier(255), 0.0, Verdict::Allow),
        ];

        assert_eq!(levels(&rules).unwrap().0, [0, 21, 30, 40]);
    }

    #[test]
    fn precedences_are_the_documented_ones() {
        assert_eq!(precedence(0, ALLOW), 0xffff_ff01);
        assert_eq!(precedence(10, redirect(101)), 0xffff_f59a);
        assert_eq!(precedence(1, DENY), 0xffff_feff);
        assert_eq!(redirect(126), 0x81);
    }
}
