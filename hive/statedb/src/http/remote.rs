// SPDX-License-Identifier: Apache-2.0

//! A table of another process.

use std::{collections::VecDeque, fmt, io, marker::PhantomData, path::PathBuf};

use axum::body::Bytes;
use futures::{Stream, stream};
use http_body_util::{BodyExt, Empty};
use hyper::{Request, StatusCode, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::net::{TcpStream, UnixStream};

use super::to_hex;
use crate::{Query, Revision};

/// Most that is read of the text of an error.
const LONGEST_ERROR: usize = 4096;

/// Where a process listens that serves a [`router`](super::router).
///
/// ```
/// use statedb::http::Endpoint;
/// assert_eq!(Endpoint::Unix("/run/agent.sock".into()).to_string(), "/run/agent.sock");
/// assert_eq!(Endpoint::Tcp("localhost:9000".into()).to_string(), "localhost:9000");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket.
    Unix(PathBuf),
    /// Host and port. There is no encryption.
    Tcp(String),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// Why a remote table cannot be read.
///
/// ```
/// use statedb::http::{Endpoint, RemoteError, RemoteTable};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let nobody = RemoteTable::<String>::new(Endpoint::Unix("/nowhere/agent.sock".into()), "/", "pods");
/// let error = nobody.all().await.unwrap_err();
/// assert!(matches!(error, RemoteError::Connect { .. }));
/// assert_eq!(error.to_string(), "table `pods`: cannot reach /nowhere/agent.sock");
/// # });
/// ```
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// Nobody listens there, or may not be talked to.
    #[error("table `{table}`: cannot reach {endpoint}")]
    Connect {
        /// The table.
        table: String,
        /// Where it should be.
        endpoint: Endpoint,
        /// What the kernel said.
        #[source]
        cause: io::Error,
    },
    /// The connection broke. Ask again; a stream of changes begins anew with all objects.
    #[error("table `{table}`: connection to {endpoint} failed")]
    Broken {
        /// The table.
        table: String,
        /// Where it is.
        endpoint: Endpoint,
        /// What happened.
        #[source]
        cause: hyper::Error,
    },
    /// The path or the name of the table cannot stand in a request.
    #[error("table `{table}`: `{path}` is no path")]
    BadPath {
        /// The table.
        table: String,
        /// The path.
        path: String,
    },
    /// The other side has no such table or index.
    #[error("table `{table}`: {status}: {message}")]
    Refused {
        /// The table.
        table: String,
        /// Status of the answer.
        status: StatusCode,
        /// What the other side said.
        message: String,
    },
    /// An object is not what the type here expects: the other side is of another version.
    #[error("table `{table}`: cannot read `{line}`")]
    Decode {
        /// The table.
        table: String,
        /// What was received.
        line: String,
        /// What is wrong.
        #[source]
        cause: serde_json::Error,
    },
}

/// An object of a [`RemoteTable`].
///
/// See there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RemoteObject<T> {
    /// Revision of its last change, in the other process.
    pub revision: Revision,
    /// The object.
    pub object: T,
}

/// A change of a [`RemoteTable`].
///
/// See there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "change", rename_all = "lowercase")]
pub enum RemoteChange<T> {
    /// Inserted or replaced.
    Upsert(RemoteObject<T>),
    /// Deleted; the last state.
    Delete(RemoteObject<T>),
    /// Forget everything, all objects follow.
    Relist,
    /// All sources of the table have delivered their first content. Comes once.
    Initialized,
}

