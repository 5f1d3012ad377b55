// SPDX-License-Identifier: Apache-2.0

//! The change of a Corefile.
//!
//! It is one of text, the same that Cilium makes: the zone of the cluster set follows that of the cluster wherever that is named
//! (plugin `kubernetes`, server blocks, what `cache` is not to do), and the plugin gets the option `multicluster`.

/// Option of plugin `kubernetes`.
const OPTION: &str = "multicluster";

/// Why a Corefile cannot be changed. Change it by hand, as the documentation of CoreDNS describes for plugin `kubernetes`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CorefileError {
    /// The names of the cluster are answered by something else, or by a plugin without options.
    #[error("the Corefile has no line `kubernetes … {zone} … {{`")]
    NoPlugin { zone: String },
}

/// Adds the zone of the cluster set to a Corefile. Returns `None` if it has been added, by whomever.
///
/// ```
/// use skep_clustermesh_coredns::corefile::add_clusterset;
///
/// let corefile = ".:53 {\n    kubernetes cluster.local {\n       pods insecure\n    }\n}\n";
/// let changed = add_clusterset(corefile, "cluster.local", "clusterset.local")?;
/// assert_eq!(
///     changed.as_deref(),
///     Some(".:53 {\n    kubernetes cluster.local clusterset.local {\n       multicluster clusterset.local\n       pods insecure\n    }\n}\n")
/// );
/// assert_eq!(add_clusterset(&changed.unwrap(), "cluster.local", "clusterset.local")?, None);
/// # Ok::<(), skep_clustermesh_coredns::corefile::CorefileError>(())
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
    if corefile.contains(clusterset) || corefile.contains(OPTION) {
        return Ok(None);
    }
    let mut changed = String::with_capacity(corefile.len() * 2);
    let mut is_found = false;
    for line in corefile.split_inclusive('\n') {
        let (text, newline) = match line.strip_suffix("\r\n") {
            Some(text) => (text, "\r\n"),
            None => (line.strip_suffix('\n').unwrap_or(line), "\n"),
        };
        let mut from = 0;
        for at in places(text, cluster) {
            let to = at + cluster.len();
            changed.extend([&text[from..to], " ", clusterset]);
            from = to;
        }
        changed.push_str(&text[from..]);
        if is_plugin(text, cluster) {
            is_found = true;
            let indent = &text[..text.len() - text.trim_start().len()];
            changed.extend([newline, indent, "   ", OPTION, " ", clusterset]);
        }
        changed.push_str(&line[text.len()..]);
    }
    if is_found {
        Ok(Some(changed))
    } else {
        Err(CorefileError::NoPlugin {
            zone: cluster.to_owned(),
        })
    }
}

/// Whether a line begins the options of plugin `kubernetes` for a zone. Plugins for other zones stay: CoreDNS does not start with
/// the option and without the zone.
fn is_plugin(line: &str, zone: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default().trim();
    let zones = line
        .strip_prefix("kubernetes")
        .and_then(|line| line.strip_suffix('{'));
    zones.is_some_and(|zones| zones.starts_with(char::is_whitespace) && places(zones, zone).next().is_some())
}

/// Where a zone is named; not as the end or the beginning of another name, such as that of a service in a rewrite rule.
fn places<'a>(text: &'a str, zone: &'a str) -> impl Iterator<Item = usize> {
    let is_letter = |character: char| character.is_alphanumeric() || matches!(character, '-' | '_');
    text.match_indices(zone).map(|(at, _)| at).filter(move |at| {
        let after = &text[at + zone.len()..];
        let after = after.strip_prefix('.').unwrap_or(after);
        !text[..*at].ends_with(|character| is_letter(character) || character == '.')
            && !after.starts_with(is_letter)
    })
}
