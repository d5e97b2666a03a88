//! Lists, page by page.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ApiError, As, Cluster, parse};
use crate::kube::{key::Gvk, selector::Selector};

impl Cluster {
    /// Path and query of a collection, ending so that more of the query can follow.
    pub async fn query(
        &self,
        gvk: &Gvk,
        namespace: &str,
        labels: Option<&Selector>,
    ) -> Result<String, ApiError> {
        let mut path = format!("{}?", self.resource(gvk).await?.collection(namespace));
        if let Some(selector) = labels {
            path.push_str("labelSelector=");
            path.extend(percent(&selector.to_string()));
            path.push('&');
        }
        Ok(path)
    }

    /// One page of a list, item by item; `query` is of [`Cluster::query`]. Gives the list's version and the token
    /// of the next page, empty after the last.
    pub async fn page(
        &self,
        query: &str,
        limit: usize,
        token: &str,
        form: Option<As>,
        mut each: impl FnMut(&str),
    ) -> Result<(String, String), ApiError> {
        #[derive(Deserialize)]
        struct Page<'a> {
            metadata: Meta,
            #[serde(borrow, default)]
            items: Option<Vec<&'a RawValue>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            #[serde(default)]
            resource_version: String,
            #[serde(default)]
            r#continue: String,
        }
        let mut path = format!("{query}limit={limit}");
        if !token.is_empty() {
            path.push_str("&continue=");
            path.extend(percent(token));
        }
        let bytes = self.get_as(&path, form).await?;
        let page: Page = parse(&bytes)?;
        let planned = self.layer.as_ref().and_then(|layer| layer.collected(query));
        for item in page.items.iter().flatten() {
            if planned.as_ref().is_none_or(|p| !p.hides(item.get())) {
                each(item.get());
            }
        }
        if page.metadata.r#continue.is_empty() {
            planned.iter().flat_map(|p| &p.objects).for_each(|o| each(o));
        }
        Ok((page.metadata.resource_version, page.metadata.r#continue))
    }
}

/// In a query: everything but letters and digits is escaped.
fn percent(text: &str) -> impl Iterator<Item = char> + '_ {
    text.bytes().flat_map(|b| {
        let escaped = if b.is_ascii_alphanumeric() {
            vec![char::from(b)]
        } else {
            format!("%{b:02X}").chars().collect()
        };
        escaped.into_iter()
    })
}
