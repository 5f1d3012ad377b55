// SPDX-License-Identifier: Apache-2.0

//! Columns aligned as by Go's `text/tabwriter`: a cell ends with a tab; text after the last tab of a line belongs to
//! no column; a column is a block of neighbouring lines which have a cell there. Widths count characters.

/// Lays out text in columns.
///
/// ```
/// let mut table = hive_script::text::TabWriter::new();
/// table.row(["Name", "Source"]);
/// table.row(["shop/web", "k8s"]);
/// assert_eq!(table.finish(), "Name       Source\nshop/web   k8s\n");
/// ```
#[derive(Debug, Clone)]
pub struct TabWriter {
    min_width: usize,
    padding: usize,
    lines: Vec<Vec<String>>,
    open: bool,
}

impl Default for TabWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl TabWriter {
    /// The layout of tables: cells at least 5 wide, 3 spaces apart.
    pub fn new() -> Self {
        Self::with_layout(5, 3)
    }

    /// A layout with other numbers, both in characters.
    pub fn with_layout(min_width: usize, padding: usize) -> Self {
        Self {
            min_width,
            padding,
            lines: Vec::new(),
            open: false,
        }
    }

    /// Adds a line; every cell but the last is padded.
    pub fn row<I>(&mut self, cells: I)
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.lines.push(cells.into_iter().map(Into::into).collect());
        self.open = false;
    }

    /// Adds text in which a tab ends a cell and a newline ends a line.
    pub fn write(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            if !self.open {
                self.lines.push(vec![String::new()]);
            }
            let line = piece.strip_suffix('\n');
            self.open = line.is_none();
            let Some(current) = self.lines.last_mut() else {
                continue;
            };
            for (number, cell) in line.unwrap_or(piece).split('\t').enumerate() {
                match current.last_mut() {
                    Some(last) if number == 0 => last.push_str(cell),
                    _ => current.push(cell.to_owned()),
                }
            }
        }
    }

    /// The text with all columns aligned, every line ended by a newline.
    pub fn finish(self) -> String {
        let mut out = String::new();
        self.format(&mut out, &mut Vec::new(), 0, self.lines.len());
        out
    }

    /// Writes `from..to`, whose columns left of `widths.len()` are laid out already.
    fn format(&self, out: &mut String, widths: &mut Vec<usize>, mut from: usize, to: usize) {
        let column = widths.len();
        let has_cell = |line: usize| column + 1 < self.lines[line].len();
        let mut this = from;
        while this < to {
            if !has_cell(this) {
                this += 1;
                continue;
            }
            self.write_lines(out, widths, from, this);
            from = this;
            let mut width = self.min_width;
            while this < to && has_cell(this) {
                width = width.max(self.lines[this][column].chars().count() + self.padding);
                this += 1;
            }
            widths.push(width);
            self.format(out, widths, from, this);
            widths.pop();
            from = this;
        }
        self.write_lines(out, widths, from, to);
    }

    fn write_lines(&self, out: &mut String, widths: &[usize], from: usize, to: usize) {
        for line in &self.lines[from..to] {
            for (column, cell) in line.iter().enumerate() {
                out.push_str(cell);
                if column + 1 < line.len()
                    && let Some(width) = widths.get(column)
                {
                    out.extend(std::iter::repeat_n(
                        ' ',
                        width.saturating_sub(cell.chars().count()),
                    ));
                }
            }
            out.push('\n');
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
}
