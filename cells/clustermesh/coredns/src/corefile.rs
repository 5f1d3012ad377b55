// SPDX-License-Identifier: Apache-2.0

//! The change of a Corefile.
//!
//! In each server block with plugin `kubernetes` for the zone of the cluster, the plugin gets the zone of the cluster set, and
//! the option `multicluster` with it. Everything else stays byte for byte: comments, order, white space.

mod lexer;

use std::borrow::Cow;

use lexer::{Token, lines};

pub use lexer::SyntaxError;

/// Why a Corefile cannot be changed. Change it by hand, as the documentation of CoreDNS describes for plugin `kubernetes`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CorefileError {
    /// It is not a Corefile.
    #[error("cannot read the Corefile")]
    Syntax(#[from] SyntaxError),
    /// The names of the cluster are answered by something else.
    #[error("the Corefile has no plugin `kubernetes` for zone `{zone}`")]
    NoPlugin {
        /// Zone of the cluster.
        zone: String,
    },
    /// Queries for the zone do not reach the plugin.
    #[error(
        "server block `{block}` in line {line} of the Corefile does not serve zone `{zone}`: add the zone to the block"
    )]
    NotServed {
        /// Names of the server block.
        block: String,
        /// Where it starts.
        line: usize,
        /// Zone of the cluster set.
        zone: String,
    },
}

/// Adds the zone of the cluster set to a Corefile. Returns `None` if it has all that is needed.
///
/// ```
/// use skep_mcsapi_coredns::corefile::add_clusterset;
///
/// let corefile = ".:53 {\n    kubernetes cluster.local {\n        pods insecure\n    }\n}\n";
/// let changed = add_clusterset(corefile, "cluster.local", "clusterset.local")?;
/// assert_eq!(
///     changed.as_deref(),
///     Some(".:53 {\n    kubernetes cluster.local clusterset.local {\n        multicluster clusterset.local\n        pods insecure\n    }\n}\n")
/// );
/// assert_eq!(add_clusterset(&changed.unwrap(), "cluster.local", "clusterset.local")?, None);
/// # Ok::<(), skep_mcsapi_coredns::corefile::CorefileError>(())
/// ```
///
/// # Errors
///
/// [`CorefileError`].
pub fn add_clusterset(
    corefile: &str,
    cluster: &str,
    clusterset: &str,
) -> Result<Option<String>, CorefileError> {
    let lines = lines(corefile)?;
    let mut edits: Vec<(usize, String)> = Vec::new();
    let mut is_found = false;
    let mut block: Vec<&[Token<'_>]> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        match line.depth {
            0 => {
                // The names of a block may be on several lines.
                if block.last().is_some_and(|names| opens(names)) {
                    block.clear();
                }
                block.push(&line.tokens);
            }
            1 if line.tokens[0].text == "kubernetes" && has_zone(plugin_zones(&line.tokens), cluster) => {
                is_found = true;
                check_served(&block, clusterset)?;
                let body = lines[at + 1..].iter().take_while(|line| line.depth > 1);
                let body: Vec<&[Token<'_>]> = body
                    .filter(|line| line.depth == 2)
                    .map(|line| &*line.tokens)
                    .collect();
                edit(corefile, &line.tokens, &body, (cluster, clusterset), &mut edits);
            }
            _ => {}
        }
    }
    if !is_found {
        return Err(CorefileError::NoPlugin {
            zone: cluster.to_owned(),
        });
    }
    if edits.is_empty() {
        return Ok(None);
    }
    let mut changed = corefile.to_owned();
    for (at, text) in edits.into_iter().rev() {
        changed.insert_str(at, &text);
    }
    Ok(Some(changed))
}

fn opens(line: &[Token<'_>]) -> bool {
    line.last().is_some_and(Token::is_open)
}

/// The zones of a line of plugin `kubernetes`.
fn plugin_zones<'a, 'b>(line: &'b [Token<'a>]) -> impl Iterator<Item = &'b Token<'a>> + use<'a, 'b> {
    line[1..].iter().filter(|token| !token.is_open())
}

fn normal(zone: &str) -> Cow<'_, str> {
    let zone = zone.strip_suffix('.').unwrap_or(zone);
    if zone.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(zone.to_ascii_lowercase());
    }
    Cow::Borrowed(zone)
}

fn is_zone(token: &Token<'_>, zone: &str) -> bool {
    normal(&token.text) == normal(zone)
}

fn has_zone<'a, 'b: 'a>(mut zones: impl Iterator<Item = &'a Token<'b>>, zone: &str) -> bool {
    zones.any(|token| is_zone(token, zone))
}

/// Checks that queries for a zone reach a server block.
fn check_served(block: &[&[Token<'_>]], zone: &str) -> Result<(), CorefileError> {
    let names: Vec<&str> = block
        .iter()
        .flat_map(|line| line.iter())
        .filter(|token| !token.is_open())
        .flat_map(|token| token.text.split(','))
        .filter(|name| !name.is_empty())
        .collect();
    // Where a snippet is imported is not known here.
    let is_snippet = names.len() == 1 && names[0].starts_with('(');
    let line = block.first().map_or(0, |line| line[0].line);
    if is_snippet || names.iter().any(|name| serves(name, zone)) {
        return Ok(());
    }
    Err(CorefileError::NotServed {
        block: names.join(" "),
        line,
        zone: zone.to_owned(),
    })
}

/// Whether a server block of this name, such as `dns://.:53`, serves a zone.
fn serves(name: &str, zone: &str) -> bool {
    let name = name.split_once("://").map_or(name, |(_, name)| name);
    let name = match name.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    };
    let (name, zone) = (normal(name), normal(zone));
    match zone.strip_suffix(&*name) {
        Some(rest) => name.is_empty() || rest.is_empty() || rest.ends_with('.'),
        None => false,
    }
}

/// What is inserted where, for a plugin and the lines of its block.
fn edit(
    corefile: &str,
    plugin: &[Token<'_>],
    body: &[&[Token<'_>]],
    (cluster, clusterset): (&str, &str),
    edits: &mut Vec<(usize, String)>,
) {
    if !has_zone(plugin_zones(plugin), clusterset)
        && let Some(zone) = plugin_zones(plugin).find(|token| is_zone(token, cluster))
    {
        edits.push((zone.end, format!(" {clusterset}")));
    }
    let end = plugin[plugin.len() - 1].end;
    if let Some(option) = body.iter().find(|line| line[0].text == "multicluster") {
        if !has_zone(option[1..].iter(), clusterset) {
            edits.push((option[option.len() - 1].end, format!(" {clusterset}")));
        }
        return;
    }
    let outer = indent(corefile, plugin[0].start);
    // Further options are as deep as the others.
    let option = body.iter().find(|line| line[0].text != "}").map_or_else(
        || deeper(outer),
        |line| indent(corefile, line[0].start).to_owned(),
    );
    let newline = if corefile.contains("\r\n") { "\r\n" } else { "\n" };
    if opens(plugin) {
        edits.push((end, format!("{newline}{option}multicluster {clusterset}")));
    } else {
        edits.push((
            end,
            format!(" {{{newline}{option}multicluster {clusterset}{newline}{outer}}}"),
        ));
    }
}

/// The white space before a place, from the start of its line.
fn indent(text: &str, at: usize) -> &str {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let line = &text[start..at];
    &line[..line.len() - line.trim_start().len()]
}

fn deeper(indent: &str) -> String {
    let unit = if indent.contains('\t') { "\t" } else { "    " };
    format!("{indent}{unit}")
}
