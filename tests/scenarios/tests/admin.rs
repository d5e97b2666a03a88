//! The addresses of the admin server: who may see what, with the rights that users have at the API server.

use std::sync::Arc;

use kube::api::DeleteParams;
use ostler::testing::{admin::certificate::ServerCertificate, key::Gvk, recording::Retention};
use ostler_test_harness::{Lab, greeting_kind, process::HostProcess, scenario};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};
use reqwest::{Client, Identity, Method, StatusCode};
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::observability::ostler;

/// Paths about the host as a whole.
const HOST_PATHS: [&str; 5] = ["/metrics", "/plugins", "/reconciles", "/status", "/store"];

/// Connections that send nothing.
const SILENT_CONNECTION_COUNT: usize = 300;

/// A service account whose token is sent to the secure address.
struct User<'a> {
    lab: &'a Lab,
    /// URL of the secure address.
    url: String,
    client: Client,
    token: String,
}

impl<'a> User<'a> {
    /// Creates the service account `viewer` with a token, and nothing that it may do.
    async fn create(lab: &'a Lab, url: String) -> Self {
        lab.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "viewer", "namespace": lab.namespace}}))
            .await;
        Self {
            lab,
            url,
            client: https_client(),
            token: create_token(lab, "viewer").await,
        }
    }

    /// Binds the account to these rules: a Role in the namespace of the test, or a ClusterRole.
    async fn allow(&self, kind: &str, name: &str, rules: Value) {
        let group = "rbac.authorization.k8s.io";
        let mut meta = json!({"name": format!("{}-{name}", self.lab.namespace)});
        if kind == "Role" {
            meta["namespace"] = self.lab.namespace.as_str().into();
        }
        let version = format!("{group}/v1");
        self.lab
            .apply(json!({"apiVersion": version, "kind": kind, "metadata": meta, "rules": rules}))
            .await;
        self.lab
            .apply(
                json!({"apiVersion": version, "kind": format!("{kind}Binding"), "metadata": meta,
                "roleRef": {"apiGroup": group, "kind": kind, "name": meta["name"]},
                "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": self.lab.namespace}]}),
            )
            .await;
    }

    async fn send(&self, method: Method, path: &str) -> (StatusCode, String) {
        let request = self.client.request(method, format!("{}{path}", self.url));
        let response = request.bearer_auth(&self.token).send().await.expect("a response");
        (response.status(), response.text().await.expect("a text"))
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        self.send(Method::GET, path).await
    }

    /// Waits until the API server knows of a role and the host has forgotten its refusal.
    async fn wait_allowed(&self, path: &str) -> String {
        self.lab
            .wait_until(&format!("{path} is allowed"), async || {
                self.get(path).await.0 == StatusCode::OK
            })
            .await;
        self.get(path).await.1
    }
}

/// A client that trusts any certificate, as those of Prometheus in kubebuilder's projects.
fn https_client() -> Client {
    let client = Client::builder().no_proxy().danger_accept_invalid_certs(true);
    client.build().expect("a client")
}

/// Applies a greeting, and waits until it is Ready.
async fn apply_greeting(lab: &Lab, namespace: &str, name: &str) {
    lab.apply(
        json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"name": "Ada"}}),
    )
    .await;
    lab.wait_until(&format!("{namespace}/{name} is Ready"), async || {
        let found = lab
            .api(&greeting_kind(), namespace)
            .get_opt(name)
            .await
            .expect("an answer");
        let found = found.map(|object| object.data["status"]["conditions"][0]["status"] == "True");
        found == Some(true)
    })
    .await;
}

