// SPDX-License-Identifier: Apache-2.0

//! What happens to a packet between two ends, and which rules decide.

use serde::{Deserialize, Serialize};
use skep_identity::{NumericIdentity, Reserved};
use skep_policy_model::{
    Direction, Policies, Protocol,
    explain::{Decision, MatchingRule},
    map_state::MapRow,
    rule::{RuleOrigin, Verdict},
};
use utoipa::{IntoParams, ToSchema};

/// A packet.
#[derive(Debug, Clone, Deserialize, IntoParams)]
pub(super) struct Question {
    /// Sender: `endpoint:<id>`, `identity:<id>` or `reserved:<name>`.
    source: String,
    /// Receiver, in the same form.
    destination: String,
    /// Destination port, or ICMP type.
    #[serde(default)]
    port: u16,
    /// Protocol: `TCP` if absent.
    #[serde(default)]
    protocol: Option<String>,
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuestionError {
    #[error("`{0}` is none of endpoint:<id>, identity:<id>, reserved:<name>")]
    End(String),
    #[error("no endpoint {0} has a policy on this node")]
    Endpoint(u16),
    #[error("unknown protocol `{0}`")]
    Protocol(String),
}

/// What happens to a packet at an endpoint of this node.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Explanation {
    /// Endpoint whose policy decides.
    endpoint: u16,
    /// Its identity.
    identity: u32,
    /// `ingress` or `egress`, seen from the endpoint.
    direction: &'static str,
    /// Identity of the other end.
    peer: u32,
    /// Protocol.
    protocol: String,
    /// Destination port.
    port: u16,
    /// `open`, `allow`, `redirect`, `deny` or `drop`.
    decision: &'static str,
    /// Decision as a text.
    text: String,
    /// Entry of the policy map that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<String>,
    /// Authentication that the entry demands.
    #[serde(skip_serializing_if = "Option::is_none")]
    auth: Option<&'static str>,
    /// Rules about this peer and port, deciding ones first.
    rules: Vec<RuleModel>,
    /// Rules that select the endpoint in this direction.
    selecting: Vec<String>,
}

/// A rule about the packet.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
struct RuleModel {
    /// Object and field.
    rule: String,
    /// Selector of the peer.
    peer: String,
    /// `allow`, `deny` or `pass`.
    verdict: &'static str,
    /// Tier.
    tier: u8,
    /// Level: earlier ones win.
    level: u32,
    /// Whether the deciding entry follows from it.
    has_decided: bool,
    /// Text that flows show for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

impl From<&MatchingRule> for RuleModel {
    fn from(rule: &MatchingRule) -> Self {
        Self {
            rule: name(&rule.origin),
            peer: rule.peer.to_string(),
            verdict: match rule.verdict {
                Verdict::Allow => "allow",
                Verdict::Deny => "deny",
                Verdict::Pass => "pass",
            },
            tier: rule.tier.0,
            level: rule.level,
            has_decided: rule.has_decided,
            log: rule.origin.log.as_deref().map(str::to_owned),
        }
    }
}

/// Object and field; of a default its name.
fn name(origin: &RuleOrigin) -> String {
    match (&origin.resource, &*origin.labels) {
        (None, [label]) => format!("default {}", label.rsplit('=').next().unwrap_or_default()),
        _ => origin.to_string(),
    }
}

/// An end: its identity, and its endpoint if it is on this node.
type End = (NumericIdentity, Option<u16>);

fn end(policies: &Policies, text: &str) -> Result<End, QuestionError> {
    let invalid = || QuestionError::End(text.to_owned());
    let (kind, id) = text.split_once(':').ok_or_else(invalid)?;
    let identity = match kind {
        "endpoint" => {
            let id: u16 = id.parse().map_err(|_| invalid())?;
            let found = policies.endpoints().find(|(endpoint, _)| *endpoint == id);
            let (endpoint, identity) = found.ok_or(QuestionError::Endpoint(id))?;
            return Ok((identity, Some(endpoint)));
        }
        "identity" => NumericIdentity::new(id.parse().map_err(|_| invalid())?),
        "reserved" => Reserved::from_name(id).ok_or_else(invalid)?.identity(),
        _ => return Err(invalid()),
    };
    let endpoint = policies.endpoints().find(|(_, known)| *known == identity);
    Ok((identity, endpoint.map(|(endpoint, _)| endpoint)))
}

pub(super) fn explain(policies: &Policies, question: &Question) -> Result<Vec<Explanation>, QuestionError> {
    let source = end(policies, &question.source)?;
    let destination = end(policies, &question.destination)?;
    let protocol = match question.protocol.as_deref() {
        None | Some("") => Protocol::TCP,
        Some(name) => {
            let unknown = || QuestionError::Protocol(name.to_owned());
            Protocol::from_name(name).ok_or_else(unknown)?
        }
    };
    let ends = [
        (source, destination.0, Direction::Egress),
        (destination, source.0, Direction::Ingress),
    ];
    let explained = ends
        .into_iter()
        .filter_map(|((identity, endpoint), peer, direction)| {
            let endpoint = endpoint?;
            let found = policies.explain(endpoint, direction, peer, protocol, question.port)?;
            Some(Explanation {
                endpoint,
                identity: identity.get(),
                direction: direction.name(),
                peer: peer.get(),
                protocol: protocol.to_string(),
                port: question.port,
                decision: match found.decision {
                    Decision::Open => "open",
                    Decision::Allow => "allow",
                    Decision::Redirect(_) => "redirect",
                    Decision::Deny => "deny",
                    Decision::Drop => "drop",
                },
                text: found.decision.to_string(),
                entry: found.row.as_ref().map(entry_text),
                auth: found.auth.map(|auth| auth.kind.name()),
                rules: found.rules.iter().map(RuleModel::from).collect(),
                selecting: found.selecting.iter().map(|origin| name(origin)).collect(),
            })
        });
    Ok(explained.collect())
}

/// `identity 1001, TCP/80/16, allow`.
fn entry_text(row: &MapRow<'_>) -> String {
    let verdict = match row.entry.is_deny {
        true => "deny",
        false => "allow",
    };
    let traffic = match row.key.protocol {
        Protocol::ANY => "any protocol".to_owned(),
        _ => row.key.to_string(),
    };
    match row.identity.get() {
        0 => format!("any identity, {traffic}, {verdict}"),
        identity => format!("identity {identity}, {traffic}, {verdict}"),
    }
}
