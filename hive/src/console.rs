// SPDX-License-Identifier: Apache-2.0

//! What a program says to those who started it.
//!
//! There may be no reader: a program outlives the terminal that it was started from, and the reader of the pipe that takes
//! its log. [`println!`] and [`eprintln!`] panic then, and with them whoever had something to say; these functions do
//! not.

use std::fmt::Display;
use std::io::{Write, stderr, stdout};

/// Writes a line to standard error.
pub fn error_line(line: impl Display) {
    let _ = stderr().write_all(format!("{line}\n").as_bytes());
}

/// Writes a text to standard output, and no line end that it does not have.
pub fn print(text: impl Display) {
    let mut stdout = stdout().lock();
    let _ = stdout.write_all(text.to_string().as_bytes());
    let _ = stdout.flush();
}