/// The user may read greetings of his namespace, and nothing else.
#[scenario]
async fn user_of_secure_address_sees_what_he_may_read_and_nothing_else(mut lab: Lab) {
    let other = format!("{}-other", lab.namespace);
    lab.settings.namespaces.push(other.clone());
    lab.settings.record.retention = Retention::All;
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}}))
        .await;
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let own = lab.namespace.clone();
    apply_greeting(&lab, &own, "mine").await;
    apply_greeting(&lab, &other, "theirs").await;
    lab.wait_idle().await;
    let url = serve_secure(&lab).await;
    let user = User::create(&lab, url.clone()).await;
    let question = |namespace: &str, name: &str| format!("kind=greeting&name={name}&namespace={namespace}");

    let anonymous = user
        .client
        .get(format!("{url}/objects"))
        .send()
        .await
        .expect("a response");
    assert_eq!(anonymous.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(anonymous.headers()["www-authenticate"], "Bearer");
    let forged = user.client.get(format!("{url}/objects")).bearer_auth("forged");
    assert_eq!(
        forged.send().await.expect("a response").status(),
        StatusCode::UNAUTHORIZED
    );
    assert!(
        reqwest::get(url.replace("https:", "http:")).await.is_err(),
        "there is no HTTP"
    );

    // Authenticated, without a right.
    for path in ["/objects", "/states", "/states?kind=greeting"] {
        assert_eq!(user.get(path).await, (StatusCode::OK, "[]".into()), "{path}");
    }
    assert_eq!(user.get("/recordings").await, (StatusCode::OK, "[]".into()));
    for path in HOST_PATHS {
        let (code, text) = user.get(path).await;
        assert_eq!(code, StatusCode::FORBIDDEN, "{path}: {text}");
        assert!(
            text.contains(&format!("may not get {path}: bind a ClusterRole")),
            "{text}"
        );
    }
    let (code, text) = user.get(&format!("/explain?{}", question(&own, "mine"))).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(text.contains("may not get Greeting mine in namespace"), "{text}");

    user.allow(
        "Role",
        "read",
        json!([{"apiGroups": ["examples.ostler.dev"], "resources": ["greetings"],
        "verbs": ["get", "list"]}]),
    )
    .await;
    let explained = user
        .wait_allowed(&format!("/explain?{}", question(&own, "mine")))
        .await;
    assert!(explained.contains("\"mine\""), "{explained}");
    let logs = user.get(&format!("/logs?{}", question(&own, "mine"))).await;
    assert_eq!(logs.0, StatusCode::OK, "{}", logs.1);
    user.wait_allowed("/objects").await;
    lab.wait_until("the greeting is listed", async || {
        user.get("/objects").await.1.contains("mine")
    })
    .await;
    let objects = user.get("/objects").await.1;
    assert!(!objects.contains("theirs"), "{objects}");
    let states = user.get("/states").await.1;
    assert!(states.contains("mine") && !states.contains("theirs"), "{states}");
    let anywhere = user.get("/explain?kind=greeting&name=mine").await;
    assert_eq!(anywhere.0, StatusCode::OK, "{}", anywhere.1);

    // What he may not see is refused in the same words whether it is there or not.
    for path in ["explain", "logs", "recording", "trace"] {
        let [there, absent] = ["theirs", "absent"].map(|name| question(&other, name));
        let there = user.get(&format!("/{path}?{there}")).await;
        let absent = user.get(&format!("/{path}?{absent}")).await;
        assert_eq!(there.0, StatusCode::FORBIDDEN, "{path}: {}", there.1);
        assert_eq!((there.0, there.1.replace("theirs", "absent")), absent, "{path}");
    }
    let (code, text) = user.get("/explain?kind=greeting&name=theirs").await;
    assert!(code != StatusCode::OK && !text.contains(&other), "{text}");
    assert_eq!(user.get("/logs?plugin=greeting").await.0, StatusCode::FORBIDDEN);

    // Recordings need a verb of their own, and a reconcile the right to change the object.
    let (code, text) = user.get(&format!("/recording?{}", question(&own, "mine"))).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(text.contains("may not record Greeting mine"), "{text}");
    user.allow(
        "Role",
        "record",
        json!([{"apiGroups": ["examples.ostler.dev"], "resources": ["greetings"],
        "verbs": ["record"]}]),
    )
    .await;
    let recording = user
        .wait_allowed(&format!("/recording?{}", question(&own, "mine")))
        .await;
    assert!(recording.contains("\"mine\""), "{recording}");
    let recordings = user.get("/recordings").await.1;
    assert!(
        recordings.contains("mine") && !recordings.contains("theirs"),
        "{recordings}"
    );
    for path in ["/record?count=1&", "/reconcile?"] {
        let path = format!("{path}{}", question(&own, "mine"));
        let (code, text) = user.send(Method::POST, &path).await;
        assert_eq!(code, StatusCode::FORBIDDEN);
        assert!(text.contains("may not patch Greeting mine"), "{path}: {text}");
    }
    let impersonating = user.client.get(format!("{url}/objects")).bearer_auth(&user.token);
    let impersonating = impersonating.header("impersonate-user", "admin").send().await;
    assert_eq!(
        impersonating.expect("a response").status(),
        StatusCode::BAD_REQUEST
    );

    let urls: Vec<&str> = HOST_PATHS.to_vec();
    user.allow(
        "ClusterRole",
        "host",
        json!([{"nonResourceURLs": urls, "verbs": ["get"]}]),
    )
    .await;
    for path in HOST_PATHS {
        user.wait_allowed(path).await;
    }
    assert_eq!(user.get("/logs?plugin=greeting").await.0, StatusCode::FORBIDDEN);
    assert_eq!(
        user.get("/readyz").await.0,
        StatusCode::NOT_FOUND,
        "health has its own address"
    );
    for kind in ["ClusterRoleBinding", "ClusterRole"] {
        let gvk = Gvk::new("rbac.authorization.k8s.io", "v1", kind);
        let name = format!("{}-host", lab.namespace);
        lab.api(&gvk, "")
            .delete(&name, &DeleteParams::default())
            .await
            .expect("deleted");
    }
}

