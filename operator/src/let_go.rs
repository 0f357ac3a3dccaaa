//! Takes the finalizer off all campaigns: for an uninstall, when no operator is left that could. The campaigns stay as they
//! are, in Postgres and in Redis; the next operator goes on with them.

use kube::{Api, Client, Resource, api::ListParams};

use crate::{
    finalizer::{self, FinalizerError},
    reconcile::Object,
};

/// Objects of one page: a cluster may hold many.
const PAGE: u32 = 200;

/// Why an object was not let go.
#[derive(Debug, thiserror::Error)]
pub enum LetGoError {
    /// They could not be listed.
    #[error("the campaigns cannot be listed: {0}; allow this account to list couponcampaigns")]
    List(#[source] Box<kube::Error>),
    /// One of them.
    #[error(transparent)]
    Finalizer(#[from] FinalizerError),
}

/// Lets the campaigns of these namespaces go, or all of them if none is named; answers how many had the finalizer.
pub async fn let_go(client: &Client, namespaces: &[String]) -> Result<usize, LetGoError> {
    if namespaces.is_empty() {
        return let_go_of(client, &Api::all(client.clone())).await;
    }
    let mut count = 0;
    for namespace in namespaces {
        count += let_go_of(client, &Api::namespaced(client.clone(), namespace)).await?;
    }
    Ok(count)
}

async fn let_go_of(client: &Client, objects: &Api<Object>) -> Result<usize, LetGoError> {
    let mut page = ListParams::default().limit(PAGE);
    let mut count = 0;
    loop {
        let listed = objects
            .list(&page)
            .await
            .map_err(|source| LetGoError::List(Box::new(source)))?;
        for object in &listed.items {
            let meta = object.meta();
            if finalizer::is_set(meta) {
                let namespace = meta.namespace.as_deref().unwrap_or_default();
                finalizer::remove(&Api::namespaced(client.clone(), namespace), meta).await?;
                count += 1;
            }
        }
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(count),
        }
    }
}
