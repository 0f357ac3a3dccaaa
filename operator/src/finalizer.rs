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

/// How often a removal starts anew when somebody else writes the same object.
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
    /// Somebody kept writing.
    #[error("{0} kept changing under {ATTEMPTS} attempts to remove its finalizer; it is tried again")]
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

/// Removes it, whoever put it there: after a restore from a backup, it belongs to the tool that restored it. The
/// object's version goes along, so that nobody else's finalizer is lost; status writes in between only repeat it.
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
        let others: Vec<&String> = object
            .finalizers()
            .iter()
            .filter(|finalizer| *finalizer != FINALIZER)
            .collect();
        let patch = serde_json::json!({
            "metadata": {"resourceVersion": object.resource_version(), "finalizers": others}
        });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match api.patch(&name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(source) => return Err(failed(source)),
        }
    }
    Err(FinalizerError::Contended(name))
}
