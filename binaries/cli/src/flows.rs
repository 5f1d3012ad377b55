// SPDX-License-Identifier: Apache-2.0

//! `skep bpf ct` and `skep bpf nat`: what programs remember of flows.
//!
//! These maps are large: entries are written while they are read, and not sorted.

mod connections;
mod translations;

use std::{
    fmt,
    io::{self, Write},
};

use clap::Subcommand;
use skep_bpf_sys::clock::ClockError;

use crate::{maps::MapsError, print::Format};

pub(crate) use self::{
    connections::{ConnectionCommand, connections},
    translations::{TranslationCommand, translations},
};

#[derive(Debug, Subcommand)]
pub(crate) enum FlowTableCommand {
    /// List all entries, also invalid ones.
    #[command(alias = "ls")]
    List,
    /// Invalidate all entries.
    Flush,
    /// Show hits, and misses by cause.
    Stats,
}

/// Why flows were not printed or deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlowsError {
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// Entries were not deleted, or not all.
    #[error(transparent)]
    Collect(#[from] skep_bpf_maps::collect::CollectError),
    #[error("cannot write the entries")]
    Write(#[from] io::Error),
    /// An entry cannot be printed in this form.
    #[error("cannot print the entries")]
    Print(#[from] serde_json::Error),
    /// Times cannot be compared with now.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// Times in ticks cannot be compared with now.
    #[error("the kernel's tick count is not in /proc/timer_list (are you root?)")]
    Ticks,
    /// `skep bpf endpoint list` names those there are.
    #[error("no endpoint has the id {0}")]
    NoEndpoint(u16),
    #[error("`{0}` is neither `global`, nor the id of an endpoint, nor `cluster` and its id")]
    Which(String),
    /// The rate of the kernel's ticks is needed.
    #[error("--time-diff-clocksource-hz must be larger than 0")]
    Rate,
}

/// Writes entries as lines, or as elements of one document.
struct Writer<'a> {
    out: &'a mut dyn Write,
    format: Format,
    is_empty: bool,
    /// The line of the last entry: each is written at once, into the same memory.
    line: String,
    /// Of forms that are made from all entries.
    all: Vec<serde_json::Value>,
}

impl<'a> Writer<'a> {
    fn new(out: &'a mut dyn Write, format: Format) -> io::Result<Self> {
        if format == Format::Json {
            out.write_all(b"[")?;
        }
        Ok(Self {
            out,
            format,
            is_empty: true,
            line: String::new(),
            all: Vec::new(),
        })
    }

    fn entry<T: serde::Serialize>(
        &mut self,
        text: impl FnOnce(&mut String) -> fmt::Result,
        document: impl FnOnce() -> T,
    ) -> Result<(), FlowsError> {
        match self.format {
            Format::Text => {
                self.line.clear();
                text(&mut self.line).map_err(io::Error::other)?;
                self.line.push('\n');
                self.out.write_all(self.line.as_bytes())?;
            }
            Format::Json => {
                let separator: &[u8] = if self.is_empty { b"\n" } else { b",\n" };
                self.out.write_all(separator)?;
                serde_json::to_writer(&mut *self.out, &document()).map_err(io::Error::from)?;
            }
            _ => self.all.push(serde_json::to_value(document())?),
        }
        self.is_empty = false;
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        match self.format {
            Format::Text => Ok(()),
            Format::Json if self.is_empty => self.out.write_all(b"]\n"),
            Format::Json => self.out.write_all(b"\n]\n"),
            _ => {
                let text = crate::print::value(&self.all.into(), self.format);
                self.out.write_all(text.as_bytes())
            }
        }
    }
}
