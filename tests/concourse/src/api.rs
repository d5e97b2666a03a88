//! Concourse's HTTP API, one file per kind of thing.

mod auth;
mod builds;
mod info;
mod jobs;
mod pipelines;
mod resources;
mod teams;
mod workers;

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use crate::page::Page;
use crate::state::{InstanceVars, Model, Pipeline, Role};
use crate::{App, config};

pub(crate) use auth::TOKEN_PATH;

/// All endpoints.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .merge(auth::routes())
        .merge(info::routes())
        .merge(teams::routes())
        .merge(pipelines::routes())
        .merge(jobs::routes())
        .merge(builds::routes())
        .merge(resources::routes())
        .merge(workers::routes())
        // Pipelines are long; Concourse has no limit.
        .layer(axum::extract::DefaultBodyLimit::max(64 << 20))
}

/// What Concourse may serve and the simulator does not.
pub(crate) async fn unknown(request: Request) -> Response {
    let path = request.uri().path();
    if path.starts_with("/api/") || path.starts_with("/sky/") {
        text(
            StatusCode::NOT_IMPLEMENTED,
            format!("not simulated: {} {path}\n", request.method()),
        )
    } else {
        text(StatusCode::NOT_FOUND, "404 page not found\n")
    }
}

/// An answer that ends a handler early.
#[derive(Debug)]
enum Refused {
    Empty(StatusCode),
    Text(StatusCode, String),
    Json(StatusCode, Value),
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Self::Empty(status) => empty(status),
            Self::Text(status, body) => text(status, body),
            Self::Json(status, body) => json_as(status, &body),
        }
    }
}

type Answered = Result<Response, Refused>;

const NOT_FOUND: Refused = Refused::Empty(StatusCode::NOT_FOUND);
const BAD_REQUEST: Refused = Refused::Empty(StatusCode::BAD_REQUEST);
const INTERNAL: Refused = Refused::Empty(StatusCode::INTERNAL_SERVER_ERROR);

fn unauthorized() -> Refused {
    Refused::Text(StatusCode::UNAUTHORIZED, "not authorized".into())
}

fn forbidden() -> Refused {
    Refused::Text(StatusCode::FORBIDDEN, "forbidden".into())
}

fn errors(errors: impl IntoIterator<Item = String>) -> Refused {
    Refused::Json(
        StatusCode::BAD_REQUEST,
        json!({"errors": errors.into_iter().collect::<Vec<_>>()}),
    )
}

fn empty(status: StatusCode) -> Response {
    (status, Body::empty()).into_response()
}

fn text(status: StatusCode, body: impl Into<String>) -> Response {
    (
        status,
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        body.into(),
    )
        .into_response()
}

fn json_as(status: StatusCode, body: &impl Serialize) -> Response {
    (status, axum::Json(body)).into_response()
}

fn ok(body: &impl Serialize) -> Answered {
    Ok(json_as(StatusCode::OK, body))
}

/// 200 without a body.
fn done() -> Answered {
    Ok(empty(StatusCode::OK))
}

/// `{}` with warnings if there are any, as saves and renames answer.
fn warned(status: StatusCode, mut body: Value, warnings: &[config::Warning]) -> Response {
    if !warnings.is_empty() {
        body["warnings"] = json!(warnings);
    }
    json_as(status, &body)
}

/// Reads a rename's body: the new name and what there is to say about it.
fn new_name(
    body: &[u8],
    what: &str,
    malformed: Refused,
) -> Result<(String, Option<config::Warning>), Refused> {
    let body: Value = serde_json::from_slice(body).map_err(|_| malformed)?;
    let name = body["name"].as_str().unwrap_or_default().to_owned();
    let warning = config::identifier(&name, what).map_err(|e| errors([e]))?;
    Ok((name, warning))
}

/// Leaves out what is null, as Concourse's `omitempty` does.
fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(map) = &mut value {
        map.retain(|_, v| !v.is_null());
    }
    value
}

/// The keys of a path as `a.b."c.d"`.
fn segments(path: &str) -> Vec<String> {
    let (mut keys, mut quoted) = (vec![String::new()], false);
    for c in path.chars() {
        match c {
            '"' => quoted = !quoted,
            '.' if !quoted => keys.push(String::new()),
            c => keys.last_mut().expect("there is one").push(c),
        }
    }
    keys
}

/// A request: who asks, for what. A bad token ends here.
struct Call {
    app: Arc<App>,
    user: Option<String>,
    params: HashMap<String, String>,
    query: Vec<(String, String)>,
    path: String,
}

impl FromRequestParts<Arc<App>> for Call {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refused> {
        let user = match parts.headers.get(header::AUTHORIZATION) {
            None => None,
            Some(header) => Some(auth::bearer(&app.model(), header).ok_or_else(unauthorized)?),
        };
        let Path(params) = Path::<HashMap<String, String>>::from_request_parts(parts, app)
            .await
            .map_err(|_| BAD_REQUEST)?;
        let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
        Ok(Self {
            app: app.clone(),
            user,
            params,
            query,
            path: parts.uri.path().to_owned(),
        })
    }
}

