// SPDX-License-Identifier: Apache-2.0

//! Terminals for programs in pods: `kubectl exec -it`.
//!
//! The lab holds one end, the program has the other as its input, output and controlling terminal.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
};

use nix::{
    fcntl::OFlag,
    pty::{grantpt, posix_openpt, ptsname_r, unlockpt},
};
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    termios::{Winsize, tcsetwinsize},
};
use skep_k8s_apiserver::TerminalSize;
use tokio::net::unix::pipe;

pub(crate) struct Terminal {
    own: OwnedFd,
    pub(crate) program: File,
}

/// The lab's end of a terminal, in parts.
pub(crate) struct Parts {
    pub(crate) input: pipe::Sender,
    pub(crate) output: pipe::Receiver,
    pub(crate) resize: Box<dyn FnMut(TerminalSize) + Send>,
}

impl Terminal {
    pub(crate) fn open() -> io::Result<Self> {
        // No other process inherits it: the program is to be hung up on when the lab closes its end.
        let own = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)?;
        grantpt(&own)?;
        unlockpt(&own)?;
        let program = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NOCTTY.bits())
            .open(ptsname_r(&own)?)?;
        let own = own.as_fd().try_clone_to_owned()?;
        Ok(Self { own, program })
    }

    /// The lab's end. The program's end is closed: the output ends with the last program that holds it.
    pub(crate) fn into_parts(self) -> io::Result<Parts> {
        let flags = fcntl_getfl(&self.own)?;
        fcntl_setfl(&self.own, flags | OFlags::NONBLOCK)?;
        // A terminal can be waited for as a pipe can.
        let input = pipe::Sender::from_owned_fd_unchecked(self.own.try_clone()?)?;
        let output = pipe::Receiver::from_owned_fd_unchecked(self.own.try_clone()?)?;
        let own = self.own;
        let resize = Box::new(move |size: TerminalSize| {
            let size = Winsize {
                ws_row: size.height,
                ws_col: size.width,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            if let Err(err) = tcsetwinsize(&own, size) {
                tracing::debug!(error = %err, "Cannot set size of terminal");
            }
        });
        Ok(Parts {
            input,
            output,
            resize,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use rustix::termios::{isatty, tcgetwinsize};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn both_ends_are_connected_until_the_program_ends() {
        let terminal = Terminal::open().unwrap();
        let mut program = terminal.program.try_clone().unwrap();
        let mut parts = terminal.into_parts().unwrap();
        assert!(isatty(&program));

        (parts.resize)(TerminalSize {
            width: 132,
            height: 43,
        });
        let size = tcgetwinsize(&program).unwrap();
        assert_eq!((size.ws_col, size.ws_row), (132, 43));

        program.write_all(b"hello\n").unwrap();
        let mut buffer = [0; 64];
        let read = parts.output.read(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..read], b"hello\r\n");
        parts.input.write_all(b"x\n").await.unwrap();
        // The terminal echoes what is typed.
        let read = parts.output.read(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..read], b"x\r\n");

        drop(program);
        assert!(parts.output.read(&mut buffer).await.is_err());
    }
}
