//! Lists, page by page.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ApiClient, ApiError, MetadataForm, parse_response};
use crate::kube::{key::Gvk, selector::LabelSelector};

/// The end of one page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The resourceVersion of the list.
    pub version: String,
    /// The continue token of the next page; empty after the last.
    pub next_token: String,
    /// Size of the page.
    pub bytes: usize,
}

impl ApiClient {
    /// Path and query of a collection, ending so that further parameters can be appended.
    pub async fn collection_query(
        &self,
        gvk: &Gvk,
        namespace: &str,
        labels: Option<&LabelSelector>,
    ) -> Result<String, ApiError> {
        let mut path = format!("{}?", self.discover_resource(gvk).await?.collection(namespace));
        if let Some(selector) = labels {
            path.push_str("labelSelector=");
            path.extend(utf8_percent_encode(&selector.to_string(), NON_ALPHANUMERIC));
            path.push('&');
        }
        Ok(path)
    }

    /// Lists one page and calls `each` with the JSON of every item; `query` comes from
    /// [`ApiClient::collection_query`].
    pub async fn list_page(
        &self,
        query: &str,
        limit: usize,
        token: &str,
        form: Option<MetadataForm>,
        mut each: impl FnMut(&str),
    ) -> Result<ListPage, ApiError> {
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
            path.extend(utf8_percent_encode(token, NON_ALPHANUMERIC));
        }
        let bytes = self.get_within(&path, form, self.bounds.page_bytes).await?;
        let page: Page = parse_response(&bytes)?;
        let overlay = self
            .interceptor
            .as_ref()
            .and_then(|i| i.overlay_collection(query));
        for item in page.items.iter().flatten() {
            if overlay.as_ref().is_none_or(|o| !o.hides(item.get())) {
                each(item.get());
            }
        }
        if page.metadata.r#continue.is_empty() {
            overlay.iter().flat_map(|o| &o.objects).for_each(|o| each(o));
        }
        Ok(ListPage {
            version: page.metadata.resource_version,
            next_token: page.metadata.r#continue,
            bytes: bytes.len(),
        })
    }
}
