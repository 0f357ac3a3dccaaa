//! Our finalizer: set before anything outside the cluster is made, removed when it is gone.

use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
};

use crate::{
    reconcile::Object,
    resource::FINALIZER,
    status::{FIELD_MANAGER, identity},
};

/// How often a removal starts anew when somebody else changes the finalizers.
const ATTEMPTS: usize = 10;

/// Why the finalizer could not be set or removed.
#[derive(Debug, thiserror::Error)]
pub enum FinalizerError {
    /// The API server.
    #[error("the finalizer of {name} cannot be {what}: {source}")]
    Api {
        /// The object.
        name: String,
        /// `set` or `removed`.
        what: &'static str,
        /// As the API server put it.
        source: kube::Error,
    },
    /// Somebody kept changing them.
    #[error("the finalizers of {0} kept changing under {ATTEMPTS} attempts to remove ours; it is tried again")]
    Contended(String),
}

/// Whether ours is there.
pub fn is_set(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

/// Sets it. Others' finalizers stay: each manager owns its own entry of the list.
pub async fn set(api: &Api<Object>, meta: &ObjectMeta) -> Result<(), FinalizerError> {
    let mut patch = identity(meta);
    patch["metadata"]["finalizers"] = serde_json::json!([FINALIZER]);
    let name = meta.name.clone().unwrap_or_default();
    api.patch(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&patch))
        .await
        .map(drop)
        .map_err(|source| FinalizerError::Api {
            name,
            what: "set",
            source,
        })
}

/// Removes it, whoever put it there: after a restore from a backup, it belongs to the tool that restored it. The patch
/// holds only for the list that was read, so that nobody else's finalizer is lost; writes to anything else, such as the
/// status, do not disturb it.
pub async fn remove(api: &Api<Object>, meta: &ObjectMeta) -> Result<(), FinalizerError> {
    let name = meta.name.clone().unwrap_or_default();
    let failed = |source| FinalizerError::Api {
        name: name.clone(),
        what: "removed",
        source,
    };
    for _ in 0..ATTEMPTS {
        let Some(object) = api.get_opt(&name).await.map_err(failed)? else {
            return Ok(());
        };
        // Another object of the same name, or one that we have let go.
        if object.uid() != meta.uid || !is_set(kube::Resource::meta(&object)) {
            return Ok(());
        }
        let patch = removal(object.uid().as_deref(), object.finalizers()).map_err(failed)?;
        match api.patch(&name, &PatchParams::default(), &patch).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            // What was read is not there any more.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_invalid() => {}
            Err(source) => return Err(failed(source)),
        }
    }
    Err(FinalizerError::Contended(name))
}

fn removal(uid: Option<&str>, finalizers: &[String]) -> Result<Patch<()>, kube::Error> {
    let others: Vec<&String> = finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let operations = serde_json::json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/finalizers", "value": finalizers},
        {"op": "replace", "path": "/metadata/finalizers", "value": others},
    ]);
    Ok(Patch::Json(
        serde_json::from_value(operations).map_err(kube::Error::SerdeError)?,
    ))
}
