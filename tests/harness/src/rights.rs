//! The rights of hosts and plugins: a host that acts as its service account, and the requests for which it needed a right.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use http::{HeaderValue, Method, Request, Response};
use kube::{Client, client::Body};
use ostler::testing::{
    grants::{Grants, ServiceAccount},
    plugin::install::host_objects,
};
use serde_json::{Value, json};

use crate::{Lab, deploy::render_rights};

/// Requests and access reviews, as `account verb resource.group`.
#[derive(Default)]
pub struct Rights {
    /// Rights that requests needed.
    pub used: BTreeSet<String>,
    /// Rights of requests that were refused.
    pub forbidden: BTreeSet<String>,
}

/// The service account of a lab's host, with exactly the rights that `deploy/` has for it.
pub struct HostAccount {
    account: ServiceAccount,
    documents: Vec<Value>,
    rights: Arc<Mutex<Rights>>,
}

/// Rules of the host that need what the scenarios of packs do not have.
const UNUSED_HOST_RULES: &[&str] = &[
    // The client of the Lease is the election's own.
    "ostler create leases.coordination.k8s.io",
    "ostler get leases.coordination.k8s.io",
    "ostler watch leases.coordination.k8s.io",
    "ostler patch leases.coordination.k8s.io",
    // Plugins come from the plugin directory, and no Plugin object is about one.
    "ostler patch plugins.ostler.dev",
    "ostler patch plugins/status.ostler.dev",
    // Another cluster, of which there is none.
    "ostler get clusters.ostler.dev",
    "ostler patch clusters.ostler.dev",
    "ostler patch clusters/status.ostler.dev",
    // The count of a repeated Event.
    "ostler patch events",
];

impl HostAccount {
    /// Asserts that every request was allowed by a bound rule, and that each of these was used, but for `unused`.
    fn assert_exact_rights(&self, unused: &[&str]) {
        let bound = bound_rules(&self.documents);
        let rights = self.rights.lock().expect("lock");
        let listed = UNUSED_HOST_RULES.iter().chain(unused);
        let mut expected: BTreeSet<String> = listed.map(|rule| (*rule).to_owned()).collect();
        expected.extend(bound.iter().filter(|rule| rights.implies(rule)).cloned());
        rights.assert_exact(&bound, &expected);
    }
}

impl Rights {
    /// Returns whether a rule is needed, though no request of its own shows it.
    fn implies(&self, rule: &str) -> bool {
        // An apply that creates the object is authorized for both verbs by the API server itself.
        let applies = rule.contains(" create ") && self.used.contains(&rule.replace(" create ", " patch "));
        // Only for an admission plugin that is off by default.
        let is_of_owner = rule.contains(" update ") && rule.contains("/finalizers");
        applies || is_of_owner
    }

    /// Asserts that no request was refused, that none was allowed by a rule of others, and that every bound rule was used, but for
    /// the expected ones.
    pub fn assert_exact(&self, bound: &BTreeSet<String>, unused: &BTreeSet<String>) {
        assert_eq!(self.forbidden, BTreeSet::new(), "refused");
        let missing: Vec<_> = self.used.difference(bound).collect();
        assert!(missing.is_empty(), "used without a rule: {missing:#?}");
        let unknown: Vec<_> = unused.difference(bound).collect();
        assert!(
            unknown.is_empty(),
            "not bound, and expected without use: {unknown:#?}"
        );
        let useless: Vec<_> = bound
            .difference(&self.used)
            .filter(|rule| !unused.contains(*rule))
            .collect();
        assert!(useless.is_empty(), "rules without use: {useless:#?}");
    }
}

impl Lab {
    /// Makes the host of the lab act as a service account, and its plugins as those of their grants. They have the rights that follow
    /// from the grants and from the manifests of the components, as those of `deploy/` do.
    pub async fn use_accounts(&mut self, components: &[&str], grants: Grants) {
        let account = ServiceAccount {
            namespace: self.namespace.clone(),
            name: "ostler".into(),
        };
        let mut documents = host_objects(&account);
        documents.extend(render_rights(components, &grants, &self.namespace, &account).await);
        for document in &documents {
            self.apply(document.clone()).await;
        }
        self.settings.grants = grants;
        self.settings.require_service_account = true;
        self.account = Some(HostAccount {
            account,
            documents,
            rights: Arc::default(),
        });
    }

    /// Asserts that the host, which has an account, and its plugins needed exactly their rights, but for `unused`: no request was
    /// refused, and no other rule is without use.
    pub fn assert_exact_rights(&self, unused: &[&str]) {
        let account = self.account.as_ref().expect("an account");
        account.assert_exact_rights(unused);
    }

    /// Returns the client of the next host: that of its service account, if it has one.
    pub fn host_client(&self) -> Client {
        let client = self.client.clone();
        match &self.account {
            Some(host) => client_as_host(client, host.account.user_name(), host.rights.clone()),
            None => client,
        }
    }
}

