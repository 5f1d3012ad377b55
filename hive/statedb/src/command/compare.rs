// SPDX-License-Identifier: Apache-2.0

//! `db/cmp`: a table against a file in which columns are found by their position under the header.

use hive_script::{CommandError, Context, Invocation, Outcome, regexp};
use tokio::time::Instant;

use super::{
    find,
    print::{positions, select},
};
use crate::{Db, Snapshot};

/// The expected content of some columns.
#[derive(Debug)]
struct Expected {
    names: Vec<String>,
    /// Byte offsets at which the columns start; empty if cells are separated by tabs.
    offsets: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Expected {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let header = lines.next()?;
        let (names, offsets) = if header.contains('\t') {
            let names = header.split('\t').map(str::trim).filter(|name| !name.is_empty());
            (names.map(str::to_owned).collect(), Vec::new())
        } else {
            let mut names = Vec::new();
            let mut offsets = Vec::new();
            let mut at = 0;
            for word in header.split_inclusive(char::is_whitespace) {
                let name = word.trim();
                if !name.is_empty() {
                    names.push(name.to_owned());
                    offsets.push(at);
                }
                at += word.len();
            }
            (names, offsets)
        };
        let mut expected = Self {
            names,
            offsets,
            rows: Vec::new(),
        };
        expected.rows = lines.map(|line| expected.cut(line)).collect();
        Some(expected)
    }

    fn cut(&self, line: &str) -> Vec<String> {
        let trim = |cell: &str| cell.trim_end_matches([' ', '\t', '\r']).to_owned();
        if self.offsets.is_empty() {
            let mut cells: Vec<String> = line.split('\t').map(trim).collect();
            cells.resize(self.names.len(), String::new());
            return cells;
        }
        let bytes = line.as_bytes();
        let cell = |at: usize| {
            let start = self.offsets[at].min(bytes.len());
            let end = self
                .offsets
                .get(at + 1)
                .map_or(bytes.len(), |&next| next.min(bytes.len()));
            trim(&String::from_utf8_lossy(&bytes[start..end]))
        };
        (0..self.offsets.len()).map(cell).collect()
    }

    /// Cells placed under their columns' names.
    fn line<S: AsRef<str>>(&self, cells: &[S]) -> String {
        place(&self.offsets, cells)
    }

    /// Returns where columns start so that all of these rows fit: where the file has them, or further to the right.
    fn roomy<'a>(&'a self, rows: impl Iterator<Item = &'a Vec<String>>) -> Vec<usize> {
        let mut widths = vec![0; self.offsets.len()];
        for row in rows.chain([&self.names]) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.len().max(*width);
            }
        }
        let mut offsets = self.offsets.clone();
        let mut shift = 0;
        for at in 1..offsets.len() {
            let gap = self.offsets[at] - self.offsets[at - 1];
            shift += (widths[at - 1] + 1).saturating_sub(gap);
            offsets[at] += shift;
        }
        offsets
    }

    /// Returns the rows compared by position: as they are when equal, else the actual and the expected one.
    fn mismatch(&self, actual: &[Vec<String>]) -> String {
        let offsets = self.roomy(actual.iter().chain(&self.rows));
        let line = |cells: &[String]| place(&offsets, cells);
        let mut out = format!("table mismatch:\n  {}\n", line(&self.names));
        for at in 0..actual.len().max(self.rows.len()) {
            match (actual.get(at), self.rows.get(at)) {
                (Some(row), Some(wanted)) if row == wanted => out.push_str(&format!("  {}\n", line(row))),
                (row, wanted) => {
                    if let Some(row) = row {
                        out.push_str(&format!("- {}\n", line(row)));
                    }
                    if let Some(wanted) = wanted {
                        out.push_str(&format!("+ {}\n", line(wanted)));
                    }
                }
            }
        }
        out
    }

    /// Returns the file with these rows in place of the expected ones.
    fn rewritten(&self, actual: &[Vec<String>]) -> String {
        let offsets = self.roomy(actual.iter());
        std::iter::once(&self.names)
            .chain(actual)
            .map(|cells| place(&offsets, cells) + "\n")
            .collect()
    }
}

