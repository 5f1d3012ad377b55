// SPDX-License-Identifier: Apache-2.0

//! One line of a script: prefix, conditions, command, arguments.

use crate::Environment;
use crate::regexp;

/// Characters between words.
const SEPARATORS: [char; 3] = [' ', '\t', '\r'];

/// What a line expects of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Want {
    #[default]
    Success,
    /// `!`
    Failure,
    /// `?`
    Either,
}

/// A guard in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) want: bool,
    pub(crate) tag: String,
}

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fragment {
    text: String,
    quoted: bool,
}

/// A word as it stands in the line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Word(Vec<Fragment>);

impl Word {
    /// The text without expansion.
    pub(crate) fn raw(&self) -> String {
        self.0.iter().map(|fragment| fragment.text.as_str()).collect()
    }

    /// The text with variables replaced outside of quotes; values are taken literally in a regular expression.
    pub(crate) fn expand(&self, environment: &Environment, is_regexp: bool) -> String {
        let mut out = String::new();
        for fragment in &self.0 {
            if fragment.quoted {
                out.push_str(&fragment.text);
            } else if is_regexp {
                out.push_str(&environment.expand_with(&fragment.text, regexp::quote));
            } else {
                out.push_str(&environment.expand(&fragment.text));
            }
        }
        out
    }
}

/// A parsed line that holds a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) raw: String,
    pub(crate) want: Want,
    pub(crate) retries: bool,
    pub(crate) guards: Vec<Guard>,
    pub(crate) name: String,
    pub(crate) words: Vec<Word>,
    pub(crate) background: bool,
}

/// Why a line cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A second prefix.
    #[error("duplicated '!', '?', '*' or '!*' token")]
    DuplicatePrefix,
    /// `[]` or `[!]`.
    #[error("empty condition")]
    EmptyCondition,
    /// A prefix or a condition without a command.
    #[error("missing command")]
    MissingCommand,
    /// No closing quote.
    #[error("unterminated quoted argument")]
    UnterminatedQuote,
}

impl Line {
    /// Parses a line; `None` if it holds no command.
    pub(crate) fn parse(number: usize, raw: &str) -> Result<Option<Self>, ParseError> {
        let mut line = Self {
            number,
            raw: raw.to_owned(),
            ..Self::default()
        };
        let mut has_prefix = false;
        for word in words(raw)? {
            line.add(word, &mut has_prefix)?;
        }
        if line.name.is_empty() {
            if has_prefix || !line.guards.is_empty() || !line.words.is_empty() {
                return Err(ParseError::MissingCommand);
            }
            return Ok(None);
        }
        if line.words.last().is_some_and(|word| word.unquoted() == Some("&")) {
            line.words.pop();
            line.background = true;
        }
        Ok(Some(line))
    }

    fn add(&mut self, word: Word, has_prefix: &mut bool) -> Result<(), ParseError> {
        let text = match word.unquoted() {
            Some(text) if self.name.is_empty() => text,
            _ => {
                self.words.push(word);
                return Ok(());
            }
        };
        let prefix = match text {
            "!" => Some((Want::Failure, false)),
            "?" => Some((Want::Either, false)),
            "*" => Some((Want::Success, true)),
            "!*" => Some((Want::Failure, true)),
            _ => None,
        };
        if let Some((want, retries)) = prefix {
            if std::mem::replace(has_prefix, true) {
                return Err(ParseError::DuplicatePrefix);
            }
            (self.want, self.retries) = (want, retries);
        } else if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            let inner = inner.trim();
            let (want, tag) = match inner.strip_prefix('!') {
                Some(tag) => (false, tag.trim()),
                None => (true, inner),
            };
            if tag.is_empty() {
                return Err(ParseError::EmptyCondition);
            }
            self.guards.push(Guard {
                want,
                tag: tag.to_owned(),
            });
        } else {
            self.name = text.to_owned();
        }
        Ok(())
    }
}

impl Word {
    /// The text of a word without any quotes.
    fn unquoted(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Fragment { text, quoted: false }] => Some(text),
            _ => None,
        }
    }

    fn push(&mut self, text: &str, quoted: bool) {
        self.0.push(Fragment {
            text: text.to_owned(),
            quoted,
        });
    }
}

/// Splits a line into words.
fn words(line: &str) -> Result<Vec<Word>, ParseError> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start_matches(SEPARATORS);
        if rest.is_empty() || rest.starts_with('#') {
            return Ok(words);
        }
        let mut word = Word::default();
        rest = take_word(rest, &mut word)?;
        words.push(word);
    }
}

