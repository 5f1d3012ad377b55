// SPDX-License-Identifier: Apache-2.0

use serde_json::json;
use skep_k8s_types::RawObject;

use super::*;

/// A server that stores nothing and accepts updates, which it counts.
#[derive(Default)]
struct Accepting {
    updates: AtomicUsize,
}

#[async_trait]
impl Client for Accepting {
    fn is_enabled(&self) -> bool {
        true
    }

    async fn kinds(&self) -> Result<Vec<Kind>, ApiError> {
        Ok(Vec::new())
    }

    async fn list(&self, _: &Kind, _: &str, _: &ListOptions) -> Result<RawPage, ApiError> {
        Err(ApiError::Disabled)
    }

    async fn watch(&self, _: &Kind, _: &str, _: &WatchOptions) -> Result<RawWatch, ApiError> {
        Err(ApiError::Disabled)
    }

    async fn update(
        &self,
        _: &Kind,
        _: &str,
        _: Subresource,
        object: Value,
        _: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        self.updates.fetch_add(1, Ordering::SeqCst);
        Ok(RawObject::from_value(Arc::new(object)))
    }
}

struct Setup {
    server: Arc<Accepting>,
    client: Arc<FaultyClient>,
}

impl Setup {
    fn new() -> Self {
        let server = Arc::new(Accepting::default());
        let client = FaultyClient::new(server.clone());
        Self { server, client }
    }

    async fn update(&self, name: &str) -> Result<RawObject, ApiError> {
        let object = json!({ "metadata": { "name": name }, "status": {} });
        let options = WriteOptions::default();
        let part = Subresource::Status;
        self.client
            .update(&Kind::POD, "shop", part, object, &options)
            .await
    }

    fn arrived(&self) -> usize {
        self.server.updates.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_fault_before_the_server_does_not_arrive() {
    let setup = Setup::new();
    setup.client.fail_times(2, Verb::Update, Fault::conflict());

    assert!(setup.update("a").await.unwrap_err().is_conflict());
    assert!(setup.update("b").await.unwrap_err().is_conflict());
    assert!(setup.update("c").await.is_ok());

    assert_eq!((setup.arrived(), setup.client.count_failed(Verb::Update)), (1, 2));
    let requests = setup.client.requests();
    let [request] = requests.as_slice() else {
        panic!("{requests:?}")
    };
    assert_eq!(
        (
            request.plural.as_str(),
            request.namespace.as_str(),
            request.name.as_str()
        ),
        ("pods", "shop", "c")
    );
    assert!(request.is_status);
}

#[tokio::test]
async fn a_fault_after_the_server_arrives() {
    let setup = Setup::new();
    setup
        .client
        .fail_times(1, Verb::Update, Fault::AnswerWithoutStatus);
    let answer = setup.update("a").await.unwrap();
    assert_eq!(
        *answer.to_value().unwrap(),
        json!({ "metadata": { "name": "a" } })
    );

    let exists = Status::new(409, "AlreadyExists", "exists");
    setup.client.fail(Fault::AnsweredWith(exists));
    assert!(setup.update("a").await.is_err());

    assert_eq!((setup.arrived(), setup.client.count(Verb::Update)), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_never_comes_and_heals() {
    let setup = Setup::new();
    setup.client.fail(Fault::AnswerLost);
    let second = Duration::from_secs(1);

    assert!(tokio::time::timeout(second, setup.update("a")).await.is_err());
    assert_eq!(setup.arrived(), 1);

    setup.client.heal();
    assert!(setup.update("a").await.is_ok());
}
