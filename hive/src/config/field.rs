// SPDX-License-Identifier: Apache-2.0

//! Description of one setting.

use std::borrow::Cow;

use super::ConfigValue;

/// One setting of a config struct. Made by the derive macro.
///
/// ```
/// use hive::config::Field;
/// const FIELD: Field = Field::new::<bool>("enable-cache", "enable_cache").doc("Keep entries. Costs memory.");
/// assert_eq!(FIELD.help(), "Keep entries.");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Flag without dashes in front; also the key in files.
    pub(crate) flag: &'static str,
    /// Name of the field in the struct.
    pub(crate) rust_name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) is_bool: bool,
    pub(crate) is_many: bool,
    pub(crate) env: Option<&'static str>,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) deprecated: Option<&'static str>,
    pub(crate) hidden: bool,
    pub(crate) secret: bool,
}

impl Field {
    /// A setting of type `T`.
    #[must_use]
    pub const fn new<T: ConfigValue>(flag: &'static str, rust_name: &'static str) -> Self {
        Self {
            flag,
            rust_name,
            doc: "",
            kind: T::KIND,
            is_bool: T::IS_BOOL,
            is_many: T::IS_MANY,
            env: None,
            aliases: &[],
            deprecated: None,
            hidden: false,
            secret: false,
        }
    }

    /// Documentation; its first sentence is the help of the flag.
    #[must_use]
    pub const fn doc(mut self, doc: &'static str) -> Self {
        self.doc = doc;
        self
    }

    /// Another environment variable than the one made of prefix and flag.
    #[must_use]
    pub const fn env(mut self, name: &'static str) -> Self {
        self.env = Some(name);
        self
    }

    /// Older names, which still work and are reported.
    #[must_use]
    pub const fn aliases(mut self, names: &'static [&'static str]) -> Self {
        self.aliases = names;
        self
    }

    /// What to use instead; using the setting is reported.
    #[must_use]
    pub const fn deprecated(mut self, note: &'static str) -> Self {
        self.deprecated = Some(note);
        self
    }

    /// Not shown in help.
    #[must_use]
    pub const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// Never printed.
    #[must_use]
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// The flag, without dashes in front.
    #[must_use]
    pub const fn flag(&self) -> &'static str {
        self.flag
    }

    /// What kind of value is expected: `bool`, `duration`, `strings`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// First sentence of the documentation.
    #[must_use]
    pub fn help(&self) -> &'static str {
        let mut end = self.doc.find("\n\n").unwrap_or(self.doc.len());
        if let Some(stop) = self.doc[..end]
            .match_indices(['.', '!', '?'])
            .find_map(|(at, _)| {
                let rest = &self.doc[at + 1..end];
                (rest.starts_with(char::is_whitespace) && !abbreviation(&self.doc[..=at])).then_some(at)
            })
        {
            end = stop + 1;
        }
        &self.doc[..end]
    }

    /// All documentation.
    #[must_use]
    pub const fn docs(&self) -> &'static str {
        self.doc
    }
}

fn abbreviation(text: &str) -> bool {
    ["e.g.", "i.e.", "etc.", "vs.", "cf."]
        .iter()
        .any(|short| text.ends_with(short))
}

/// One spelling for a key: lower case, dashes.
pub(crate) fn normalize(key: &str) -> String {
    key.chars()
        .map(|c| if c == '_' { '-' } else { c.to_ascii_lowercase() })
        .collect()
}

/// The same, of keys that mostly have that spelling.
pub(crate) fn normalized(key: Cow<'_, str>) -> Cow<'_, str> {
    if key.bytes().any(|byte| byte == b'_' || byte.is_ascii_uppercase()) {
        Cow::Owned(normalize(&key))
    } else {
        key
    }
}
