// SPDX-License-Identifier: Apache-2.0

//! A client that fails on demand and records its requests.

use std::fmt::Debug;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::Value;
use skep_k8s_types::{Kind, RawObject};

use crate::client::{Client, RawPage, RawWatch, ServerVersion};
use crate::error::{ApiError, Status};
use crate::event::RawEvent;
use crate::options::{DeleteOptions, ListOptions, Patch, Subresource, WatchOptions, WriteOptions};

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// [`Client::list`], one page.
    List,
    /// [`Client::watch`], its start.
    Watch,
    /// [`Client::get`].
    Get,
    /// [`Client::create`].
    Create,
    /// [`Client::update`].
    Update,
    /// [`Client::patch`].
    Patch,
    /// [`Client::delete`].
    Delete,
}

impl Verb {
    /// Whether it changes an object.
    #[must_use]
    pub fn is_write(self) -> bool {
        !matches!(self, Self::List | Self::Watch | Self::Get)
    }
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub verb: Verb,
    /// Plural of the kind, such as `pods`.
    pub plural: String,
    /// Namespace; empty for cluster-scoped objects and for lists of all namespaces.
    pub namespace: String,
    /// Name of the object; empty for lists and watches.
    pub name: String,
    /// Whether it writes the status only.
    pub is_status: bool,
    /// Field manager of a write.
    pub field_manager: String,
}

/// What goes wrong with a request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The request does not arrive: [`ApiError::Unreachable`].
    Unreachable,
    /// The request does not arrive, and is not answered.
    Hangs,
    /// The server rejects the request.
    Rejected(Status),
    /// The request takes so much longer, and nothing else is wrong with it.
    Delayed(Duration),
    /// The request arrives; its answer does not.
    AnswerLost,
    /// The request arrives; the answer is this failure.
    AnsweredWith(Status),
    /// The request arrives; the object in the answer has no status.
    AnswerWithoutStatus,
}

impl Fault {
    /// The server rejects the request, with this code and reason.
    #[must_use]
    pub fn rejected(code: u16, reason: &str) -> Self {
        Self::Rejected(Status::new(code, reason, reason))
    }

    /// The object has changed since it was read.
    #[must_use]
    pub fn conflict() -> Self {
        Self::rejected(409, "Conflict")
    }

    /// The client is not allowed to.
    #[must_use]
    pub fn forbidden() -> Self {
        Self::rejected(403, "Forbidden")
    }
}

type Rule = Arc<dyn Fn(&Request) -> Option<Fault> + Send + Sync>;
type Rewrite = Arc<dyn Fn(&mut Value) + Send + Sync>;

/// A client on which requests fail by rules, and that records those that succeed.
///
/// ```
/// use std::sync::Arc;
/// use skep_k8s_client::DisabledClient;
/// use skep_k8s_client::testing::{Fault, FaultyClient, Verb};
///
/// let client = FaultyClient::new(Arc::new(DisabledClient));
/// client.inject(|request| (request.verb == Verb::Update).then(Fault::conflict));
/// client.heal();
/// ```
pub struct FaultyClient {
    inner: Arc<dyn Client>,
    is_enabled: AtomicBool,
    rules: Mutex<Vec<Rule>>,
    rewrite: Mutex<Option<Rewrite>>,
    succeeded: Mutex<Vec<Request>>,
    failed: Mutex<Vec<Request>>,
}

