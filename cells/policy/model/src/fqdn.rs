// SPDX-License-Identifier: Apache-2.0

//! DNS names and patterns of names in policies.
//!
//! `*` stands for characters of one label, a leading `**.` for one or more whole labels, `*` alone for every name.

use std::fmt;

use regex::Regex;

/// Names longer than this are invalid, and so are patterns.
const MAX_LENGTH: usize = 255;
const CHARACTER: &str = "[-a-zA-Z0-9_]";

/// Why a name or pattern is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FqdnError {
    #[error("only one of MatchName or MatchPattern is allowed in an FQDNSelector")]
    Both,
    #[error(
        "Invalid characters in MatchName: \"{0}\". Only 0-9, a-z, A-Z and ., -, _ characters are allowed"
    )]
    Name(String),
    #[error(
        "Invalid characters in MatchPattern: \"{0}\". Only 0-9, a-z, A-Z and ., -, _ and * characters are allowed"
    )]
    Pattern(String),
    #[error("Invalid MatchPattern: \"{0}\". Must be <= 255 characters long.")]
    TooLong(String),
}

/// Names of a rule: one name or a pattern, as written. Of both the name counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FqdnSelector {
    pub match_name: String,
    pub match_pattern: String,
}

impl FqdnSelector {
    pub fn name(name: &str) -> Self {
        Self {
            match_name: name.to_owned(),
            match_pattern: String::new(),
        }
    }

    pub fn pattern(pattern: &str) -> Self {
        Self {
            match_name: String::new(),
            match_pattern: pattern.to_owned(),
        }
    }

    /// Key of the label `fqdn:` that addresses of its names have. That of no name is the root's.
    pub fn label_key(&self) -> &str {
        match (self.match_name.as_str(), self.match_pattern.as_str()) {
            ("", "") => ".",
            ("", pattern) => pattern,
            (name, _) => name,
        }
    }

    /// # Errors
    ///
    /// [`FqdnError`] for both a name and a pattern, characters that no name has, and patterns that are too long.
    pub fn validate(&self) -> Result<(), FqdnError> {
        let (name, pattern) = (&self.match_name, &self.match_pattern);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !name.is_empty() && !pattern.is_empty() {
            return Err(FqdnError::Both);
        }
        if !name.bytes().all(is_name) {
            return Err(FqdnError::Name(name.clone()));
        }
        if !pattern.bytes().all(|byte| is_name(byte) || byte == b'*') {
            return Err(FqdnError::Pattern(pattern.clone()));
        }
        match pattern.len() > MAX_LENGTH {
            true => Err(FqdnError::TooLong(pattern.clone())),
            false => Ok(()),
        }
    }

    /// The expression that names with a final dot in lower case match. Invalid ones match nothing.
    pub fn matcher(&self) -> NameMatcher {
        let text = match self.match_name.is_empty() {
            true => pattern_regex(&self.match_pattern),
            false => pattern_regex(&self.match_name.replace('*', "")),
        };
        NameMatcher(Regex::new(&text).ok())
    }
}

/// The text that selector caches show.
impl fmt::Display for FqdnSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MatchName: {}, MatchPattern: {}",
            self.match_name, self.match_pattern
        )
    }
}

/// Matches names.
#[derive(Clone, Debug)]
pub struct NameMatcher(Option<Regex>);

impl NameMatcher {
    /// Whether a name matches, in any case and with or without the final dot.
    pub fn matches(&self, name: &str) -> bool {
        self.0
            .as_ref()
            .is_some_and(|regex| regex.is_match(&canonical_name(name)))
    }
}

/// A name in lower case with a final dot.
pub fn canonical_name(name: &str) -> String {
    let mut name = name.trim().to_ascii_lowercase();
    if !name.ends_with('.') {
        name.push('.');
    }
    name
}

/// The expression of a pattern or name.
///
/// ```
/// use skep_policy_model::fqdn::pattern_regex;
///
/// assert_eq!(pattern_regex("*.example.com"), "^[-a-zA-Z0-9_]*[.]example[.]com[.]$");
/// assert_eq!(pattern_regex("**.example.com"), "^([-a-zA-Z0-9_]+([.][-a-zA-Z0-9_]+){0,})[.]example[.]com[.]$");
/// ```
pub fn pattern_regex(pattern: &str) -> String {
    let pattern = pattern.trim().to_ascii_lowercase();
    if is_star(&pattern) {
        return format!("(^({CHARACTER}+[.])+$)|(^[.]$)");
    }
    let pattern = canonical_name(&pattern);
    let stars = pattern.len() - pattern.trim_start_matches('*').len();
    let mut regex = String::from("^");
    let mut rest = pattern.as_str();
    if stars >= 2 && pattern[stars..].starts_with('.') {
        regex.push_str(&format!("({CHARACTER}+([.]{CHARACTER}+){{0,}})[.]"));
        rest = &pattern[stars + 1..];
    }
    let mut after_star = false;
    for character in rest.chars() {
        match character {
            '*' if after_star => {}
            '*' => regex.push_str(&format!("{CHARACTER}*")),
            '.' => regex.push_str("[.]"),
            other => regex.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
        after_star = character == '*';
    }
    regex.push('$');
    regex
}

/// Whether a pattern stands for every name: stars, and perhaps a final dot.
pub fn is_star(pattern: &str) -> bool {
    let stars = pattern.strip_suffix('.').unwrap_or(pattern);
    !stars.is_empty() && stars.bytes().all(|byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_documented_names() {
        for (pattern, accepted, rejected) in [
            ("cilium.io.", &["cilium.io."][..], &["", "sub.cilium.io."][..]),
            ("*.cilium.io.", &["sub.cilium.io."], &["cilium.io.", "a.ci.io."]),
            (
                "*.ci*.io.",
                &["a.cilium.io.", "a.ci.io.", "a.ciliumandmore.io."],
                &["cilium.io."],
            ),
            ("*.ci**.io.", &["a.cilium.io.", "a.ci.io."], &["cilium.io."]),
            (
                "*",
                &[".", "io.", "a.b.c.", "_foo._tcp.cilium.io."],
                &["", ".io.", "cilium.io"],
            ),
            ("**", &[".", "io."], &["cilium.io"]),
            (".", &["."], &[".io."]),
            ("*.*.cilium.io.", &["_foo._tcp.cilium.io."], &[""]),
            (
                "**.cilium.io.",
                &["t.cilium.io.", "t.app.new.cilium.io."],
                &["cilium.io.", "a.ciliumandmore.io."],
            ),
            ("***.cilium.io.", &["t.cilium.io."], &["cilium.io."]),
            (
                "**.*.cilium.io.",
                &["_foo._tcp.cilium.io.", "_a._b._tcp.cilium.io."],
                &["cilium.io.", "foo.cilium.io."],
            ),
            (
                "**.ci*.io.",
                &["foo.bar.cilium.io.", "a.ci.io."],
                &["cilium.io.", "test.calium.io."],
            ),
            (
                "sub*.cilium.io",
                &["sub.cilium.io.", "subdomain.cilium.io."],
                &["a.cilium.io."],
            ),
            ("*cilium.io", &["cilium.io.", "subcilium.io."], &["a.cilium.io."]),
        ] {
            let regex = Regex::new(&pattern_regex(pattern)).unwrap();
            for name in accepted {
                assert!(regex.is_match(name), "{pattern} must match {name}");
            }
            for name in rejected {
                assert!(!regex.is_match(name), "{pattern} must not match {name}");
            }
        }
    }
}