/// Cells that start at these bytes of a line, or right behind the one before; without places, cells behind tabs.
fn place<S: AsRef<str>>(offsets: &[usize], cells: &[S]) -> String {
    if offsets.is_empty() {
        return cells.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("\t");
    }
    let mut line = String::new();
    for (cell, &offset) in cells.iter().zip(offsets) {
        while line.len() < offset {
            line.push(' ');
        }
        line.push_str(cell.as_ref());
    }
    line.truncate(line.trim_end().len());
    line
}

pub(super) async fn compare(
    db: &Db,
    cx: &mut Context<'_>,
    inv: &Invocation,
) -> Result<Outcome, CommandError> {
    let [name, file] = inv.args() else {
        return Err(CommandError::usage("expected table and filename"));
    };
    let table = find(db, name)?;
    let grep = match inv.string("grep") {
        "" => None,
        pattern => {
            Some(regexp::compile(pattern).map_err(|err| CommandError::new(format_args!("bad grep: {err}")))?)
        }
    };
    let text = cx.read_file(file);
    let text = text.map_err(|err| {
        CommandError::new(format_args!(
            "ReadFile({file}): {}",
            CommandError::io("open", cx.path(file), &err)
        ))
    })?;
    let expected = Expected::parse(&cx.expand(&text)).ok_or_else(|| {
        let columns = table.header().join(" ");
        CommandError::new(format_args!("\"{file}\" missing header line, e.g. \"{columns}\""))
    })?;
    let columns = positions(&*table, &expected.names)?;
    let actual = |snapshot: &Snapshot| -> Vec<Vec<String>> {
        let rows = table
            .rows(snapshot)
            .into_iter()
            .map(|row| select(&*row, &columns));
        rows.filter(|row| grep.as_ref().is_none_or(|re| re.is_match(&expected.line(row))))
            .collect()
    };

    let deadline = Instant::now() + inv.duration("timeout");
    loop {
        let snapshot = db.read();
        let watch = table.watch(&snapshot);
        let rows = actual(&snapshot);
        if rows == expected.rows {
            return Ok(Outcome::Silent);
        }
        let interrupted = cx.interrupted();
        tokio::select! {
            () = watch.closed() => {}
            () = tokio::time::sleep_until(deadline) => {
                if cx.is_update() {
                    let written = cx.update_file(file, expected.rewritten(&rows));
                    written.map_err(|err| CommandError::io("open", cx.path(file), &err))?;
                    return Ok(Outcome::Silent);
                }
                return Err(CommandError::new(expected.mismatch(&rows)));
            }
            interruption = interrupted => {
                cx.log(expected.mismatch(&rows));
                return Err(interruption.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_cut_at_the_header_positions() {
        let expected =
            Expected::parse("\nName    Source  Port\nshop/a  k8s\n\n        file     80 90  \n").unwrap();
        assert_eq!(expected.names, ["Name", "Source", "Port"]);
        assert_eq!(expected.rows, [["shop/a", "k8s", ""], ["", "file", " 80 90"]]);
        assert_eq!(expected.line(&["x", "y", "z"]), "x       y       z");
        assert!(Expected::parse("  \n\n").is_none());
    }

    #[test]
    fn tabs_in_the_header_separate_cells() {
        let expected = Expected::parse("Name\tSource\nlong name here\tk8s\nshort\n").unwrap();
        assert_eq!(expected.rows, [["long name here", "k8s"], ["short", ""]]);
    }

    #[test]
    fn columns_move_when_cells_need_room() {
        let expected = Expected::parse("A  B   C\n1  x   y\n").unwrap();
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["10", "long", "z"]), row(["2", "", "y"])];

        let text = expected.rewritten(&rows);

        assert_eq!(text, "A  B    C\n10 long z\n2       y\n");
        assert_eq!(Expected::parse(&text).unwrap().rows, rows);
        assert_eq!(
            expected.mismatch(&rows[..1]),
            "table mismatch:\n  A  B    C\n- 10 long z\n+ 1  x    y\n"
        );
    }

    #[test]
    fn mismatch_pairs_rows_by_position() {
        let expected = Expected::parse("A  B\n1  x\n2  y\n3  z\n").unwrap();
        let actual = [
            vec!["1".to_owned(), "x".to_owned()],
            vec!["2".to_owned(), "q".to_owned()],
        ];
        assert_eq!(
            expected.mismatch(&actual),
            "table mismatch:\n  A  B\n  1  x\n- 2  q\n+ 2  y\n+ 3  z\n"
        );
    }
}