/// Serves the secure address of the lab's host. Returns its URL.
async fn serve_secure(lab: &Lab) -> String {
    let address = "127.0.0.1:0".parse().expect("an address");
    let certificate = ServerCertificate::make(address);
    let certificate = Arc::new(certificate.expect("a certificate"));
    let bound = lab
        .admin()
        .serve_secure(address, certificate)
        .await
        .expect("it binds");
    format!("https://{bound}")
}

/// Two hosts, of which one leads: the standby authenticates users, too, though it writes nothing.
#[scenario]
async fn host_process_serves_health_and_users_at_addresses_of_their_own(lab: Lab) {
    let addresses = [
        "--health-bind-address",
        "127.0.0.1:0",
        "--secure-bind-address",
        "127.0.0.1:0",
    ];
    let election = ["--leader-elect", "--lease-namespace", &lab.namespace];
    let arguments = [&addresses[..], &election[..]].concat();
    lab.install(&["examples/greeting"]);
    let leader = HostProcess::start(&lab, "leader", &arguments);
    leader.wait_started(&lab).await;
    let standby = HostProcess::start(&lab, "standby", &arguments);
    standby.wait_started(&lab).await;
    for host in [&leader, &standby] {
        let facts = host.read_facts();
        let at = |name: &str, path: &str| format!("{}{path}", facts[name].as_str().expect("a URL"));
        let get = async |url: String| https_client().get(url).send().await.expect("a response");
        assert_eq!(get(at("health", "/healthz")).await.status(), StatusCode::OK);
        for path in ["/metrics", "/objects", "/status"] {
            assert_eq!(
                get(at("health", path)).await.status(),
                StatusCode::NOT_FOUND,
                "{path}"
            );
            assert_eq!(get(at("admin", path)).await.status(), StatusCode::OK, "{path}");
            assert_eq!(
                get(at("secure", path)).await.status(),
                StatusCode::UNAUTHORIZED,
                "{path}"
            );
        }
        let user = User::create(&lab, at("secure", "")).await;
        assert_eq!(user.get("/objects").await, (StatusCode::OK, "[]".into()));
    }
}

