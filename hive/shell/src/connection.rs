// SPDX-License-Identifier: Apache-2.0

//! One connection of the shell.

use std::any::Any;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures::FutureExt;
use hive_script::{CommandSet, Environment, Lifetime, ScriptError, State};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{END, ERROR, FILE, closes};

/// Commands a client may send ahead.
const PIPELINE: usize = 16;
/// Output that may wait for a slow client, in bytes, before it is disconnected.
const UNSENT: usize = 64 << 20;
/// The longest command line, in bytes.
const LINE: u64 = 1 << 20;

pub(crate) struct Connection {
    number: u64,
    stream: UnixStream,
    state: State,
    token: CancellationToken,
    output: Output,
    texts: mpsc::UnboundedReceiver<String>,
}

/// The way to the client. Order is kept between log text and markers.
#[derive(Clone)]
struct Output {
    texts: mpsc::UnboundedSender<String>,
    unsent: Arc<AtomicUsize>,
    at_line_start: Arc<std::sync::atomic::AtomicBool>,
    token: CancellationToken,
}

impl Output {
    fn send(&self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.at_line_start.store(text.ends_with('\n'), Ordering::Relaxed);
        if self.unsent.fetch_add(text.len(), Ordering::Relaxed) > UNSENT {
            self.token.cancel();
            return;
        }
        // Fails only when the client is gone; the command is about to be cancelled then.
        let _ = self.texts.send(text.to_owned());
    }

    fn finish(&self, error: Option<&str>) {
        match error {
            None => self.send(&format!("{END}\n")),
            Some(error) => {
                if !self.at_line_start.load(Ordering::Relaxed) {
                    self.send("\n");
                }
                self.send(&format!("{error}{ERROR}\n"));
            }
        }
    }
}

impl Connection {
    pub(crate) fn new(
        number: u64,
        stream: UnixStream,
        commands: CommandSet,
        token: CancellationToken,
        work_dir: &str,
    ) -> Self {
        let (sender, texts) = mpsc::unbounded_channel();
        let output = Output {
            texts: sender,
            unsent: Arc::default(),
            at_line_start: Arc::new(true.into()),
            token: token.clone(),
        };
        let lifetime = Lifetime::new(token.clone(), None);
        let log = output.clone();
        let sink = Box::new(move |text: &str| log.send(text));
        let state = State::new(work_dir, commands, Environment::new(), lifetime, sink).for_shell();
        Self {
            number,
            stream,
            state,
            token,
            output,
            texts,
        }
    }

    pub(crate) async fn serve(self) {
        let Self {
            number,
            stream,
            mut state,
            token,
            output,
            texts,
        } = self;
        let peer = stream.peer_cred().ok();
        let (uid, pid) = (peer.map(|peer| peer.uid()), peer.and_then(|peer| peer.pid()));
        info!(connection = number, uid, pid, "Shell client connected");
        let (reader, writer) = stream.into_split();
        let (sender, lines) = mpsc::channel(PIPELINE);
        let unsent = output.unsent.clone();

        let work = async {
            run_lines(number, &mut state, lines, output, &token).await;
            // Closes the last sender of texts, so that the writer ends after the last of them.
            drop(state);
        };
        tokio::pin!(work);
        let write = write_texts(writer, texts, &unsent, &token);
        let both = async { tokio::join!(work, write) };
        tokio::select! {
            _ = both => {}
            // Reading ends first when the client has sent everything; what it sent is still run.
            () = async { read_lines(reader, sender, &token).await; std::future::pending().await } => {}
        }
        info!(connection = number, "Shell client disconnected");
    }
}

/// What a client sent.
enum Line {
    Command(String),
    /// A line longer than [`LINE`], which is not run; nothing behind it is read.
    TooLong,
}

/// Passes lines on until the client stops sending; cancels the running command if it hung up.
async fn read_lines(reader: OwnedReadHalf, lines: mpsc::Sender<Line>, token: &CancellationToken) {
    use tokio::io::AsyncReadExt;
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(LINE + 1).read_until(b'\n', &mut line).await;
        let ended = !matches!(read, Ok(1..)) || line.last() != Some(&b'\n');
        if ended && line.len() as u64 > LINE {
            if lines.send(Line::TooLong).await.is_err() {
                return;
            }
            break;
        }
        let line = String::from_utf8_lossy(&line)
            .trim_end_matches(['\n', '\r'])
            .to_owned();
        if !line.is_empty() && lines.send(Line::Command(line)).await.is_err() {
            return;
        }
        if ended {
            break;
        }
    }
    // Who shuts down only the sending side still wants the answer.
    let stream = reader.into_inner();
    if stream
        .as_ref()
        .ready(Interest::WRITABLE)
        .await
        .is_ok_and(|ready| ready.is_write_closed())
    {
        token.cancel();
    }
}

/// Writes texts in order until all senders are gone.
async fn write_texts(
    mut writer: OwnedWriteHalf,
    mut texts: mpsc::UnboundedReceiver<String>,
    unsent: &AtomicUsize,
    token: &CancellationToken,
) -> io::Result<()> {
    while let Some(text) = texts.recv().await {
        if let Err(error) = writer.write_all(text.as_bytes()).await {
            token.cancel();
            return Err(error);
        }
        unsent.fetch_sub(text.len(), Ordering::Relaxed);
    }
    writer.shutdown().await
}

async fn run_lines(
    number: u64,
    state: &mut State,
    mut lines: mpsc::Receiver<Line>,
    output: Output,
    token: &CancellationToken,
) {
    loop {
        let line = tokio::select! {
            biased;
            () = token.cancelled() => return,
            line = lines.recv() => line,
        };
        let line = match line {
            None => return,
            Some(Line::Command(line)) => line,
            Some(Line::TooLong) => {
                output.finish(Some(&format!("the line is longer than {LINE} bytes")));
                return;
            }
        };
        if closes(&line) {
            return;
        }
        if line.starts_with('#') {
            output.finish(None);
            continue;
        }
        let started = Instant::now();
        info!(connection = number, command = %line, "Shell command");
        let result = AssertUnwindSafe(state.execute_lines(FILE, &line))
            .catch_unwind()
            .await;
        let took = started.elapsed();
        match result {
            Ok(Ok(_)) => output.finish(None),
            Ok(Err(error)) => {
                let error = error_text(&error);
                info!(connection = number, command = %line, took = ?took, error, "Shell command failed");
                output.finish(Some(&error));
            }
            Err(panic) => {
                let text = panic_text(panic.as_ref());
                warn!(connection = number, command = %line, took = ?took, panic = text, "Shell command panicked");
                output.send(&format!("PANIC: {text}\n"));
                output.finish(None);
            }
        }
    }
}

/// The text of an error with the place of a command that is no line of a script.
fn error_text(error: &ScriptError) -> String {
    error
        .to_string()
        .replace(&format!("{FILE}:1: "), &format!("{FILE}:0: "))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "panic without a text",
    }
}