/// Reads a table of another process that serves a [`router`](super::router). Objects are made from the JSON form of
/// those there: `T` is their type, another one with these fields, or [`serde_json::Value`]. Queries are those of the
/// indexes of the table.
///
/// ```
/// use axum::serve;
/// use futures::TryStreamExt;
/// use serde::{Deserialize, Serialize};
/// use statedb::{Db, Index, Row, RwTable, http, row};
/// use statedb::http::{Endpoint, RemoteChange, RemoteTable};
///
/// #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
/// struct Pod { name: String }
/// impl Row for Pod {
///     fn header() -> &'static [&'static str] { &["Name"] }
///     fn cells(&self) -> Vec<String> { vec![self.name.clone()] }
///     fn to_json(&self) -> Result<serde_json::Value, row::BoxError> { row::to_json(self) }
/// }
/// const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // In one process:
/// let db = Db::new();
/// let pods = RwTable::builder("pods").primary(BY_NAME).build(&db)?;
/// let mut txn = db.write(&[&pods]);
/// for name in ["web-0", "web-1", "db-0"] {
///     pods.insert(&mut txn, Pod { name: name.into() })?;
/// }
/// txn.commit();
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr()?;
/// tokio::spawn(async move { serve(listener, http::router(&db)).await });
///
/// // In another one:
/// let remote = RemoteTable::<Pod>::new(Endpoint::Tcp(address.to_string()), "/", "pods");
/// assert_eq!(remote.all().await?.len(), 3);
/// assert_eq!(remote.get(BY_NAME.key("db-0")).await?.unwrap().object.name, "db-0");
/// assert_eq!(remote.prefix(BY_NAME.bytes(b"web-")).await?.len(), 2);
///
/// let mut changes = remote.changes().await?;
/// for _ in 0..3 {
///     assert!(matches!(changes.try_next().await?, Some(RemoteChange::Upsert(_))));
/// }
/// assert_eq!(changes.try_next().await?, Some(RemoteChange::Initialized));
/// # Ok(())
/// # }
/// ```
pub struct RemoteTable<T> {
    at: Place,
    base: String,
    kind: PhantomData<fn() -> T>,
}

/// What errors name.
#[derive(Clone)]
struct Place {
    endpoint: Endpoint,
    table: String,
}

impl<T> Clone for RemoteTable<T> {
    fn clone(&self) -> Self {
        Self {
            at: self.at.clone(),
            base: self.base.clone(),
            kind: PhantomData,
        }
    }
}

impl<T> fmt::Debug for RemoteTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteTable({} at {})", self.at.table, self.at.endpoint)
    }
}

impl<T: DeserializeOwned> RemoteTable<T> {
    /// The table `name` of the process at `endpoint`, whose [`router`](super::router) is nested at the path `base`.
    /// Nothing is asked yet.
    pub fn new(endpoint: Endpoint, base: &str, name: &str) -> Self {
        Self {
            at: Place {
                endpoint,
                table: name.to_owned(),
            },
            base: base.trim_end_matches('/').to_owned(),
            kind: PhantomData,
        }
    }

    /// All objects, in primary order.
    ///
    /// # Errors
    /// If the other side cannot be reached, has no such table, or has other objects.
    pub async fn all(&self) -> Result<Vec<RemoteObject<T>>, RemoteError> {
        self.read("").await
    }

    /// The first match of a query.
    ///
    /// # Errors
    /// As [`all`](Self::all), or if the table has no such index.
    pub async fn get<Q>(&self, query: Query<Q>) -> Result<Option<RemoteObject<T>>, RemoteError> {
        Ok(self.list(query).await?.into_iter().next())
    }

