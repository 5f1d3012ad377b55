// SPDX-License-Identifier: Apache-2.0

//! Compact text and closed sets of words.

/// Short text: 24 bytes, longer values are on the heap.
pub type Str = compact_str::CompactString;

/// An enum over the words that the Kubernetes API knows for a field. Words it does not know are kept,
/// so that they survive a round trip and can be named in errors.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub enum $name {
            /// Field absent or empty.
            #[default]
            Unset,
            $($(#[$vdoc])* $variant,)*
            /// A word that is not defined for this field.
            Other(Box<str>),
        }

        impl $name {
            /// The word as on the wire; empty when unset.
            pub fn as_str(&self) -> &str {
                match self {
                    Self::Unset => "",
                    $(Self::$variant => $text,)*
                    Self::Other(text) => text,
                }
            }

            /// Whether the field is absent.
            pub fn is_unset(&self) -> bool {
                matches!(self, Self::Unset)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    "" => Self::Unset,
                    $($text => Self::$variant,)*
                    other => Self::Other(other.into()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Word;

                impl serde::de::Visitor<'_> for Word {
                    type Value = $name;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        formatter.write_str("a string")
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        Ok($name::from(text))
                    }
                }

                deserializer.deserialize_str(Word)
            }
        }
    };
}

pub(super) use words;

words! {
    /// Transport protocol of a port. Unset means TCP to Kubernetes.
    Protocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
        /// SCTP.
        Sctp = "SCTP",
    }
}