/// Two hosts, of which one leads. The user has the right to read the Lease, and then those to read greetings and the host's status.
#[scenario]
async fn command_finds_leader_by_its_lease_and_has_the_rights_of_its_user(lab: Lab) {
    let election = ["--leader-elect", "--lease-namespace", &lab.namespace];
    let arguments = [&["--secure-bind-address", "127.0.0.1:0"][..], &election].concat();
    lab.install(&["examples/greeting"]);
    let leader = HostProcess::start(&lab, "leader", &arguments);
    leader.wait_started(&lab).await;
    let standby = HostProcess::start(&lab, "standby", &arguments);
    standby.wait_started(&lab).await;
    let namespace = lab.namespace.clone();
    apply_greeting(&lab, &namespace, "mine").await;
    let secure = |host: &HostProcess| host.read_facts()["secure"].as_str().expect("a URL").to_owned();
    let user = User::create(&lab, secure(&leader)).await;
    let kubeconfig = write_kubeconfig(&lab, "viewer", &json!({ "token": user.token }));
    let run = async |arguments: &[&str], url: &str| {
        let place = ["--kubeconfig", &kubeconfig, "--host-namespace", &namespace];
        let admin = ["--admin", url];
        let admin = if url.is_empty() { &[][..] } else { &admin };
        let output = ostler(&[arguments, &place[..], admin].concat()).await;
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let explain = ["explain", "greeting/mine", "-n", &namespace];

    let (good, _, error) = run(&explain, &user.url).await;
    assert!(!good, "the Lease can't be read");
    assert!(
        error.contains("cannot get resource \"leases\"") && error.contains("ostler:user"),
        "{error}"
    );
    let lease = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}]);
    user.allow("Role", "user", lease).await;
    lab.wait_until("the user may read the Lease", async || {
        let (_, _, error) = run(&explain, &user.url).await;
        error.contains("may not get")
    })
    .await;
    let greetings =
        json!([{"apiGroups": ["examples.ostler.dev"], "resources": ["greetings"], "verbs": ["get", "list"]}]);
    user.allow("Role", "greetings", greetings).await;
    user.wait_allowed("/explain?kind=greeting&name=mine").await;
    let (good, text, error) = run(&explain, &user.url).await;
    assert!(good && text.contains("Ready"), "{text}{error}");
    let (good, _, error) = run(&["status"], &user.url).await;
    assert!(!good && error.contains("may not get /status"), "{error}");

    let (good, _, error) = run(&explain, &secure(&standby)).await;
    assert!(
        !good && error.contains("certificate"),
        "it is not the leader's: {error}"
    );
    // No API server has a pod of that name.
    let (good, _, error) = run(&explain, "").await;
    assert!(!good && error.contains("port-forward to the pod"), "{error}");
}