impl FaultyClient {
    /// A client that passes all requests to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Client>) -> Arc<Self> {
        Arc::new(Self {
            is_enabled: AtomicBool::new(true),
            inner,
            rules: Mutex::default(),
            rewrite: Mutex::default(),
            succeeded: Mutex::default(),
            failed: Mutex::default(),
        })
    }

    /// The client behind it, on which nothing fails and nothing is recorded.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn Client> {
        &self.inner
    }

    /// Sets what [`Client::is_enabled`] returns.
    pub fn set_enabled(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::SeqCst);
    }

    /// Adds a rule: it is called before every request, and the first rule that returns a fault decides. A rule may also do
    /// what another client does at that moment, and return none.
    pub fn inject(&self, rule: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static) {
        self.rules.lock().push(Arc::new(rule));
    }

    /// Fails all requests.
    pub fn fail(&self, fault: Fault) {
        self.inject(move |_| Some(fault.clone()));
    }

    /// Fails the next `count` requests with this verb.
    pub fn fail_times(&self, count: usize, verb: Verb, fault: Fault) {
        let left = AtomicUsize::new(count);
        let take = move || {
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok()
        };
        self.inject(move |request| (request.verb == verb && take()).then(|| fault.clone()));
    }

    /// Changes each object that is listed, watched or read, as a server would send it whose schema is another. The change is
    /// there from the next request on, and stays.
    ///
    /// ```
    /// # fn example(client: &skep_k8s_client::testing::FaultyClient) {
    /// client.rewrite(|object| object["spec"]["ports"] = "none".into());
    /// # }
    /// ```
    pub fn rewrite(&self, change: impl Fn(&mut Value) + Send + Sync + 'static) {
        *self.rewrite.lock() = Some(Arc::new(change));
    }

    /// Removes all rules.
    pub fn heal(&self) {
        self.rules.lock().clear();
    }

    /// Requests that succeeded, in their order.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.succeeded.lock().clone()
    }

    /// Number of requests with this verb that succeeded.
    #[must_use]
    pub fn count(&self, verb: Verb) -> usize {
        let requests = self.succeeded.lock();
        requests.iter().filter(|request| request.verb == verb).count()
    }

    /// Number of requests with this verb that failed by a rule.
    #[must_use]
    pub fn count_failed(&self, verb: Verb) -> usize {
        let requests = self.failed.lock();
        requests.iter().filter(|request| request.verb == verb).count()
    }

    /// Returns the writes that succeeded as `verb plural/name`, and drops what is recorded.
    pub fn take_writes(&self) -> Vec<String> {
        let writes = self.requests().into_iter();
        let writes = writes.filter(|request| request.verb.is_write());
        let writes = writes.map(
            |Request {
                 verb, plural, name, ..
             }| { format!("{} {plural}/{name}", format!("{verb:?}").to_lowercase()) },
        );
        let writes = writes.collect();
        self.forget();
        writes
    }

    /// Waits until no write has succeeded for this time.
    pub async fn settle(&self, quiet: Duration) {
        let count = || {
            let requests = self.succeeded.lock();
            requests.iter().filter(|request| request.verb.is_write()).count()
        };
        loop {
            let before = count();
            tokio::time::sleep(quiet).await;
            if count() == before {
                return;
            }
        }
    }

    /// Drops what is recorded.
    pub fn forget(&self) {
        self.succeeded.lock().clear();
        self.failed.lock().clear();
    }

    fn fault(&self, request: &Request) -> Option<Fault> {
        // A rule may add rules: it is called without the lock.
        let rules = self.rules.lock().clone();
        rules.iter().find_map(|rule| rule(request))
    }

    async fn pass<T>(
        &self,
        request: Request,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let answer = answer.await;
        if answer.is_ok() {
            self.succeeded.lock().push(request);
        }
        answer
    }

    async fn run<T>(
        &self,
        request: Request,
        answer: impl Future<Output = Result<T, ApiError>>,
        strip: impl FnOnce(T) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let fault = self.fault(&request);
        if !matches!(fault, None | Some(Fault::Delayed(_))) {
            self.failed.lock().push(request.clone());
        }
        match fault {
            None => self.pass(request, answer).await,
            Some(Fault::Delayed(time)) => {
                tokio::time::sleep(time).await;
                self.pass(request, answer).await
            }
            Some(Fault::Unreachable) => Err(ApiError::Unreachable {
                server: "https://lost".to_owned(),
                cause: "cut".into(),
            }),
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Rejected(status)) => Err(ApiError::Status(status)),
            Some(Fault::AnswerLost) => {
                let _ = answer.await;
                std::future::pending().await
            }
            Some(Fault::AnsweredWith(status)) => {
                answer.await?;
                Err(ApiError::Status(status))
            }
            Some(Fault::AnswerWithoutStatus) => strip(answer.await?),
        }
    }
}

