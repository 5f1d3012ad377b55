// SPDX-License-Identifier: Apache-2.0

//! Words of random lines, against a reader that goes character by character and a separate expansion.

use proptest::prelude::*;

use crate::Environment;
use crate::line::Line;

/// Words as pieces of text, each quoted or not; `None` without a closing quote.
fn read(line: &str) -> Option<Vec<Vec<(String, bool)>>> {
    let mut words = Vec::new();
    let mut word = Vec::new();
    let mut piece = String::new();
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    loop {
        let next = chars.next();
        match next {
            None | Some(' ' | '\t' | '\r' | '#') if !quoted => {
                if !piece.is_empty() {
                    word.push((std::mem::take(&mut piece), false));
                }
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                if matches!(next, None | Some('#')) {
                    return Some(words);
                }
            }
            None => return None,
            Some('\'') if quoted && chars.peek() == Some(&'\'') => {
                chars.next();
                piece.push('\'');
            }
            Some('\'') => {
                if quoted || !piece.is_empty() {
                    word.push((std::mem::take(&mut piece), quoted));
                }
                quoted = !quoted;
            }
            Some(c) => piece.push(c),
        }
    }
}

/// `$NAME`, `${NAME}` and single special characters, as `os.Expand` of Go has them.
fn expand(text: &str, environment: &Environment) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let is_special = |c: char| "*#$@!?-0123456789".contains(c);
        let name = if let Some(inner) = rest.strip_prefix('{') {
            match inner.split_once('}') {
                Some((name, after)) => {
                    rest = after;
                    name
                }
                None => {
                    rest = inner;
                    ""
                }
            }
        } else if rest.starts_with(is_special) {
            let (name, after) = rest.split_at(1);
            rest = after;
            name
        } else {
            let end = rest
                .find(|c: char| !(c == '_' || c.is_ascii_alphanumeric()))
                .unwrap_or(rest.len());
            if end == 0 {
                out.push('$');
            }
            let (name, after) = rest.split_at(end);
            rest = after;
            name
        };
        out.push_str(match name {
            "/" => "/",
            ":" => ":",
            name => environment.get(name).unwrap_or_default(),
        });
    }
    out + rest
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn are_those_of_a_reader_by_characters(text in "( |\t|\r|#|'|''|\"|\\\\|\\$|\\{|\\}|\\$A|\\$\\{B\\}|\\$\\{/\\}|\\$1|&|\\[a\\]|!|a|é|_|-){0,12}") {
        let mut environment = Environment::new();
        environment.set("A", "1 2");
        environment.set("B", "it's #");
        let line = format!("x {text}");

        let Some(mut words) = read(&line) else {
            prop_assert!(Line::parse(1, &line).is_err());
            return Ok(());
        };
        let in_background = words.len() > 1 && words.last().is_some_and(|word| *word == [("&".to_owned(), false)]);
        if in_background {
            words.pop();
        }
        let parsed = Line::parse(1, &line).unwrap().unwrap();

        prop_assert_eq!(parsed.background, in_background);
        let texts: Vec<String> = parsed.words.iter().map(|word| word.expand(&environment, false)).collect();
        let wanted: Vec<String> = words[1..]
            .iter()
            .map(|word| {
                let pieces = word.iter().map(|(text, quoted)| if *quoted { text.clone() } else { expand(text, &environment) });
                pieces.collect()
            })
            .collect();
        prop_assert_eq!(texts, wanted);
    }
}
