//! As much of an API server as the operator sees: objects with versions, apply and merge patches, subresources,
//! finalizers, lists and watches, all in memory.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    body::Body,
    http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE},
};
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use operator::resource::{CouponCampaign, CouponCampaignStatus};
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// Where campaigns are.
pub const CAMPAIGNS: &str = "/apis/coupon-operator.dev/v1alpha1/namespaces/default/couponcampaigns";

/// Clones share the objects.
#[derive(Clone)]
pub struct ApiServer {
    state: Arc<Mutex<State>>,
    changes: broadcast::Sender<(String, Value)>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    requests: Vec<String>,
    down: bool,
}

impl ApiServer {
    pub fn new() -> Self {
        Self {
            state: Arc::default(),
            changes: broadcast::channel(1_000).0,
        }
    }

    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Refuses everything, or answers again.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
    }

    /// `METHOD path` of all writes so far.
    pub fn writes(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    /// Any object, by its path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path).cloned()
    }

    /// Puts an object there, as `kubectl apply` would.
    pub fn put(&self, collection: &str, mut object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut state = self.lock();
        let path = format!("{collection}/{name}");
        match state.objects.get(&path).cloned() {
            Some(mut before) => {
                before["spec"] = object["spec"].take();
                merge(
                    &mut before["metadata"]["annotations"],
                    &object["metadata"]["annotations"],
                );
                self.store(&mut state, &path, before, "MODIFIED", true);
            }
            None => {
                object["metadata"]["uid"] = json!(uuid::Uuid::new_v4());
                self.store(&mut state, &path, object, "ADDED", true);
            }
        }
    }

    /// As `kubectl delete` would.
    pub fn delete(&self, path: &str) {
        let mut state = self.lock();
        let mut object = state.objects.get(path).cloned().unwrap();
        object["metadata"]["deletionTimestamp"] = json!("2026-11-27T11:00:00Z");
        self.store(&mut state, path, object, "MODIFIED", true);
    }

    /// Applies a campaign.
    pub fn apply_campaign(&self, name: &str, spec: Value, annotations: Value) {
        self.put(
            CAMPAIGNS,
            json!({
                "apiVersion": "coupon-operator.dev/v1alpha1",
                "kind": "CouponCampaign",
                "metadata": {"name": name, "namespace": "default", "annotations": annotations},
                "spec": spec,
            }),
        );
    }

    pub fn campaign(&self, name: &str) -> Option<CouponCampaign> {
        self.get(&format!("{CAMPAIGNS}/{name}"))
            .map(|object| serde_json::from_value(object).unwrap())
    }

    pub fn campaign_status(&self, name: &str) -> CouponCampaignStatus {
        self.campaign(name)
            .and_then(|campaign| campaign.status)
            .unwrap_or_default()
    }

    /// `(status, reason)` of a condition.
    pub fn condition(&self, name: &str, kind: &str) -> Option<(String, String)> {
        let status = self.campaign_status(name);
        let condition = status
            .conditions
            .into_iter()
            .find(|condition| condition.type_ == kind)?;
        Some((condition.status, condition.reason))
    }

    /// Reasons of the events so far.
    pub fn events(&self) -> Vec<String> {
        let state = self.lock();
        let events = state.objects.iter().filter(|(path, _)| path.contains("/events/"));
        events
            .map(|(_, event)| event["reason"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    fn store(&self, state: &mut State, path: &str, mut object: Value, kind: &str, spec_changed: bool) {
        state.version += 1;
        let meta = &mut object["metadata"];
        meta["resourceVersion"] = json!(state.version.to_string());
        if spec_changed {
            meta["generation"] = json!(meta["generation"].as_i64().unwrap_or(0) + 1);
        }
        let held = meta["finalizers"]
            .as_array()
            .is_some_and(|finalizers| !finalizers.is_empty());
        let kind = if meta["deletionTimestamp"].is_string() && !held {
            state.objects.remove(path);
            "DELETED"
        } else {
            state.objects.insert(path.to_owned(), object.clone());
            kind
        };
        let collection = path.rsplit_once('/').unwrap().0.to_owned();
        let _ = self.changes.send((collection, json!({"type": kind, "object": object})));
    }

    async fn answer(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default();
        if self.lock().down {
            return answer(StatusCode::SERVICE_UNAVAILABLE, &failure(503, "ServiceUnavailable"));
        }
        if head.method == Method::GET && query.contains("watch=true") {
            return self.watch(path);
        }
        if head.method != Method::GET {
            self.lock().requests.push(format!("{} {path}", head.method));
        }
        let apply = head
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.to_str().unwrap().contains("apply-patch"));
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        match self.handle(&head.method, &path, apply, body) {
            Ok(object) => answer(StatusCode::OK, &object),
            Err((code, reason)) => answer(StatusCode::from_u16(code).unwrap(), &failure(code, reason)),
        }
    }

    fn handle(&self, method: &Method, path: &str, apply: bool, body: Value) -> Result<Value, (u16, &'static str)> {
        const NOT_FOUND: (u16, &str) = (404, "NotFound");
        const CONFLICT: (u16, &str) = (409, "Conflict");
        let mut state = self.lock();
        let name_of = |value: &Value| value["metadata"]["name"].as_str().map(str::to_owned);
        if *method == Method::POST {
            let path = format!("{path}/{}", name_of(&body).unwrap());
            if state.objects.contains_key(&path) {
                return Err((409, "AlreadyExists"));
            }
            self.store(&mut state, &path, body.clone(), "ADDED", true);
            return Ok(body);
        }
        let (object_path, subresource) = match path.rsplit_once('/') {
            Some((parent, sub @ ("status" | "scale"))) => (parent, sub),
            _ => (path, ""),
        };
        if *method == Method::GET && subresource.is_empty() && !state.objects.contains_key(path) {
            let prefix = format!("{path}/");
            let items: Vec<&Value> = state
                .objects
                .iter()
                .filter(|(key, _)| key.strip_prefix(&prefix).is_some_and(|name| !name.contains('/')))
                .map(|(_, object)| object)
                .collect();
            if items.is_empty() && !path.ends_with("couponcampaigns") {
                return Err(NOT_FOUND);
            }
            return Ok(json!({
                "apiVersion": "v1", "kind": "List",
                "metadata": {"resourceVersion": state.version.to_string()}, "items": items,
            }));
        }
        let mut object = state.objects.get(object_path).cloned().ok_or(NOT_FOUND)?;
        if *method == Method::GET {
            return Ok(if subresource == "scale" { scale(&object) } else { object });
        }
        let stale =
            |field: &str, wanted: &Value| wanted[field].is_string() && wanted[field] != object["metadata"][field];
        if stale("resourceVersion", &body["metadata"]) || stale("uid", &body["metadata"]) {
            return Err(CONFLICT);
        }
        if let Some(operations) = body.as_array() {
            for operation in operations {
                let pointer = operation["path"].as_str().unwrap();
                let value = &operation["value"];
                match operation["op"].as_str().unwrap() {
                    "test" if object.pointer(pointer) != Some(value) => return Err((422, "Invalid")),
                    "replace" => *object.pointer_mut(pointer).unwrap() = value.clone(),
                    _ => {}
                }
            }
            self.store(&mut state, object_path, object.clone(), "MODIFIED", false);
            return Ok(object);
        }
        match (method.as_str(), subresource, apply) {
            ("PUT", "", _) => object = body,
            ("PATCH", "status", true) => object["status"] = body["status"].clone(),
            ("PATCH", "scale", false) => merge(&mut object["spec"], &body["spec"]),
            ("PATCH", "", true) => {
                let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                let added = body["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                let added = added.into_iter().filter(|finalizer| !finalizers.contains(finalizer));
                object["metadata"]["finalizers"] = finalizers.iter().cloned().chain(added).collect();
            }
            ("PATCH", "", false) => merge(&mut object, &body),
            other => panic!("{other:?} {path}"),
        }
        self.store(&mut state, object_path, object.clone(), "MODIFIED", false);
        Ok(if subresource == "scale" { scale(&object) } else { object })
    }

    fn watch(&self, collection: String) -> Response<Body> {
        let changes = stream::unfold(self.changes.subscribe(), |mut changes| async {
            changes.recv().await.ok().map(|change| (change, changes))
        });
        let lines = changes.filter_map(move |(changed, event)| {
            let line = (changed == collection).then(|| Bytes::from(format!("{event}\n")));
            async move { line.map(|line| Ok::<_, Infallible>(Frame::data(line))) }
        });
        Response::new(Body::new(StreamBody::new(lines)))
    }
}

fn scale(object: &Value) -> Value {
    json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": object["metadata"]["name"]}, "spec": {"replicas": object["spec"]["replicas"]},
    })
}

fn merge(into: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => {
            if !into.is_object() {
                *into = json!({});
            }
            for (name, value) in fields {
                merge(&mut into[name.as_str()], value);
            }
        }
        Value::Null => {}
        other => *into = other.clone(),
    }
}

fn failure(code: u16, reason: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": reason, "reason": reason, "code": code})
}

fn answer(code: StatusCode, body: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(serde_json::to_vec(body).unwrap()))
        .unwrap()
}