/// An authority of client certificates, as an API server with `--client-ca-file` publishes it.
#[scenario(embedded = "the control plane of the tests authenticates by tokens only")]
async fn user_with_client_certificate_has_its_rights(mut lab: Lab) {
    let authority_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, authority_key).expect("signed");
    lab.apply(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {"client-ca-file": authority.pem()}}))
        .await;
    lab.start_host().await;
    let url = serve_secure(&lab).await;
    let issue = |subject: &[(DnType, &str)], usage| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &authority).expect("signed");
        Identity::from_pem(format!("{}{}", certificate.pem(), key.serialize_pem()).as_bytes())
            .expect("an identity")
    };
    let get = async |identity: Option<Identity>, path: &str| {
        let client = Client::builder().no_proxy().danger_accept_invalid_certs(true);
        let client = match identity {
            Some(identity) => client.identity(identity),
            None => client,
        };
        let request = client.build().expect("a client").get(format!("{url}{path}"));
        request.send().await.map(|response| response.status())
    };
    let ada = [
        (DnType::CommonName, "ada"),
        (DnType::OrganizationName, "operators"),
    ];
    let client_auth = ExtendedKeyUsagePurpose::ClientAuth;
    lab.wait_until("the authority is known", async || {
        let ada = issue(&ada, client_auth.clone());
        get(Some(ada), "/objects").await.ok() == Some(StatusCode::OK)
    })
    .await;
    let ada = issue(&ada, client_auth.clone());
    assert_eq!(
        get(Some(ada.clone()), "/status").await.expect("a response"),
        StatusCode::FORBIDDEN
    );
    lab.apply(
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "certified"}, "rules": [{"nonResourceURLs": ["/status"], "verbs": ["get"]}]}),
    )
    .await;
    lab.apply(
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "certified"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "certified"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "operators"}]}),
    )
    .await;
    lab.wait_until("the group is allowed", async || {
        get(Some(ada.clone()), "/status").await.ok() == Some(StatusCode::OK)
    })
    .await;
    assert_eq!(
        get(None, "/status").await.expect("a response"),
        StatusCode::UNAUTHORIZED
    );
    let nobody = issue(&[(DnType::OrganizationName, "operators")], client_auth);
    assert_eq!(
        get(Some(nobody), "/status").await.expect("a response"),
        StatusCode::UNAUTHORIZED,
        "a certificate without a common name"
    );
    let server = [
        (DnType::CommonName, "ada"),
        (DnType::OrganizationName, "operators"),
    ];
    let server = issue(&server, ExtendedKeyUsagePurpose::ServerAuth);
    assert!(
        get(Some(server), "/status").await.is_err(),
        "a certificate of a server"
    );
}

/// Creates a token of a service account in the namespace of the test.
pub(crate) async fn create_token(lab: &Lab, account: &str) -> String {
    let path = format!(
        "/api/v1/namespaces/{}/serviceaccounts/{account}/token",
        lab.namespace
    );
    let request = axum::http::Request::post(path).header("content-type", "application/json");
    let request = request.body(b"{}".to_vec()).expect("a request");
    let issued: Value = lab.client.request(request).await.expect("a token");
    issued["status"]["token"].as_str().expect("a token").to_owned()
}

/// Writes a kubeconfig for a user with these credentials. Returns its path.
pub(crate) fn write_kubeconfig(lab: &Lab, name: &str, credentials: &Value) -> String {
    let text = std::fs::read_to_string(&lab.kubeconfig).expect("a kubeconfig");
    let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
    let context = config["contexts"][0].clone();
    config["users"] = json!([{"name": context["context"]["user"], "user": credentials}]);
    let path = lab.path().join(format!("{name}.kubeconfig"));
    std::fs::write(&path, config.to_string()).expect("written");
    path.to_str().expect("a path").to_owned()
}

#[scenario]
async fn host_process_refuses_to_serve_everything_beyond_loopback(lab: Lab) {
    let kubeconfig = lab.kubeconfig.to_str().expect("a path");
    let refused = ostler(&[
        "run",
        "--kubeconfig",
        kubeconfig,
        "--admin-bind-address",
        "0.0.0.0:0",
    ])
    .await;
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        text.contains("--admin-bind-address 0.0.0.0:0: it is no loopback address"),
        "{text}"
    );
    assert!(text.contains("--secure-bind-address"), "{text}");
}

/// Connections that send nothing, more than the server keeps open: they are closed, and then the user is served.
#[scenario]
async fn silent_connections_are_closed_and_keep_no_user_out(mut lab: Lab) {
    lab.start_host().await;
    let url = serve_secure(&lab).await;
    let address = url.trim_start_matches("https://");
    let mut silent = Vec::new();
    for _ in 0..SILENT_CONNECTION_COUNT {
        silent.push(TcpStream::connect(address).await.expect("connected"));
    }
    let response = https_client().get(format!("{url}/objects")).send().await;
    assert_eq!(response.expect("a response").status(), StatusCode::UNAUTHORIZED);
    let first = silent[0].read(&mut [0]).await;
    assert_eq!(first.unwrap_or_default(), 0, "it is closed");
}
