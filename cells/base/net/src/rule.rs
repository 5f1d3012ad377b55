// SPDX-License-Identifier: Apache-2.0

//! Rules: which tables of routes are looked up.

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::RouteProtocol,
    rule::{RuleAction, RuleAttribute, RuleMessage},
};

use crate::{CREATE, EXCLUSIVE, NetError, Netlink};

/// `RT_TABLE_LOCAL`.
const LOCAL_TABLE: u8 = 255;

/// Priority of a rule; 0 without one.
fn priority(rule: &RuleMessage) -> u32 {
    let found = rule.attributes.iter().find_map(|attribute| match attribute {
        RuleAttribute::Priority(priority) => Some(*priority),
        _ => None,
    });
    found.unwrap_or_default()
}

/// Whether a rule looks up the table of local addresses for all packets.
fn is_local(rule: &RuleMessage) -> bool {
    let header = &rule.header;
    let is_plain = rule.attributes.iter().all(|attribute| {
        matches!(
            attribute,
            RuleAttribute::Priority(_)
                | RuleAttribute::Table(_)
                | RuleAttribute::Protocol(_)
                | RuleAttribute::SuppressPrefixLen(u32::MAX)
        )
    });
    let is_whole = header.src_len == 0 && header.dst_len == 0 && header.tos == 0;
    is_plain && is_whole && header.action == RuleAction::ToTable && header.table == LOCAL_TABLE
}

/// A rule by which packets with a mark look up a table of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkRule {
    pub priority: u32,
    pub mark: u32,
    /// Bits of marks that are compared.
    pub mask: u32,
    pub table: u32,
}

impl MarkRule {
    fn attributes(&self) -> Vec<RuleAttribute> {
        vec![
            RuleAttribute::Priority(self.priority),
            RuleAttribute::FwMark(self.mark),
            RuleAttribute::FwMask(self.mask),
            RuleAttribute::Table(self.table),
        ]
    }

    fn is(&self, rule: &RuleMessage) -> bool {
        self.attributes()
            .iter()
            .all(|attribute| rule.attributes.contains(attribute))
    }
}

impl Netlink {
    /// Adds a rule. Returns whether it was missing.
    pub fn add_mark_rule(&self, family: AddressFamily, wanted: &MarkRule) -> Result<bool, NetError> {
        let mut rule = RuleMessage::default();
        rule.header.family = family;
        let listed = self.list(RouteNetlinkMessage::GetRule(rule.clone()), "list rules")?;
        let is_there = |message: &RouteNetlinkMessage| matches!(message, RouteNetlinkMessage::NewRule(rule) if wanted.is(rule));
        if listed.iter().any(is_there) {
            return Ok(false);
        }
        rule.header.action = RuleAction::ToTable;
        rule.attributes = wanted.attributes();
        let what = format_args!("add the rule of mark {:#x}", wanted.mark);
        self.change(RouteNetlinkMessage::NewRule(rule), CREATE | EXCLUSIVE, what)?;
        Ok(true)
    }

    /// Moves the rule that looks up local addresses to a priority: rules before it see packets to this node, too. Returns
    /// whether it was elsewhere.
    pub fn move_local_rule(&self, family: AddressFamily, to: u32) -> Result<bool, NetError> {
        let mut rule = RuleMessage::default();
        rule.header.family = family;
        let listed = self.list(RouteNetlinkMessage::GetRule(rule.clone()), "list rules")?;
        let there: Vec<u32> = listed
            .iter()
            .filter_map(|message| match message {
                RouteNetlinkMessage::NewRule(rule) if is_local(rule) => Some(priority(rule)),
                _ => None,
            })
            .collect();
        rule.header.table = LOCAL_TABLE;
        rule.header.action = RuleAction::ToTable;
        if !there.contains(&to) {
            let mut new = rule.clone();
            new.attributes = vec![
                RuleAttribute::Priority(to),
                RuleAttribute::Protocol(RouteProtocol::Kernel),
            ];
            let what = format_args!("add the rule of local addresses with priority {to}");
            self.change(RouteNetlinkMessage::NewRule(new), CREATE | EXCLUSIVE, what)?;
        }
        // Without a priority the kernel takes the first one.
        let is_elsewhere = there.contains(&0) && to != 0;
        if is_elsewhere {
            let what = "delete the first rule of local addresses";
            self.change(RouteNetlinkMessage::DelRule(rule), 0, what)?;
        }
        Ok(is_elsewhere)
    }
}