impl Call {
    fn model(&self) -> MutexGuard<'_, Model> {
        self.app.model()
    }

    fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }

    fn query(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|q| q.0 == key).map(|q| q.1.as_str())
    }

    /// The user who asks, if one does.
    fn user(&self) -> Result<&str, Refused> {
        self.user.as_deref().ok_or_else(unauthorized)
    }

    fn admin(&self, model: &Model) -> Result<&str, Refused> {
        let user = self.user()?;
        if model.is_admin(user) {
            Ok(user)
        } else {
            Err(forbidden())
        }
    }

    fn may_see(&self, model: &Model, team: u64) -> bool {
        self.user
            .as_ref()
            .is_some_and(|user| model.may(user, model.team_name(team), Role::Viewer))
    }

    /// The team in the path, for one who has the role in it.
    fn team(&self, model: &Model, role: Role) -> Result<u64, Refused> {
        let (user, name) = (self.user()?, self.param("team"));
        if !model.may(user, name, role) {
            return Err(forbidden());
        }
        model.team(name).map(|t| t.id).ok_or(NOT_FOUND)
    }

    /// The instance vars in the query.
    fn vars(&self) -> Result<Option<InstanceVars>, Refused> {
        let mut vars: Option<InstanceVars> = None;
        for (key, value) in &self.query {
            let Some(path) = key
                .strip_prefix("vars.")
                .or_else(|| (key == "vars").then_some(""))
            else {
                continue;
            };
            let value: Value = serde_json::from_str(value).map_err(|_| BAD_REQUEST)?;
            let mut at = vars.get_or_insert_default();
            if path.is_empty() {
                let Value::Object(all) = value else {
                    return Err(BAD_REQUEST);
                };
                at.extend(all);
                continue;
            }
            let keys = segments(path);
            let mut keys = keys.iter().map(String::as_str).peekable();
            while let Some(key) = keys.next() {
                if keys.peek().is_none() {
                    at.insert(key.to_owned(), value);
                    break;
                }
                let inner = at.entry(key).or_insert_with(|| json!({}));
                at = inner.as_object_mut().ok_or(BAD_REQUEST)?;
            }
        }
        Ok(vars.filter(|v| !v.is_empty()))
    }

    fn find_pipeline<'m>(&self, model: &'m Model) -> Result<Option<&'m Pipeline>, Refused> {
        let vars = self.vars()?;
        Ok(model.pipeline(self.param("team"), self.param("pipeline"), vars.as_ref()))
    }

    /// The pipeline in the path, to look at: everybody may look at an exposed one.
    fn shown<'m>(&self, model: &'m Model) -> Result<&'m Pipeline, Refused> {
        match self.find_pipeline(model)? {
            Some(pipeline) if pipeline.public => Ok(pipeline),
            _ => self.pipeline(model, Role::Viewer),
        }
    }

    /// The pipeline in the path, for one who has the role.
    fn pipeline<'m>(&self, model: &'m Model, role: Role) -> Result<&'m Pipeline, Refused> {
        self.team(model, role)?;
        self.find_pipeline(model)?.ok_or(NOT_FOUND)
    }

    /// As [`Call::pipeline`], for what an archived one refuses.
    fn live<'m>(&self, model: &'m Model, role: Role) -> Result<&'m Pipeline, Refused> {
        let pipeline = self.pipeline(model, role)?;
        if pipeline.archived {
            return Err(Refused::Text(
                StatusCode::CONFLICT,
                "action not allowed for an archived pipeline\n".into(),
            ));
        }
        Ok(pipeline)
    }

    /// A page with links to its neighbours.
    fn paged(&self, page: &Page, limit: usize, items: &[Value]) -> Answered {
        let mut response = json_as(StatusCode::OK, &items);
        let vars = self
            .query
            .iter()
            .filter(|q| q.0 == "vars" || q.0.starts_with("vars."));
        let vars = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(vars)
            .finish();
        let vars = if vars.is_empty() { vars } else { format!("&{vars}") };
        for (at, key, rel) in [(page.newer, "from", "previous"), (page.older, "to", "next")] {
            let Some(at) = at else { continue };
            let link = format!(
                "<{}{}?{key}={at}&limit={limit}{vars}>; rel=\"{rel}\"",
                self.app.url, self.path
            );
            if let Ok(link) = HeaderValue::from_str(&link) {
                response.headers_mut().append(header::LINK, link);
            }
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_of_instance_vars_may_be_quoted() {
        assert_eq!(super::segments("a.b"), ["a", "b"]);
        assert_eq!(super::segments(r#"a."b.c".d"#), ["a", "b.c", "d"]);
    }
}