/// Reads one word from the start of `rest` and returns what follows.
fn take_word<'a>(mut rest: &'a str, word: &mut Word) -> Result<&'a str, ParseError> {
    loop {
        let end = rest
            .find(|c| SEPARATORS.contains(&c) || c == '#' || c == '\'')
            .unwrap_or(rest.len());
        if end > 0 {
            word.push(&rest[..end], false);
        }
        rest = &rest[end..];
        let Some(mut quoted) = rest.strip_prefix('\'') else {
            return Ok(rest);
        };
        let mut text = String::new();
        loop {
            let end = quoted.find('\'').ok_or(ParseError::UnterminatedQuote)?;
            text.push_str(&quoted[..end]);
            quoted = &quoted[end + 1..];
            match quoted.strip_prefix('\'') {
                Some(after) => {
                    text.push('\'');
                    quoted = after;
                }
                None => break,
            }
        }
        word.push(&text, true);
        rest = quoted;
    }
}

/// Arguments in a form that would be parsed as these arguments.
pub(crate) fn quote_args(args: &[String]) -> String {
    let quoted: Vec<String> = args
        .iter()
        .map(|arg| {
            if arg.contains(SEPARATORS) || arg.contains(['\'', '#']) {
                format!("'{}'", arg.replace('\'', "''"))
            } else {
                arg.clone()
            }
        })
        .collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Vec<String> {
        let mut environment = Environment::new();
        environment.set("A", "1 2");
        environment.set("IP", "10.0.0.1");
        let line = Line::parse(1, &format!("x {text}")).unwrap().unwrap();
        line.words
            .iter()
            .map(|word| word.expand(&environment, false))
            .collect()
    }

    #[test]
    fn quotes_group_and_join() {
        assert_eq!(expanded("'b c'"), ["b c"]);
        assert_eq!(expanded("a'b c'd"), ["ab cd"]);
        assert_eq!(expanded("it''s"), ["its"]);
        assert_eq!(expanded("'it''s'"), ["it's"]);
        assert_eq!(expanded("''"), [""]);
        assert_eq!(expanded("\"a b\" \\n"), ["\"a", "b\"", "\\n"]);
    }

    #[test]
    fn a_hash_ends_the_line_anywhere() {
        assert_eq!(expanded("a#b c"), ["a"]);
        assert_eq!(expanded("'a#b' c # d"), ["a#b", "c"]);
        assert_eq!(Line::parse(1, "  # only").unwrap(), None);
    }

    #[test]
    fn values_are_not_split_again() {
        assert_eq!(expanded("$A ${A}x '$A' ${NONE}"), ["1 2", "1 2x", "$A", ""]);
        assert_eq!(expanded("a${/}b${:}c"), ["a/b:c"]);
    }

    #[test]
    fn values_are_literal_in_a_regexp() {
        let mut environment = Environment::new();
        environment.set("IP", "10.0.0.1");
        let line = Line::parse(1, "stdout ^$IP'$'").unwrap().unwrap();

        assert_eq!(line.words[0].expand(&environment, true), r"^10\.0\.0\.1$");
    }

    #[test]
    fn prefixes_and_conditions_precede_the_command() {
        let line = Line::parse(7, "[!short] !* [root] cmp a '&' &").unwrap().unwrap();

        assert_eq!(
            (line.want, line.retries, line.background),
            (Want::Failure, true, true)
        );
        let guards: Vec<_> = line
            .guards
            .iter()
            .map(|guard| (guard.want, guard.tag.as_str()))
            .collect();
        assert_eq!(guards, [(false, "short"), (true, "root")]);
        assert_eq!(line.name, "cmp");
        assert_eq!(line.words.len(), 2);
    }

    #[test]
    fn parse_errors_say_what_is_wrong() {
        let error = |text: &str| Line::parse(1, text).unwrap_err().to_string();

        assert_eq!(error("! ? x"), "duplicated '!', '?', '*' or '!*' token");
        assert_eq!(error("[] x"), "empty condition");
        assert_eq!(error("[!] x"), "empty condition");
        assert_eq!(error("*"), "missing command");
        assert_eq!(error("[root]"), "missing command");
        assert_eq!(error("x 'a"), "unterminated quoted argument");
    }

    #[test]
    fn reported_arguments_can_be_pasted_back() {
        let args: Vec<String> = ["a", "b c", "it's", "#x", ""].map(str::to_owned).into();

        assert_eq!(quote_args(&args), "a 'b c' 'it''s' '#x' ");
    }
}
