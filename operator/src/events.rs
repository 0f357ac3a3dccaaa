//! The one recorder of Kubernetes events. An event is an extra: where it cannot be written, the log has it.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_runtime::events::{Event, EventType, Recorder, Reporter};

/// The API server takes notes up to 1 kB.
const NOTE_MAX: usize = 1_000;

/// Records events.
#[derive(Clone)]
pub struct Events {
    client: Client,
    reporter: Reporter,
}

impl Events {
    /// In the name of this replica.
    pub fn new(client: Client, pod: &str) -> Self {
        Self {
            client,
            reporter: Reporter {
                controller: "coupon-operator".to_owned(),
                instance: Some(pod.to_owned()),
            },
        }
    }

    /// Something happened as it should.
    pub async fn normal(&self, about: &ObjectReference, action: &str, reason: &str, note: &str) {
        self.publish(EventType::Normal, about, action, reason, note).await;
    }

    /// Something that somebody should look at.
    pub async fn warning(&self, about: &ObjectReference, action: &str, reason: &str, note: &str) {
        self.publish(EventType::Warning, about, action, reason, note).await;
    }

    async fn publish(&self, type_: EventType, about: &ObjectReference, action: &str, reason: &str, note: &str) {
        let mut end = note.len().min(NOTE_MAX);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note[..end].to_owned()),
            action: action.to_owned(),
            secondary: None,
        };
        // A recorder takes two events that differ only in their note for one, and goes on showing the first note. What
        // is news here comes too seldom to need a series.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        match recorder.publish(&event, about).await {
            Ok(()) => {}
            Err(error) if namespace_is_going(&error) => {
                tracing::debug!(reason, note, "no event is recorded in a namespace that is going");
            }
            Err(error) => tracing::warn!(%error, reason, note, "event could not be recorded"),
        }
    }
}

/// Nothing can be created in a namespace that is being deleted, and nobody would read it there.
fn namespace_is_going(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}