/// The rules that the documents bind, as `account verb resource.group`.
pub fn bound_rules(documents: &[Value]) -> BTreeSet<String> {
    let of_kind = |kinds: [&'static str; 2]| {
        documents
            .iter()
            .filter(move |d| kinds.iter().any(|k| d["kind"] == *k))
    };
    let mut rules = BTreeSet::new();
    // Those of the cluster bind roles that it has itself.
    let is_own = |binding: &&Value| binding["metadata"]["namespace"] != "kube-system";
    for binding in of_kind(["RoleBinding", "ClusterRoleBinding"]).filter(is_own) {
        let role = of_kind(["Role", "ClusterRole"])
            .find(|role| {
                role["kind"] == binding["roleRef"]["kind"]
                    && role["metadata"]["name"] == binding["roleRef"]["name"]
                    && (role["kind"] == "ClusterRole"
                        || role["metadata"]["namespace"] == binding["metadata"]["namespace"])
            })
            .expect("the bound role is in the file");
        for rule in role["rules"].as_array().expect("rules") {
            let words = |field: &str| -> Vec<String> {
                let words = rule[field].as_array().into_iter().flatten();
                words.map(|w| w.as_str().expect("a word").to_owned()).collect()
            };
            let named = rule["verbs"] == json!(["impersonate"]);
            let resources = if named {
                words("resourceNames")
            } else {
                words("resources")
            };
            for subject in binding["subjects"].as_array().expect("subjects") {
                let account = subject["name"].as_str().expect("a name");
                for (group, verb) in words("apiGroups")
                    .iter()
                    .flat_map(|g| words("verbs").into_iter().map(move |v| (g, v)))
                {
                    rules.extend(resources.iter().map(|r| describe_right(account, &verb, group, r)));
                }
            }
        }
    }
    rules
}

fn describe_right(account: &str, verb: &str, group: &str, resource: &str) -> String {
    if group.is_empty() {
        format!("{account} {verb} {resource}")
    } else {
        format!("{account} {verb} {resource}.{group}")
    }
}

/// The right that a request needs; none for discovery, and for what everybody may do.
fn right_of_request(account: &str, method: &Method, path: &str, query: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, named) = match rest {
        // The role `system:basic-user` allows it to everybody.
        [] | ["selfsubjectreviews"] => return None,
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, sub, ..] => (format!("{resource}/{sub}"), true),
    };
    let verb = match (method.as_str(), named) {
        ("GET", true) => "get",
        ("GET", false) if query.contains("watch=true") || query.contains("watch=1") => "watch",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        _ => "delete",
    };
    Some(describe_right(account, verb, group, &resource))
}

fn account_name(user: &str) -> &str {
    user.rsplit(':').next().unwrap_or_default()
}

/// A client whose requests are those of the host's service account, unless they impersonate another one.
pub fn client_as_host(client: Client, user: String, rights: Arc<Mutex<Rights>>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, user, rights) = (client.clone(), user.clone(), rights.clone());
        async move { send_as_host(&client, &user, &rights, request).await }
    });
    Client::new(service, "default")
}

async fn send_as_host(
    client: &Client,
    user: &str,
    rights: &Mutex<Rights>,
    request: Request<Body>,
) -> Result<Response<Body>, kube::Error> {
    let (mut parts, body) = request.into_parts();
    let mut used = Vec::new();
    let impersonated = parts
        .headers
        .get("impersonate-user")
        .and_then(|user| user.to_str().ok());
    let account = account_name(impersonated.unwrap_or(user)).to_owned();
    if impersonated.is_some() {
        used.push(describe_right("ostler", "impersonate", "", &account));
    } else {
        let user = HeaderValue::from_str(user).expect("a user name");
        parts.headers.insert("impersonate-user", user);
    }
    let (path, query) = (
        parts.uri.path().to_owned(),
        parts.uri.query().unwrap_or_default().to_owned(),
    );
    used.extend(right_of_request(&account, &parts.method, &path, &query));
    let is_review = path.ends_with("/subjectaccessreviews");
    let response = if is_review {
        let bytes = body.collect_bytes().await?;
        let review: Value = serde_json::from_slice(&bytes).expect("a review");
        let asked = &review["spec"]["resourceAttributes"];
        let word = |field: &str| asked[field].as_str().unwrap_or_default();
        let reviewed = account_name(review["spec"]["user"].as_str().unwrap_or_default());
        let right = describe_right(reviewed, word("verb"), word("group"), word("resource"));
        let response = client.send(Request::from_parts(parts, Body::from(bytes))).await?;
        let (parts, body) = response.into_parts();
        let bytes = body.collect_bytes().await?;
        let answer: Value = serde_json::from_slice(&bytes).expect("a review");
        if answer["status"]["allowed"] != true {
            rights
                .lock()
                .expect("lock")
                .forbidden
                .insert(format!("review: {right}"));
        }
        used.push(right);
        Response::from_parts(parts, Body::from(bytes))
    } else {
        client.send(Request::from_parts(parts, body)).await?
    };
    let mut rights = rights.lock().expect("lock");
    if response.status() == 403 {
        rights.forbidden.insert(used.join(" + "));
    }
    rights.used.extend(used);
    Ok(response)
}
