// SPDX-License-Identifier: Apache-2.0

//! From text to a template.

use serde_json::{Number, Value};

use super::{Filter, Node, Operand, Operator, Path, Step, TemplateError};

/// What ends a list of nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The end of the text.
    Text,
    /// `{end}`.
    Range,
}

/// Ranges within ranges at most.
const DEEPEST: usize = 32;

struct Parser<'a> {
    chars: &'a [char],
    at: usize,
    /// Ranges around what is next.
    depth: usize,
}

/// Parses a template.
pub(super) fn template(text: &str) -> Result<Vec<Node>, TemplateError> {
    let text = match text.starts_with(['.', '$', '[', '@']) {
        true => format!("{{{text}}}"),
        false => text.to_owned(),
    };
    let chars: Vec<char> = text.chars().collect();
    let mut parser = Parser {
        chars: &chars,
        at: 0,
        depth: 0,
    };
    if chars.is_empty() {
        return Err(parser.error("it is empty"));
    }
    parser.nodes(Until::Text)
}

fn is_name(char: char) -> bool {
    char.is_alphanumeric() || "_-/:".contains(char)
}

impl Parser<'_> {
    fn error(&self, reason: &'static str) -> TemplateError {
        TemplateError {
            at: self.at + 1,
            reason,
        }
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn rest_starts_with(&self, text: &str) -> bool {
        let rest = &self.chars[self.at.min(self.chars.len())..];
        text.chars()
            .enumerate()
            .all(|(at, char)| rest.get(at) == Some(&char))
    }

    fn take(&mut self, text: &str) -> bool {
        let is_next = self.rest_starts_with(text);
        if is_next {
            self.at += text.chars().count();
        }
        is_next
    }

    fn expect(&mut self, text: &str, reason: &'static str) -> Result<(), TemplateError> {
        match self.take(text) {
            true => Ok(()),
            false => Err(self.error(reason)),
        }
    }

    fn skip_spaces(&mut self) {
        while self.peek() == Some(' ') {
            self.at += 1;
        }
    }

    fn nodes(&mut self, until: Until) -> Result<Vec<Node>, TemplateError> {
        let mut nodes = Vec::new();
        loop {
            let mut text = String::new();
            while let Some(char) = self.peek().filter(|char| *char != '{') {
                text.push(char);
                self.at += 1;
            }
            if !text.is_empty() {
                nodes.push(Node::Text(text));
            }
            if self.peek().is_none() {
                return match until {
                    Until::Text => Ok(nodes),
                    Until::Range => Err(self.error("`{end}` is missing")),
                };
            }
            if self.rest_starts_with("{end}") {
                if until == Until::Text {
                    return Err(self.error("`{end}` without `{range}`"));
                }
                self.take("{end}");
                return Ok(nodes);
            }
            self.take("{");
            nodes.push(self.action()?);
        }
    }

    /// What is in braces.
    fn action(&mut self) -> Result<Node, TemplateError> {
        self.skip_spaces();
        let node = match self.peek() {
            Some('"' | '\'') => Node::Text(self.quoted()?),
            _ if self.take("range ") => {
                self.skip_spaces();
                let path = self.path()?;
                self.close()?;
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err(self.error("too many ranges within each other"));
                }
                let inner = self.nodes(Until::Range)?;
                self.depth -= 1;
                return Ok(Node::Range(path, inner));
            }
            _ => Node::Path(self.path()?),
        };
        self.close()?;
        Ok(node)
    }

    fn close(&mut self) -> Result<(), TemplateError> {
        self.skip_spaces();
        self.expect("}", "`}` is missing")
    }

    /// A string, whose quotes are next.
    fn quoted(&mut self) -> Result<String, TemplateError> {
        let quote = self.peek();
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(char) = self.peek() else {
                return Err(self.error("the string does not end"));
            };
            self.at += 1;
            match char {
                _ if Some(char) == quote => return Ok(text),
                '\\' => {
                    let escaped = self.peek().ok_or_else(|| self.error("the string does not end"))?;
                    self.at += 1;
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        other => other,
                    });
                }
                char => text.push(char),
            }
        }
    }

    fn path(&mut self) -> Result<Path, TemplateError> {
        let is_absolute = self.take("$");
        let starts = is_absolute || self.take("@") || matches!(self.peek(), Some('.' | '['));
        if !starts {
            return Err(self.error("expected a path, which begins with `.`, `[`, `$` or `@`"));
        }
        let mut steps = Vec::new();
        loop {
            match self.peek() {
                Some('.') => {
                    self.at += 1;
                    if self.take(".") {
                        steps.push(Step::Descend);
                    }
                    if self.take("*") {
                        steps.push(Step::Wildcard);
                    } else if let Some(name) = self.name() {
                        steps.push(Step::Fields(vec![name]));
                    } else if !matches!(self.peek(), Some('[' | '}' | ' ')) {
                        return Err(self.error("expected the name of a field"));
                    }
                }
                Some('[') => {
                    self.at += 1;
                    steps.push(self.subscript()?);
                }
                _ => return Ok(Path { is_absolute, steps }),
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        while let Some(char) = self.peek() {
            if char == '\\' {
                name.push(*self.chars.get(self.at + 1)?);
                self.at += 2;
            } else if is_name(char) {
                name.push(char);
                self.at += 1;
            } else {
                break;
            }
        }
        (!name.is_empty()).then_some(name)
    }

    /// What follows a `[`.
    fn subscript(&mut self) -> Result<Step, TemplateError> {
        self.skip_spaces();
        let step = match self.peek() {
            Some('*') => {
                self.at += 1;
                Step::Wildcard
            }
            Some('?') => self.filter()?,
            Some('\'' | '"') => Step::Fields(self.list(Self::quoted)?),
            Some(':') => self.slice(None)?,
            Some(char) if char == '-' || char.is_ascii_digit() => {
                let first = self.integer()?;
                self.skip_spaces();
                match self.peek() {
                    Some(':') => self.slice(Some(first))?,
                    Some(',') => {
                        self.at += 1;
                        self.skip_spaces();
                        let mut indices = vec![first];
                        indices.extend(self.list(Self::integer)?);
                        Step::Indices(indices)
                    }
                    _ => Step::Indices(vec![first]),
                }
            }
            _ => return Err(self.error("expected an index, a name in quotes, `*`, `:` or `?(`")),
        };
        self.skip_spaces();
        self.expect("]", "`]` is missing")?;
        Ok(step)
    }

    fn list<T>(
        &mut self,
        item: impl Fn(&mut Self) -> Result<T, TemplateError>,
    ) -> Result<Vec<T>, TemplateError> {
        let mut items = vec![item(self)?];
        loop {
            self.skip_spaces();
            if !self.take(",") {
                return Ok(items);
            }
            self.skip_spaces();
            if matches!(self.peek(), None | Some(']')) {
                return Err(self.error("something is missing behind the comma"));
            }
            items.push(item(self)?);
        }
    }

    fn integer(&mut self) -> Result<i64, TemplateError> {
        let mut text = String::new();
        if self.take("-") {
            text.push('-');
        }
        while let Some(char) = self.peek().filter(char::is_ascii_digit) {
            text.push(char);
            self.at += 1;
        }
        text.parse().map_err(|_| self.error("expected an index"))
    }

    /// The rest of a slice, from its first colon on.
    fn slice(&mut self, start: Option<i64>) -> Result<Step, TemplateError> {
        let mut parts = [None, None];
        for part in &mut parts {
            if !self.take(":") {
                break;
            }
            if !matches!(self.peek(), Some(']' | ':')) {
                *part = Some(self.integer()?);
            }
        }
        let [end, step] = parts;
        let step = usize::try_from(step.unwrap_or(1)).ok().filter(|step| *step > 0);
        Ok(Step::Slice {
            start,
            end,
            step: step.ok_or_else(|| self.error("the step of a slice must be more than 0"))?,
        })
    }

    fn filter(&mut self) -> Result<Step, TemplateError> {
        self.expect("?(", "expected `?(`")?;
        self.skip_spaces();
        let left = self.operand()?;
        self.skip_spaces();
        let right = if self.peek() == Some(')') {
            None
        } else {
            let operator = self.operator()?;
            self.skip_spaces();
            Some((operator, self.operand()?))
        };
        self.skip_spaces();
        self.expect(")", "`)` is missing")?;
        Ok(Step::Filter(Filter { left, right }))
    }

    fn operator(&mut self) -> Result<Operator, TemplateError> {
        // Those of two characters first.
        let operators = [
            ("==", Operator::Equal),
            ("!=", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let found = operators.into_iter().find(|(text, _)| self.take(text));
        found.map_or_else(
            || Err(self.error("expected `==`, `!=`, `<`, `<=`, `>` or `>=`")),
            |(_, operator)| Ok(operator),
        )
    }

    fn operand(&mut self) -> Result<Operand, TemplateError> {
        match self.peek() {
            Some('\'' | '"') => self.quoted().map(Value::String).map(Operand::Literal),
            Some('@' | '$' | '.' | '[') => self.path().map(Operand::Path),
            _ => self.literal(),
        }
    }

    fn literal(&mut self) -> Result<Operand, TemplateError> {
        let start = self.at;
        let mut text = String::new();
        let is_part = |char: &char| char.is_alphanumeric() || "+-.".contains(*char);
        while let Some(char) = self.peek().filter(is_part) {
            text.push(char);
            self.at += 1;
        }
        let value = match &*text {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            "null" => Some(Value::Null),
            number => number.parse::<Number>().ok().map(Value::Number),
        };
        value.map(Operand::Literal).ok_or_else(|| {
            self.at = start;
            self.error("expected a path, a string in quotes, a number, true, false or null")
        })
    }
}