    /// All matches of a query.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn list<Q>(&self, query: Query<Q>) -> Result<Vec<RemoteObject<T>>, RemoteError> {
        self.select(query, "exact").await
    }

    /// Objects whose key starts with the one of the query.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn prefix<Q>(&self, query: Query<Q>) -> Result<Vec<RemoteObject<T>>, RemoteError> {
        self.select(query, "prefix").await
    }

    /// Objects whose key is the one of the query or comes after it.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn lower_bound<Q>(&self, query: Query<Q>) -> Result<Vec<RemoteObject<T>>, RemoteError> {
        self.select(query, "lower-bound").await
    }

    /// All objects as changes, then every further change, until the other side stops. A stream that breaks is begun
    /// anew by asking again: forget all objects then.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub async fn changes(
        &self,
    ) -> Result<impl Stream<Item = Result<RemoteChange<T>, RemoteError>> + Send + Unpin + use<T>, RemoteError>
    where
        T: Send + 'static,
    {
        let lines = self.request("/changes").await?;
        Ok(Box::pin(stream::try_unfold(lines, |mut lines| async move {
            Ok(lines.next().await?.map(|change| (change, lines)))
        })))
    }

    async fn select<Q>(&self, query: Query<Q>, how: &str) -> Result<Vec<RemoteObject<T>>, RemoteError> {
        let key = to_hex(&query.key);
        self.read(&format!("?index={}&bytes={key}&match={how}", query.index))
            .await
    }

    async fn read(&self, query: &str) -> Result<Vec<RemoteObject<T>>, RemoteError> {
        let mut lines = self.request(query).await?;
        let mut objects = Vec::new();
        while let Some(object) = lines.next().await? {
            objects.push(object);
        }
        Ok(objects)
    }

    async fn request(&self, rest: &str) -> Result<Lines, RemoteError> {
        let Place { endpoint, table } = self.at.clone();
        let connect = |cause| self.at.unreachable(cause);
        let path = format!("{}/tables/{table}{rest}", self.base);
        let (mut sender, connection) = match &endpoint {
            Endpoint::Unix(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(connect)?;
                let (sender, connection) = self.at.handshake(stream).await?;
                (sender, futures::future::Either::Left(connection))
            }
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(connect)?;
                let (sender, connection) = self.at.handshake(stream).await?;
                (sender, futures::future::Either::Right(connection))
            }
        };
        // Ends with the answer, whose end tells of errors.
        let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
        let request = Request::get(&path)
            .header("host", "localhost")
            .body(Empty::<Bytes>::new())
            .map_err(|_| RemoteError::BadPath { table, path })?;
        let broken = |cause| self.at.broken(cause);
        let answer = sender.send_request(request).await.map_err(broken)?;
        let status = answer.status();
        let mut lines = Lines {
            at: self.at.clone(),
            body: answer.into_body(),
            rest: Vec::new(),
            lines: VecDeque::new(),
            _connection: connection,
        };
        if status.is_success() {
            return Ok(lines);
        }
        let mut message = Vec::new();
        while let Some(piece) = lines.piece().await?
            && message.len() < LONGEST_ERROR
        {
            message.extend_from_slice(&piece);
        }
        Err(RemoteError::Refused {
            table: lines.at.table,
            status,
            message: String::from_utf8_lossy(&message).trim_end().to_owned(),
        })
    }
}

impl Place {
    fn unreachable(&self, cause: io::Error) -> RemoteError {
        RemoteError::Connect {
            table: self.table.clone(),
            endpoint: self.endpoint.clone(),
            cause,
        }
    }

    fn broken(&self, cause: hyper::Error) -> RemoteError {
        RemoteError::Broken {
            table: self.table.clone(),
            endpoint: self.endpoint.clone(),
            cause,
        }
    }

    async fn handshake<S>(
        &self,
        stream: S,
    ) -> Result<
        (
            http1::SendRequest<Empty<Bytes>>,
            http1::Connection<TokioIo<S>, Empty<Bytes>>,
        ),
        RemoteError,
    >
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|cause| self.broken(cause))
    }
}

/// The task that drives a connection; ends with whoever reads.
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer, line by line.
struct Lines {
    at: Place,
    body: Incoming,
    rest: Vec<u8>,
    lines: VecDeque<Vec<u8>>,
    _connection: Connection,
}

impl Lines {
    async fn piece(&mut self) -> Result<Option<Bytes>, RemoteError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.map_err(|cause| self.at.broken(cause))?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// What the next line that is not empty says.
    async fn next<L: DeserializeOwned>(&mut self) -> Result<Option<L>, RemoteError> {
        loop {
            while let Some(line) = self.lines.pop_front() {
                if line.is_empty() {
                    continue;
                }
                let said = serde_json::from_slice(&line).map_err(|cause| RemoteError::Decode {
                    table: self.at.table.clone(),
                    line: String::from_utf8_lossy(&line).into_owned(),
                    cause,
                })?;
                return Ok(Some(said));
            }
            let Some(piece) = self.piece().await? else {
                return Ok(None);
            };
            let mut parts = piece.split(|byte| *byte == b'\n');
            self.rest.extend_from_slice(parts.next().unwrap_or_default());
            for part in parts {
                self.lines
                    .push_back(std::mem::replace(&mut self.rest, part.to_vec()));
            }
        }
    }
}
