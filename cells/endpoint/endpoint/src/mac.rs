// SPDX-License-Identifier: Apache-2.0

//! Hardware addresses of interfaces.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An Ethernet address. All zero: the interface has none.
///
/// ```
/// use skep_endpoint::Mac;
///
/// let mac: Mac = "6a:0b:00:11:22:33".parse()?;
/// assert_eq!(mac.to_string(), "6a:0b:00:11:22:33");
/// assert_eq!("".parse::<Mac>()?, Mac::default());
/// assert!("6a:0b".parse::<Mac>().is_err());
/// assert!("+a:0b:00:11:22:33".parse::<Mac>().is_err());
/// # Ok::<(), skep_endpoint::MacError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

/// The text is not an Ethernet address: six bytes in hexadecimal, separated by colons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an Ethernet address (six bytes such as 6a:0b:00:11:22:33)")]
pub struct MacError {
    pub text: String,
}

impl Mac {
    /// The bytes as fields of maps have them: two bytes follow that are zero.
    pub(crate) const fn padded(self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.0;
        [a, b, c, d, e, f, 0, 0]
    }
}

impl FromStr for Mac {
    type Err = MacError;

    /// Parses six bytes; no text is no address.
    fn from_str(text: &str) -> Result<Self, MacError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let failed = || MacError {
            text: text.to_owned(),
        };
        let byte = |part: &str| {
            // A sign would be parsed as well.
            let is_byte = part.len() <= 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            let byte = u8::from_str_radix(part, 16).ok();
            byte.filter(|_| is_byte).ok_or_else(failed)
        };
        let bytes: Vec<u8> = text.split(':').map(byte).collect::<Result<_, _>>()?;
        bytes.try_into().map(Self).map_err(|_| failed())
    }
}

/// Six bytes separated by colons; nothing for no address.
impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Serialize for Mac {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
