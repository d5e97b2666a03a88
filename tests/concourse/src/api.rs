//! Concourse's HTTP API, one file per kind of resource.

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
use crate::state::{ConcourseModel, SimulatedInstanceVars, SimulatedPipeline, SimulatedRole, SimulatedUser};
use crate::{App, config};

pub(crate) use auth::TOKEN_PATH;

/// Returns the routes of all endpoints.
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
        // Configs can be large, and Concourse has no limit.
        .layer(axum::extract::DefaultBodyLimit::max(64 << 20))
}

/// Answers paths that Concourse may serve and the simulator does not with 501.
pub(crate) async fn not_simulated(request: Request) -> Response {
    let path = request.uri().path();
    if path.starts_with("/api/") || path.starts_with("/sky/") {
        text_response(
            StatusCode::NOT_IMPLEMENTED,
            format!("not simulated: {} {path}\n", request.method()),
        )
    } else {
        text_response(StatusCode::NOT_FOUND, "404 page not found\n")
    }
}

/// An error response, which ends a handler early.
#[derive(Debug)]
enum ApiError {
    Empty(StatusCode),
    Text(StatusCode, String),
    Json(StatusCode, Value),
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::Empty(status) => empty_response(status),
            Self::Text(status, body) => text_response(status, body),
            Self::Json(status, body) => json_response(status, &body),
        }
    }
}

type ApiResult = Result<Response, ApiError>;

const NOT_FOUND: ApiError = ApiError::Empty(StatusCode::NOT_FOUND);
const BAD_REQUEST: ApiError = ApiError::Empty(StatusCode::BAD_REQUEST);
const INTERNAL_ERROR: ApiError = ApiError::Empty(StatusCode::INTERNAL_SERVER_ERROR);

fn unauthorized() -> ApiError {
    ApiError::Text(StatusCode::UNAUTHORIZED, "not authorized".into())
}

fn forbidden() -> ApiError {
    ApiError::Text(StatusCode::FORBIDDEN, "forbidden".into())
}

fn bad_request_errors(errors: impl IntoIterator<Item = String>) -> ApiError {
    ApiError::Json(
        StatusCode::BAD_REQUEST,
        json!({"errors": errors.into_iter().collect::<Vec<_>>()}),
    )
}

fn empty_response(status: StatusCode) -> Response {
    (status, Body::empty()).into_response()
}

fn text_response(status: StatusCode, body: impl Into<String>) -> Response {
    (
        status,
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        body.into(),
    )
        .into_response()
}

fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    (status, axum::Json(body)).into_response()
}

fn ok_json(body: &impl Serialize) -> ApiResult {
    Ok(json_response(StatusCode::OK, body))
}

/// Returns 200 without a body.
fn ok_empty() -> ApiResult {
    Ok(empty_response(StatusCode::OK))
}

/// Adds warnings to a response body if there are any, as saves and renames do.
fn json_with_warnings(status: StatusCode, mut body: Value, warnings: &[config::Warning]) -> Response {
    if !warnings.is_empty() {
        body["warnings"] = json!(warnings);
    }
    json_response(status, &body)
}

/// Parses the body of a rename. Returns the new name and a warning about it.
fn parse_rename(
    body: &[u8],
    what: &str,
    malformed: ApiError,
) -> Result<(String, Option<config::Warning>), ApiError> {
    let body: Value = serde_json::from_slice(body).map_err(|_| malformed)?;
    let name = body["name"].as_str().unwrap_or_default().to_owned();
    let warning = config::check_identifier(&name, what).map_err(|e| bad_request_errors([e]))?;
    Ok((name, warning))
}

/// Omits null fields, as Concourse's `omitempty` does.
fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(map) = &mut value {
        map.retain(|_, v| !v.is_null());
    }
    value
}

