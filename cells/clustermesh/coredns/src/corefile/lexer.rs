// SPDX-License-Identifier: Apache-2.0

//! The words of a Corefile: separated by white space, in quotes if they contain some; `#` starts a comment.
//! `{` at the end of a line opens a block, `}` alone on a line closes it.

use std::borrow::Cow;

/// Why a text is not a Corefile.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// A block is closed that was not opened.
    #[error("line {line}: unexpected `}}`")]
    Closed {
        /// The line.
        line: usize,
    },
    /// A block is not closed.
    #[error("the last block is not closed")]
    Open,
    /// A quote is not closed.
    #[error("line {line}: the quote is not closed")]
    Quote {
        /// Where it starts.
        line: usize,
    },
}

/// A word.
#[derive(Debug)]
pub(super) struct Token<'a> {
    /// Without quotes.
    pub(super) text: Cow<'a, str>,
    is_quoted: bool,
    /// Its line, from 1.
    pub(super) line: usize,
    /// Where it starts and ends in the text.
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Token<'_> {
    pub(super) fn is_open(&self) -> bool {
        self.text == "{" && !self.is_quoted
    }

    fn is_close(&self) -> bool {
        self.text == "}" && !self.is_quoted
    }
}

/// A line with at least one word, other than one that closes a block.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// In how many blocks it is.
    pub(super) depth: usize,
    pub(super) tokens: Vec<Token<'a>>,
}

/// The lines of a Corefile.
pub(super) fn lines(text: &str) -> Result<Vec<Line<'_>>, SyntaxError> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut depth = 0_usize;
    let mut last_line = 0;
    for token in tokens(text)? {
        if token.is_close() {
            depth = depth
                .checked_sub(1)
                .ok_or(SyntaxError::Closed { line: token.line })?;
            // What follows on the same line is none of the line that was closed.
            last_line = 0;
            continue;
        }
        let (line, is_open) = (token.line, token.is_open());
        match lines.last_mut() {
            Some(current) if line == last_line => current.tokens.push(token),
            _ => lines.push(Line {
                depth,
                tokens: vec![token],
            }),
        }
        last_line = if is_open { 0 } else { line };
        depth += usize::from(is_open);
    }
    if depth == 0 {
        Ok(lines)
    } else {
        Err(SyntaxError::Open)
    }
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>, SyntaxError> {
    let mut tokens = Vec::new();
    let mut rest = text.char_indices().peekable();
    let mut line = 1;
    while let Some((start, first)) = rest.next() {
        match first {
            '\n' => line += 1,
            '#' => while rest.next_if(|(_, character)| *character != '\n').is_some() {},
            '"' => {
                let opened = line;
                let mut word = String::new();
                loop {
                    let (_, character) = rest.next().ok_or(SyntaxError::Quote { line: opened })?;
                    match character {
                        '"' => break,
                        // Only a quote is escaped.
                        '\\' if rest.next_if(|(_, next)| *next == '"').is_some() => word.push('"'),
                        _ => word.push(character),
                    }
                    line += usize::from(character == '\n');
                }
                tokens.push(Token {
                    text: Cow::Owned(word),
                    is_quoted: true,
                    line: opened,
                    start,
                    end: rest.peek().map_or(text.len(), |(end, _)| *end),
                });
            }
            _ if first.is_whitespace() => {}
            _ => {
                while rest
                    .next_if(|(_, character)| !character.is_whitespace())
                    .is_some()
                {}
                let end = rest.peek().map_or(text.len(), |(end, _)| *end);
                tokens.push(Token {
                    text: Cow::Borrowed(&text[start..end]),
                    is_quoted: false,
                    line,
                    start,
                    end,
                });
            }
        }
    }
    Ok(tokens)
}
