// SPDX-License-Identifier: Apache-2.0

//! Columns aligned as by Go's `text/tabwriter`: a cell ends with a tab; text after the last tab of a line belongs to
//! no column; a column is a block of neighbouring lines which have a cell there.

use std::io::Write;

/// The least width of a cell without its padding, so that cells are at least 5 wide.
const LEAST: usize = 2;
const PADDING: usize = 3;

/// Lays out text in columns: cells at least 5 wide, 3 spaces apart.
///
/// ```
/// let mut table = hive_script::text::TabWriter::new();
/// table.row(["Name", "Source"]);
/// table.row(["shop/web", "k8s"]);
/// assert_eq!(table.finish(), "Name       Source\nshop/web   k8s\n");
/// ```
#[derive(Debug, Clone, Default)]
pub struct TabWriter {
    text: String,
}

impl TabWriter {
    /// A table without lines.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line; every cell but the last is padded.
    pub fn row<I>(&mut self, cells: I)
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.end_line();
        for (number, cell) in cells.into_iter().enumerate() {
            if number > 0 {
                self.text.push('\t');
            }
            self.text.push_str(&cell.into());
        }
        self.text.push('\n');
    }

    /// Adds text in which a tab ends a cell and a newline ends a line.
    pub fn write(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The text with all columns aligned, every line ended by a newline.
    pub fn finish(mut self) -> String {
        self.end_line();
        let mut out = Vec::with_capacity(self.text.len() * 2);
        let mut table = tabwriter::TabWriter::new(&mut out)
            .minwidth(LEAST)
            .padding(PADDING);
        table
            .write_all(self.text.as_bytes())
            .and_then(|()| table.flush())
            .expect("memory takes everything");
        drop(table);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn end_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_every_column_but_the_last() {
        let mut table = TabWriter::new();
        table.row(["A", "Bcdef", "C"]);
        table.row(["1", "", "x"]);
        table.row(["1", "é", ""]);

        assert_eq!(table.finish(), "A    Bcdef   C\n1            x\n1    é       \n");
    }

    #[test]
    fn columns_end_where_a_line_has_no_cell() {
        let mut table = TabWriter::new();
        table.write("long cell here\tx\nplain\nb\tx\n");

        assert_eq!(table.finish(), "long cell here   x\nplain\nb    x\n");
    }

    #[test]
    fn text_may_arrive_in_pieces() {
        let mut table = TabWriter::new();
        table.write("a\tb");
        table.write("c\td\n\n");

        assert_eq!(table.finish(), "a    bc   d\n\n");
    }

    #[test]
    fn open_lines_are_ended() {
        let mut table = TabWriter::new();
        table.write("a\tb");
        table.row(["c", "d"]);
        table.write("e\tf");

        assert_eq!(table.finish(), "a    b\nc    d\ne    f\n");
    }
}
