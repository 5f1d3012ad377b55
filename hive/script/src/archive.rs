// SPDX-License-Identifier: Apache-2.0

//! The txtar container: a script, then files between lines `-- NAME --`.

use std::fmt;

/// A script and its files.
///
/// ```
/// let archive = hive_script::Archive::parse("cat a\n-- a --\ntext\n");
/// assert_eq!(archive.script, "cat a\n");
/// assert_eq!(archive.files[0].content, "text\n");
/// assert_eq!(archive.to_string(), "cat a\n-- a --\ntext\n");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Archive {
    /// The text before the first file.
    pub script: String,
    /// The files in order; a name may occur twice.
    pub files: Vec<ArchiveFile>,
}

/// A file of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveFile {
    /// The name as it stands in the archive, without outer blanks, not expanded.
    pub name: String,
    /// The content; a missing newline at the end is added.
    pub content: String,
}

impl Archive {
    /// Parses an archive. Never fails: any text is an archive.
    pub fn parse(text: &str) -> Self {
        let mut archive = Self::default();
        for line in text.split_inclusive('\n') {
            if let Some(name) = marker(line) {
                archive.files.push(ArchiveFile {
                    name: name.to_owned(),
                    content: String::new(),
                });
            } else {
                archive.last_text().push_str(line);
            }
        }
        let last = archive.last_text();
        if !last.is_empty() && !last.ends_with('\n') {
            last.push('\n');
        }
        archive
    }

    /// The script's first line if it starts with `#!`: what follows, split at every single space.
    pub fn args(&self) -> Vec<String> {
        match self
            .script
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("#!"))
        {
            Some(rest) => rest.trim().split(' ').map(str::to_owned).collect(),
            None => Vec::new(),
        }
    }

    fn last_text(&mut self) -> &mut String {
        match self.files.last_mut() {
            Some(file) => &mut file.content,
            None => &mut self.script,
        }
    }
}

impl fmt::Display for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let newline = |text: &str| {
            if text.is_empty() || text.ends_with('\n') {
                ""
            } else {
                "\n"
            }
        };
        write!(f, "{}{}", self.script, newline(&self.script))?;
        for file in &self.files {
            write!(
                f,
                "-- {} --\n{}{}",
                file.name,
                file.content,
                newline(&file.content)
            )?;
        }
        Ok(())
    }
}

/// The name in a marker line.
fn marker(line: &str) -> Option<&str> {
    let line = line.strip_suffix('\n').unwrap_or(line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let name = line.strip_prefix("-- ")?.strip_suffix(" --")?.trim();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_stand_at_the_first_column() {
        let archive = Archive::parse("a\n -- no --\n--  spaced name  --\nx\n-- y --\n-- z --\nno newline");

        assert_eq!(archive.script, "a\n -- no --\n");
        let files: Vec<_> = archive
            .files
            .iter()
            .map(|f| (f.name.as_str(), f.content.as_str()))
            .collect();
        assert_eq!(files, [("spaced name", "x\n"), ("y", ""), ("z", "no newline\n")]);
    }

    #[test]
    fn arguments_are_split_at_every_space() {
        let args = |script: &str| Archive::parse(script).args();

        assert_eq!(args("#! --a=1  --b\nx"), ["--a=1", "", "--b"]);
        assert_eq!(args("#!\nx"), [""]);
        assert!(args("x\n#! --a").is_empty());
    }
}