/// Waits until `read` returns what is expected, for five minutes at most. With a paused clock that takes no time: it passes only
/// while nothing else can be done.
///
/// # Panics
///
/// At the call, if it does not.
#[track_caller]
pub fn until<T: PartialEq + Debug>(expected: T, read: impl Fn() -> T) -> impl Future<Output = ()> {
    let place = Location::caller();
    async move {
        for _ in 0..3000 {
            if read() == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{place}: got {:?}, expected {expected:?}", read());
    }
}

fn request(verb: Verb, kind: &Kind, namespace: &str, name: &str) -> Request {
    Request {
        verb,
        plural: kind.plural.to_string(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        is_status: false,
        field_manager: String::new(),
    }
}

fn write(
    verb: Verb,
    kind: &Kind,
    namespace: &str,
    name: &str,
    part: Subresource,
    options: &WriteOptions,
) -> Request {
    Request {
        is_status: part == Subresource::Status,
        field_manager: options.field_manager.clone(),
        ..request(verb, kind, namespace, name)
    }
}

fn name_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}

fn rewritten(rewrite: Option<&Rewrite>, object: RawObject) -> Result<RawObject, ApiError> {
    let Some(rewrite) = rewrite else {
        return Ok(object);
    };
    let mut value = (*object.to_value()?).clone();
    rewrite(&mut value);
    Ok(RawObject::from_value(Arc::new(value)))
}

fn without_status(object: RawObject) -> Result<RawObject, ApiError> {
    let mut value = (*object.to_value()?).clone();
    if let Some(object) = value.as_object_mut() {
        object.shift_remove("status");
    }
    Ok(RawObject::from_value(Arc::new(value)))
}

#[async_trait]
impl Client for FaultyClient {
    fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::SeqCst)
    }

    async fn recovered(&self) {
        self.inner.recovered().await;
    }

    async fn server_version(&self) -> Result<ServerVersion, ApiError> {
        self.inner.server_version().await
    }

    async fn kinds(&self) -> Result<Vec<Kind>, ApiError> {
        self.inner.kinds().await
    }

    async fn list(&self, kind: &Kind, namespace: &str, options: &ListOptions) -> Result<RawPage, ApiError> {
        let answer = self.inner.list(kind, namespace, options);
        let request = request(Verb::List, kind, namespace, "");
        let mut page = self.run(request, answer, Ok).await?;
        let rewrite = self.rewrite.lock().clone();
        let items = page
            .items
            .into_iter()
            .map(|object| rewritten(rewrite.as_ref(), object));
        page.items = items.collect::<Result<_, _>>()?;
        Ok(page)
    }

    async fn watch(
        &self,
        kind: &Kind,
        namespace: &str,
        options: &WatchOptions,
    ) -> Result<RawWatch, ApiError> {
        let answer = self.inner.watch(kind, namespace, options);
        let request = request(Verb::Watch, kind, namespace, "");
        let events = self.run(request, answer, Ok).await?;
        let rewrite = self.rewrite.lock().clone();
        let events = events.map(move |event| {
            Ok(match event? {
                RawEvent::Object(change, object) => {
                    RawEvent::Object(change, rewritten(rewrite.as_ref(), object)?)
                }
                bookmark @ RawEvent::Bookmark { .. } => bookmark,
            })
        });
        Ok(events.boxed())
    }

    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<RawObject, ApiError> {
        let answer = self.inner.get(kind, namespace, name);
        let request = request(Verb::Get, kind, namespace, name);
        let object = self.run(request, answer, without_status).await?;
        let rewrite = self.rewrite.lock().clone();
        rewritten(rewrite.as_ref(), object)
    }

    async fn create(
        &self,
        kind: &Kind,
        namespace: &str,
        object: Value,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        let name = name_of(&object);
        let request = write(Verb::Create, kind, namespace, &name, Subresource::None, options);
        let answer = self.inner.create(kind, namespace, object, options);
        self.run(request, answer, without_status).await
    }

    async fn update(
        &self,
        kind: &Kind,
        namespace: &str,
        part: Subresource,
        object: Value,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        let name = name_of(&object);
        let request = write(Verb::Update, kind, namespace, &name, part, options);
        let answer = self.inner.update(kind, namespace, part, object, options);
        self.run(request, answer, without_status).await
    }

    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        part: Subresource,
        patch: &Patch,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        let request = write(Verb::Patch, kind, namespace, name, part, options);
        let answer = self.inner.patch(kind, namespace, name, part, patch, options);
        self.run(request, answer, without_status).await
    }

    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let answer = self.inner.delete(kind, namespace, name, options);
        self.run(request(Verb::Delete, kind, namespace, name), answer, Ok)
            .await
    }
}

#[cfg(test)]
mod tests;
