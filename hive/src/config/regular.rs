// SPDX-License-Identifier: Apache-2.0

//! Files whose end is read in finite time.

use std::fs::{self, File};
use std::io::{self, Error, ErrorKind};
use std::path::Path;

/// Opens a file to read. Follows links; whatever is no regular file is an error: a read of a pipe or a device may block
/// its thread without limit, and what a pipe held is gone when a setting is read again.
///
/// # Errors
///
/// Those of the system; [`ErrorKind::InvalidInput`] if it is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Before it is opened: that may block as well.
    if fs::metadata(path)?.is_file() {
        File::open(path)
    } else {
        Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

/// The text of a [regular file](open_regular).
pub(crate) fn read(path: &Path) -> io::Result<String> {
    open_regular(path).and_then(io::read_to_string)
}