/// Splits a path such as `a.b."c.d"` into its keys.
fn split_var_path(path: &str) -> Vec<String> {
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

/// An authenticated request with its parameters. An invalid token is refused here.
struct Call {
    app: Arc<App>,
    user: Option<SimulatedUser>,
    params: HashMap<String, String>,
    query: Vec<(String, String)>,
    path: String,
}

impl FromRequestParts<Arc<App>> for Call {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let user = match parts.headers.get(header::AUTHORIZATION) {
            None => None,
            Some(header) => Some(auth::authenticate(&app.model(), header).ok_or_else(unauthorized)?),
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
    fn model(&self) -> MutexGuard<'_, ConcourseModel> {
        self.app.model()
    }

    fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }

    fn query(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|q| q.0 == key).map(|q| q.1.as_str())
    }

    /// Returns the name of the user, for a request with a token.
    fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// Returns the user, or 401 for a request without a token.
    fn require_user(&self) -> Result<&SimulatedUser, ApiError> {
        self.user.as_ref().ok_or_else(unauthorized)
    }

    fn require_admin(&self, model: &ConcourseModel) -> Result<&SimulatedUser, ApiError> {
        let user = self.require_user()?;
        if model.is_admin(user) {
            Ok(user)
        } else {
            Err(forbidden())
        }
    }

    fn can_view(&self, model: &ConcourseModel, team: u64) -> bool {
        self.user
            .as_ref()
            .is_some_and(|user| model.has_role(user, model.team_name(team), SimulatedRole::Viewer))
    }

    /// Returns the team in the path, if the user has the role in it.
    fn require_team(&self, model: &ConcourseModel, role: SimulatedRole) -> Result<u64, ApiError> {
        let (user, name) = (self.require_user()?, self.param("team"));
        if !model.has_role(user, name, role) {
            return Err(forbidden());
        }
        model.team(name).map(|t| t.id).ok_or(NOT_FOUND)
    }

    /// Parses the instance vars in the query.
    fn instance_vars(&self) -> Result<Option<SimulatedInstanceVars>, ApiError> {
        let mut vars: Option<SimulatedInstanceVars> = None;
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
            let keys = split_var_path(path);
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

    fn find_pipeline<'m>(
        &self,
        model: &'m ConcourseModel,
    ) -> Result<Option<&'m SimulatedPipeline>, ApiError> {
        let vars = self.instance_vars()?;
        Ok(model.pipeline(self.param("team"), self.param("pipeline"), vars.as_ref()))
    }

    /// Returns the pipeline in the path for reading. An exposed one needs no role.
    fn visible_pipeline<'m>(&self, model: &'m ConcourseModel) -> Result<&'m SimulatedPipeline, ApiError> {
        match self.find_pipeline(model)? {
            Some(pipeline) if pipeline.public => Ok(pipeline),
            _ => self.require_pipeline(model, SimulatedRole::Viewer),
        }
    }

    /// Returns the pipeline in the path, if the user has the role.
    fn require_pipeline<'m>(
        &self,
        model: &'m ConcourseModel,
        role: SimulatedRole,
    ) -> Result<&'m SimulatedPipeline, ApiError> {
        self.require_team(model, role)?;
        self.find_pipeline(model)?.ok_or(NOT_FOUND)
    }

    /// As [`Call::require_pipeline`], for actions that an archived pipeline refuses.
    fn unarchived_pipeline<'m>(
        &self,
        model: &'m ConcourseModel,
        role: SimulatedRole,
    ) -> Result<&'m SimulatedPipeline, ApiError> {
        let pipeline = self.require_pipeline(model, role)?;
        if pipeline.archived {
            return Err(ApiError::Text(
                StatusCode::CONFLICT,
                "action not allowed for an archived pipeline\n".into(),
            ));
        }
        Ok(pipeline)
    }

    /// Builds the response of a page with links to its neighbours.
    fn page_response(&self, page: &Page, limit: usize, items: &[Value]) -> ApiResult {
        let mut response = json_response(StatusCode::OK, &items);
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
    fn quoted_keys_of_instance_vars_may_contain_dots() {
        assert_eq!(super::split_var_path("a.b"), ["a", "b"]);
        assert_eq!(super::split_var_path(r#"a."b.c".d"#), ["a", "b.c", "d"]);
    }
}
