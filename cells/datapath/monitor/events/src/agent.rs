// SPDX-License-Identifier: Apache-2.0

//! What happens in the agent.

use crate::{
    gob::{self, GobError, Stream, Value},
    message_type::MessageType,
};

/// Id of the notification's type in streams that are written here.
const TYPE_ID: i64 = 65;

/// The definition of the notification's type: `Type` uint, `Text` string.
const DEFINITION: &[u8] = &[
    0x2b, 0xff, 0x81, 0x03, 0x01, 0x01, 0x0b, b'A', b'g', b'e', b'n', b't', b'N', b'o', b't', b'i', b'f',
    b'y', 0x01, 0xff, 0x82, 0x00, 0x01, 0x02, 0x01, 0x04, b'T', b'y', b'p', b'e', 0x01, 0x06, 0x00, 0x01,
    0x04, b'T', b'e', b'x', b't', 0x01, 0x0c, 0x00, 0x00, 0x00,
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentNotify {
    /// What: one of [`notification`].
    pub kind: u32,
    pub text: String,
}

pub mod notification {
    pub const AGENT_STARTED: u32 = 2;
    /// The datapath of an endpoint was built.
    pub const ENDPOINT_REGENERATED: u32 = 3;
    pub const ENDPOINT_REGENERATION_FAILED: u32 = 4;
    /// Rules of policies were added or replaced.
    pub const POLICY_UPDATED: u32 = 5;
    pub const POLICY_DELETED: u32 = 6;
    pub const ENDPOINT_CREATED: u32 = 7;
    pub const ENDPOINT_DELETED: u32 = 8;
    /// An address got an identity, or another one.
    pub const IPCACHE_UPSERTED: u32 = 9;
    /// An address has no identity any more.
    pub const IPCACHE_DELETED: u32 = 10;
}

impl AgentNotify {
    /// Decodes what follows the type of the event.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, GobError> {
        let value = Stream::first(bytes)?;
        if !matches!(value, Value::Struct(_)) {
            return Err(GobError::Unexpected("a notification"));
        }
        let kind = u32::try_from(value.uint("Type"));
        Ok(Self {
            kind: kind.map_err(|_| GobError::Unexpected("a type of 32 bits"))?,
            text: value.text("Text"),
        })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.text.len() + 24);
        gob::write_int(&mut body, TYPE_ID);
        if self.kind > 0 {
            body.push(1);
            gob::write_uint(&mut body, self.kind.into());
        }
        if !self.text.is_empty() {
            body.push(if self.kind > 0 { 1 } else { 2 });
            gob::write_bytes(&mut body, self.text.as_bytes());
        }
        body.push(0);
        let mut bytes = vec![MessageType::Agent as u8];
        bytes.extend_from_slice(DEFINITION);
        bytes.extend(gob::message(&body));
        bytes
    }

    /// What happened, as text: the number if it has no name.
    pub fn name(&self) -> String {
        let name = match self.kind {
            0 => "unspecified",
            1 => "Message",
            notification::AGENT_STARTED => "Cilium agent started",
            notification::ENDPOINT_REGENERATED => "Endpoint regenerated",
            notification::ENDPOINT_REGENERATION_FAILED => "Failed endpoint regeneration",
            notification::POLICY_UPDATED => "Policy updated",
            notification::POLICY_DELETED => "Policy deleted",
            notification::ENDPOINT_CREATED => "Endpoint created",
            notification::ENDPOINT_DELETED => "Endpoint deleted",
            notification::IPCACHE_UPSERTED => "IPCache entry upserted",
            notification::IPCACHE_DELETED => "IPCache entry deleted",
            other => return other.to_string(),
        };
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;

    #[test]
    fn notifications_have_the_bytes_of_cilium() {
        let notify = AgentNotify {
            kind: notification::POLICY_UPDATED,
            text: r#"{"rule_count":1}"#.to_owned(),
        };

        let bytes = notify.to_bytes();

        let expected = format!(
            "822bff810301010b4167656e744e6f7469667901ff82000102010454797065010600010454657874010c00000017ff8201050110{}00",
            hex::encode(&notify.text)
        );
        assert_eq!(hex::encode(&bytes), expected);
        assert_eq!(Event::decode(&bytes), Ok(Event::Agent(notify.clone())));
        assert_eq!(notify.name(), "Policy updated");
    }

    #[test]
    fn empty_fields_are_left_out() {
        for (kind, text) in [(0, ""), (0, "x"), (200, "")] {
            let notify = AgentNotify {
                kind,
                text: text.to_owned(),
            };
            assert_eq!(Event::decode(&notify.to_bytes()), Ok(Event::Agent(notify)));
        }
    }
}
