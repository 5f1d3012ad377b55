// SPDX-License-Identifier: Apache-2.0

//! The agent of a recording: answers as recorded.

use std::{
    collections::VecDeque,
    fs, io,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use serde_json::{Value, json};

use crate::{
    Boxed,
    bindings::{Bindings, Mismatch},
};

/// The conversation of an invocation.
#[derive(Debug, Default)]
pub(crate) struct Talk {
    /// Exchanges to come; `None` if the conversation was not recorded.
    expected: Option<VecDeque<Value>>,
    /// The last answer to `GET /config`, for those who ask more often.
    configuration: Option<(u64, Value, bool)>,
    pub(crate) found: Vec<Mismatch>,
}

/// An agent that listens until it is dropped.
pub(crate) struct RecordedAgent {
    socket: PathBuf,
    talk: Arc<Mutex<Talk>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Folders of files that a recording refers to.
pub(crate) type Folders = [PathBuf; 2];

impl RecordedAgent {
    /// Listens at `socket`.
    pub(crate) fn start(
        socket: &Path,
        expected: Option<&Vec<Value>>,
        step: &Value,
        configuration: String,
        bindings: Arc<Mutex<Bindings>>,
        folders: Folders,
    ) -> io::Result<Self> {
        let _ = fs::remove_file(socket);
        let listener = UnixListener::bind(socket)?;
        let talk = Arc::new(Mutex::new(Talk {
            expected: expected.map(|list| list.iter().cloned().collect()),
            ..Talk::default()
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let server = Server {
            talk: talk.clone(),
            bindings,
            folders,
            configuration,
            result: step["stdout"].clone(),
        };
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // A client that has its answer is free to go.
                let _ = server.serve(stream);
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
            talk,
            stop,
            thread: Some(thread),
        })
    }

    /// Ends it; the differences from the recorded conversation. `container` is the one of the invocation.
    pub(crate) fn finish(self, place: &str, container: &str) -> Vec<Mismatch> {
        let talk = self.talk.clone();
        drop(self);
        let mut talk = talk.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = std::mem::take(&mut talk.found);
        let left: Vec<Value> = talk.expected.take().into_iter().flatten().collect();
        // The recorder has seen other containers' requests, too, and all requests during waits.
        let end = left
            .iter()
            .position(|exchange| is_of_another(exchange, container));
        let own = &left[..end.unwrap_or(left.len())];
        found.extend(
            own.iter()
                .filter(|exchange| !asks_configuration(exchange))
                .map(|exchange| {
                    let expected = exchange["request"]["line"].clone();
                    mismatch("", expected, Value::Null)
                }),
        );
        for mismatch in &mut found {
            mismatch.place = format!("{place}/http{}", mismatch.place);
        }
        found
    }
}

impl Drop for RecordedAgent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn mismatch(place: &str, expected: Value, found: Value) -> Mismatch {
    Mismatch {
        place: place.to_owned(),
        expected,
        found,
    }
}

fn line(exchange: &Value) -> &str {
    let line = exchange["request"]["line"].as_str().unwrap_or_default();
    line.strip_suffix(" HTTP/1.1").unwrap_or(line)
}

fn asks_configuration(exchange: &Value) -> bool {
    line(exchange) == "GET /v1/config"
}

fn is_of_another(exchange: &Value, container: &str) -> bool {
    let in_path = line(exchange)
        .split_once("cni-attachment-id:")
        .map(|(_, rest)| rest);
    let in_path = in_path.and_then(|rest| rest.split(':').next());
    let in_body = exchange["request"]["body"]["container-id"].as_str();
    in_path.or(in_body).is_some_and(|named| named != container)
}

/// A request as far as it is compared.
struct Request {
    line: String,
    body: Value,
    expires: bool,
}

impl Request {
    fn read(stream: &UnixStream) -> Result<Self, Boxed> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut line, mut length, mut expires) = (String::new(), 0, false);
        reader.read_line(&mut line)?;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim_end().to_lowercase();
            if header.is_empty() {
                break;
            }
            expires |= header == "expiration: true";
            if let Some(text) = header.strip_prefix("content-length: ") {
                length = text.parse()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let line = line.trim_end();
        Ok(Self {
            line: line.strip_suffix(" HTTP/1.1").unwrap_or(line).to_owned(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            expires,
        })
    }
}

struct Server {
    talk: Arc<Mutex<Talk>>,
    bindings: Arc<Mutex<Bindings>>,
    folders: Folders,
    /// File of the settings, and the result, for requests that were not recorded.
    configuration: String,
    result: Value,
}

impl Server {
    fn serve(&self, mut stream: UnixStream) -> Result<(), Boxed> {
        let request = Request::read(&stream)?;
        let (status, answer, is_json) = self.answer(&request);
        let answer = match &answer {
            Value::Null => String::new(),
            Value::String(text) if !is_json => text.clone(),
            answer => format!("{answer}\n"),
        };
        let kind = if is_json { "application/json" } else { "text/plain" };
        let length = answer.len();
        let head =
            format!("HTTP/1.1 {status} Status\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
        Ok(stream.write_all((head + &answer).as_bytes())?)
    }

    fn answer(&self, request: &Request) -> (u64, Value, bool) {
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
        if talk.expected.is_none() {
            return self.usual(request, &mut bindings);
        }
        let configuration = talk.configuration.clone();
        let expected = talk.expected.get_or_insert_default();
        let repeats = request.line == "GET /v1/config" && !expected.front().is_some_and(asks_configuration);
        if let Some(answer) = configuration.filter(|_| repeats) {
            return answer;
        }
        let Some(next) = expected.pop_front() else {
            let line = request.line.clone().into();
            talk.found.push(mismatch("", Value::Null, line));
            return (500, Value::Null, true);
        };
        let wanted = bindings.fill_text(line(&next));
        if wanted != request.line {
            talk.found
                .push(mismatch("/line", wanted.into(), request.line.clone().into()));
        }
        let place = format!("/{}", request.line);
        bindings.compare(&place, &next["request"]["body"], &request.body, &mut talk.found);
        let expires = next["request"]["headers"]["Expiration"] == "true";
        if expires != request.expires {
            let (expected, found) = (expires.into(), request.expires.into());
            talk.found.push(mismatch("/Expiration", expected, found));
        }
        let response = &next["response"];
        let status = response["status"].as_str().unwrap_or_default();
        let status = status.split(' ').next().and_then(|code| code.parse().ok());
        let answer = match response["body"]["see"].as_str() {
            Some(file) => self.file(file),
            None => bindings.fill(&response["body"]),
        };
        let kind = response["headers"]["Content-Type"]
            .as_str()
            .unwrap_or("application/json");
        let answer = (status.unwrap_or(500), answer, kind.contains("json"));
        if asks_configuration(&next) {
            talk.configuration = Some(answer.clone());
        }
        answer
    }

    /// The body of another file, with the values of its recording.
    fn file(&self, name: &str) -> Value {
        let mut found = self.folders.iter().map(|folder| folder.join(name));
        let text = found.find_map(|path| fs::read_to_string(path).ok());
        let file: Value = text
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default();
        Bindings::of(&file).fill(&file["body"])
    }

    /// Answers without a recorded conversation: everything goes well.
    fn usual(&self, request: &Request, bindings: &mut Bindings) -> (u64, Value, bool) {
        let configuration = || self.file(&self.configuration);
        let (status, answer) = match request.line.split(['?', ' ']).take(2).collect::<Vec<_>>()[..] {
            ["GET", "/v1/config"] => (200, configuration()),
            ["GET", _] => (200, json!({"overallHealth": "OK", "cilium": {"state": "Ok"}})),
            ["POST", _] => {
                let ips = bindings.fill(&self.result["ips"]);
                let ips = ips.as_array().into_iter().flatten();
                let (mut pod, mut node) = (json!({}), configuration()["status"]["addressing"].take());
                for ip in ips {
                    let text = |key: &str| ip[key].as_str().unwrap_or_default().to_owned();
                    let family = if text("gateway").contains(':') {
                        "ipv6"
                    } else {
                        "ipv4"
                    };
                    pod[family] = text("address").split('/').next().unwrap_or_default().into();
                    node[family]["ip"] = text("gateway").into();
                }
                (201, json!({"address": pod, "host-addressing": node}))
            }
            ["PUT", _] => (201, json!({"id": 1, "status": {}})),
            _ => (200, Value::Null),
        };
        (status, answer, true)
    }
}
