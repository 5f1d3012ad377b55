// SPDX-License-Identifier: Apache-2.0

//! Environment variables of a script, in the order in which they were last set, and their expansion in texts.

/// Variables of a script.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: Vec<(String, String)>,
}

impl Environment {
    /// No variables.
    pub fn new() -> Self {
        Self::default()
    }

    /// The variables of this process, which must be valid UTF-8 to be taken over.
    pub fn of_process() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { variables }
    }

    /// Sets a variable; it becomes the last one.
    ///
    /// ```
    /// let mut env = hive_script::Environment::new();
    /// env.set("A", "1");
    /// env.set("B", "2");
    /// env.set("A", "3");
    /// assert_eq!(env.iter().collect::<Vec<_>>(), [("B", "2"), ("A", "3")]);
    /// ```
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        self.variables.retain(|(known, _)| *known != name);
        self.variables.push((name, value));
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// All variables in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Replaces `$NAME` and `${NAME}` by values; unknown names by nothing. A name is letters, digits and `_`, or one
    /// special character. `${/}` and `${:}` are the separators of paths and of lists.
    ///
    /// ```
    /// let mut env = hive_script::Environment::new();
    /// env.set("ADDR", "10.0.0.1");
    /// assert_eq!(env.expand("${ADDR}:80 $NONE${/}x"), "10.0.0.1:80 /x");
    /// ```
    pub fn expand(&self, text: &str) -> String {
        self.expand_with(text, str::to_owned)
    }

    /// [`Environment::expand`] with every value passed through `quote`.
    pub(crate) fn expand_with(&self, text: &str, quote: impl Fn(&str) -> String) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            out.push_str(&rest[..dollar]);
            let after = &rest[dollar + 1..];
            if after.is_empty() {
                out.push('$');
                rest = after;
                continue;
            }
            let (name, used) = variable_name(after);
            match name {
                // Go keeps a `$` that no name follows.
                Some("") if used == 0 => out.push('$'),
                Some("/") => out.push_str(&quote("/")),
                Some(":") => out.push_str(&quote(":")),
                Some(name) => out.push_str(&quote(self.get(name).unwrap_or_default())),
                None => {}
            }
            rest = &after[used..];
        }
        out.push_str(rest);
        out
    }
}

/// The name at the start of `text` (what follows a `$`) and how many bytes it takes. `None` swallows bad syntax.
fn variable_name(text: &str) -> (Option<&str>, usize) {
    let bytes = text.as_bytes();
    if bytes[0] == b'{' {
        if bytes.len() > 2 && is_special(bytes[1]) && bytes[2] == b'}' {
            return (Some(&text[1..2]), 3);
        }
        return match text.find('}') {
            Some(1) => (None, 2),
            Some(end) => (Some(&text[1..end]), end + 1),
            None => (None, 1),
        };
    }
    if is_special(bytes[0]) {
        return (Some(&text[..1]), 1);
    }
    let end = bytes
        .iter()
        .position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'_'))
        .unwrap_or(bytes.len());
    (Some(&text[..end]), end)
}

/// Characters which are a name on their own, as for the shell's special parameters.
fn is_special(byte: u8) -> bool {
    matches!(byte, b'*' | b'#' | b'$' | b'@' | b'!' | b'?' | b'-' | b'0'..=b'9')
}
