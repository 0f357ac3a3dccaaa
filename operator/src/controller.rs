//! Watches the campaigns of one namespace, or of all, and reconciles each when it changes and when its time has come.

use std::sync::Arc;

use futures::StreamExt;
use kube::{Api, Client};
use kube_runtime::{
    Predicate, PredicateConfig, WatchStreamExt, controller::Controller, predicates, reflector, reflector::Store,
    watcher,
};

use crate::reconcile::{Context, Object, reconcile, retry};

/// Campaigns as they were last seen.
pub struct Watched {
    /// What the watch knows.
    pub store: Store<Object>,
    controller: Controller<Object>,
}

/// Begins to watch; nothing happens until [`run`].
pub fn watch(client: Client, namespace: Option<&str>) -> Watched {
    let api: Api<Object> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let (store, writer) = reflector::store();
    // Our own status writes are no news: else every number that changes would be looked at again at once.
    let changes = predicates::generation
        .combine(predicates::annotations)
        .combine(predicates::finalizers);
    let objects = watcher(api, watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .applied_objects()
        .predicate_filter(changes, PredicateConfig::default());
    Watched {
        controller: Controller::for_stream(objects, store.clone()),
        store,
    }
}

/// Reconciles until it is dropped; what is under way then is cut short.
pub async fn run(watched: Watched, context: Arc<Context>) {
    let metrics = context.metrics.clone();
    watched
        .controller
        .run(reconcile, retry, context)
        .for_each(|result| {
            use kube_runtime::controller::Error;
            match result {
                // Counted and logged by the reconcile itself.
                Ok(_) | Err(Error::ReconcilerFailed(..)) => {}
                // Deleted between its turn and its look.
                Err(Error::ObjectNotFound(_)) => {}
                Err(error) => {
                    metrics.error("watch");
                    tracing::warn!(%error, "watch goes on");
                }
            }
            std::future::ready(())
        })
        .await;
}
