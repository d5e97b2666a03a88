//! Lists: pages from the shared cache or from the API server, and their continue tokens.

use std::sync::Arc;

use super::super::PluginCall;
use crate::{
    cache::store::{ListKey, ListQuery},
    client::access_review::ObjectAccess,
    contract::bindings::types::Error,
    kube::{key::ObjectRef, object::KubeObject, scope::NamespaceScope},
    sandbox::services::ClusterAccess,
    schedule::dependencies::{List, ReadDependency},
};

/// Maximum number of objects in a page from the API server, which is in memory as a whole.
const MAX_LIVE_PAGE_OBJECTS: usize = 100;

/// A page of a list: its objects, and the token of the next page.
pub(super) type ListedPage = (Vec<(ObjectRef, Arc<KubeObject>)>, Option<String>);

impl PluginCall {
    /// Lists from the shared cache. The token is the namespace and name of the last object of the page.
    pub(super) async fn list_cached(
        &mut self,
        access: &ClusterAccess,
        lists: Vec<List>,
        limit: usize,
        token: Option<&str>,
    ) -> Result<ListedPage, Error> {
        let after = match token.map(|token| token.split_once('/').ok_or_else(invalid_token)) {
            None => None,
            Some(last) => last.map(|(namespace, name)| {
                Some(ListKey {
                    namespace: namespace.into(),
                    name: name.into(),
                })
            })?,
        };
        let mut found = Vec::new();
        for list in lists {
            self.check_list(access, &list).await?;
            let dependency = ReadDependency::List(Box::new(list.clone()));
            self.record_read(dependency.clone())?;
            let scope_of = |namespaces: &NamespaceScope| dependency.scope(namespaces);
            let serving = self
                .wait_synced(&access.cache, &access.api.cluster, scope_of)
                .await?;
            let query = ListQuery {
                namespace: &list.namespace,
                labels: list.labels.as_ref(),
                fields: list.fields.as_ref(),
                after: after.as_ref(),
                limit: Some(limit + 1 - found.len().min(limit + 1)),
            };
            found.extend(access.cache.store.list(&serving, &query));
        }
        let fits = self.count_fitting(&found).min(limit);
        let more = found.len() > fits;
        found.truncate(fits);
        let last = found.last().filter(|_| more);
        let token = last.map(|(key, _)| format!("{}/{}", key.namespace, key.name));
        Ok((found, token))
    }

    /// Lists from the API server, one namespace after the other. The token is the index of the namespace and the token of
    /// the server.
    pub(super) async fn list_live(
        &mut self,
        access: &ClusterAccess,
        lists: Vec<List>,
        limit: usize,
        token: Option<&str>,
    ) -> Result<ListedPage, Error> {
        let parse = |token: &str| {
            let (at, rest) = token.strip_prefix("live/")?.split_once('/')?;
            Some((at.parse::<usize>().ok()?, rest.to_owned()))
        };
        let (at, token) = match token {
            None => (0, String::new()),
            Some(token) => parse(token).ok_or_else(invalid_token)?,
        };
        let Some(list) = lists.get(at) else {
            return Ok((Vec::new(), None));
        };
        let List { gvk, namespace, .. } = list;
        // A dependency reports when the list changes, so the account's right to read it is reviewed first.
        self.check_list(access, list).await?;
        // The edge comes before the request: a change while the response is on its way wakes the object.
        self.record_read(ReadDependency::List(Box::new(list.clone())))?;
        let account = self.context.service_account_on(access);
        let page = access.api.writer.list_page(
            account,
            gvk,
            namespace,
            list.labels.as_ref(),
            limit.min(MAX_LIVE_PAGE_OBJECTS),
            &token,
        );
        let (mut found, next) = page.await.map_err(|e| self.map_api_error(access, e))?;
        found.retain(|(_, object)| list.fields.as_ref().is_none_or(|f| object.is_selected_by(f)));
        let at = if next.is_empty() { at + 1 } else { at };
        let token = (at < lists.len()).then(|| format!("live/{at}/{next}"));
        Ok((found, token))
    }

    /// Counts the objects that fit into one page, which is no larger than the limit of one call. The first one always fits.
    fn count_fitting(&self, found: &[(ObjectRef, Arc<KubeObject>)]) -> usize {
        let mut bytes = 0;
        let fits = found.iter().take_while(|(_, object)| {
            bytes += object.json.len();
            bytes <= self.limits().call_bytes
        });
        fits.count().max(1)
    }

    /// Checks the access of the service account to a list. The dependency wakes the object on changes, so the account needs
    /// `watch` too.
    async fn check_list(&mut self, access: &ClusterAccess, list: &List) -> Result<(), Error> {
        let read = |verb| ObjectAccess {
            verb,
            gvk: &list.gvk,
            namespace: &list.namespace,
            name: "",
        };
        self.check_rbac(access, &[read("list"), read("watch")]).await
    }
}

/// The error of a continue token that this host has not issued.
fn invalid_token() -> Error {
    Error::Invalid("continue-token is not one of this host's".into())
}
