//! `ostler console` in a real browser.

use std::{path::PathBuf, sync::Mutex};

use axum::{
    Json, Router,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::get,
};
use kube::api::DeleteParams;
use ostler::testing::{key::Gvk, recording::Retention};
use ostler_test_harness::{
    Lab,
    browser::{Browser, ColorScheme, key},
    scenario, wait_for, workspace_root,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::observability::{FollowedCommand, serve_admin};

/// Namespace of the samples, which the pictures of the documentation show.
const NAMESPACE: &str = "ci";
/// Number of objects that the page has to show without lag.
const OBJECT_COUNT: usize = 10_000;
/// Environment variable that makes tests write the pictures of the documentation.
pub(crate) const UPDATE_VARIABLE: &str = "UPDATE_SCREENSHOTS";

/// Runs `ostler console` for a host, and opens its page.
async fn open_console(url: &str, colors: ColorScheme) -> (Browser, FollowedCommand) {
    let mut console = FollowedCommand::start(&["console", "--admin", url]);
    let address = console.wait_line("http://127.0.0.1:").await;
    let browser = Browser::start(colors).await;
    browser.open(&address).await;
    (browser, console)
}

/// Waits until the page shows all of these words. Returns its text.
async fn wait_text(browser: &Browser, words: &[&str]) -> String {
    let last = Mutex::new(String::new());
    let look = async || {
        let text = browser.text().await;
        let found = words.iter().all(|words| text.contains(words));
        last.lock().expect("lock").clone_from(&text);
        found.then_some(text)
    };
    wait_for(look, || {
        format!("the page shows {words:?}:\n{}", last.lock().expect("lock"))
    })
    .await
}

/// The names of the objects in the rows that are shown.
async fn list_rows(browser: &Browser, column: usize) -> Vec<String> {
    let rows =
        format!("[...document.querySelectorAll('.body .row')].map(row => row.children[{column}].innerText)");
    let rows = browser.evaluate(&rows).await;
    serde_json::from_value(rows).expect("texts")
}

/// Writes a picture, into the documentation if asked for.
async fn take_screenshot(lab: &Lab, browser: &Browser, name: &str) {
    let folder = match std::env::var_os(UPDATE_VARIABLE) {
        Some(_) => workspace_root().join("docs"),
        None => PathBuf::from(lab.path()),
    };
    browser
        .write_screenshot(&folder.join(format!("console-{name}.png")))
        .await;
}

/// Applies the samples of the pack, in which everything waits for the Instance, whose Secret is missing.
async fn apply_samples(lab: &Lab) -> String {
    let text = include_str!("../../../deploy/examples/concourse.yaml")
        .replace("${CONCOURSE_URL}", lab.concourse.url())
        .replace("${CONCOURSE_USER}", lab.concourse.user())
        .replace("${CONCOURSE_PASSWORD}", lab.concourse.password());
    let is_secret =
        |document: &&str| document.contains("name: concourse-admin\n") && document.contains("kind: Secret");
    let documents: Vec<&str> = text.split("\n---\n").collect();
    let secret = documents
        .iter()
        .find(|document| is_secret(document))
        .expect("a Secret");
    let others: Vec<&str> = documents
        .iter()
        .copied()
        .filter(|document| !is_secret(document))
        .collect();
    lab.apply_yaml(&others.join("\n---\n")).await;
    (*secret).to_owned()
}

#[scenario(node_only = "a browser, which the other tiers do not have", simulated)]
async fn console_shows_causes_first_and_leads_to_everything_by_keyboard(mut lab: Lab) {
    lab.namespace = NAMESPACE.into();
    lab.settings.namespaces = vec![NAMESPACE.into()];
    lab.settings.record.retention = Retention::All;
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))
        .await;
    lab.start_pack().await;
    let (_, url) = serve_admin(&lab).await;
    let secret = apply_samples(&lab).await;
    let (browser, _console) = open_console(&url, ColorScheme::Light).await;

    let text = wait_text(&browser, &["Pipeline/ci/storefront", "Team/ci/storefront"]).await;
    let rows = list_rows(&browser, 0).await;
    let causes_first = [
        "Upstream/ci/main",
        "Instance/ci/main",
        "Team/ci/storefront",
        "Pipeline/ci/storefront",
    ];
    assert_eq!(rows, causes_first, "{text}");
    assert_eq!(list_rows(&browser, 3).await[2], "Instance/ci/main", "{text}");
    take_screenshot(&lab, &browser, "attention").await;

    browser.press("/").await;
    browser.press("pipeline").await;
    lab.wait_until("the filter applies", async || {
        list_rows(&browser, 0).await == ["Pipeline/ci/storefront"]
    })
    .await;
    browser.press(key::ENTER).await;
    browser.press(key::DOWN).await;
    browser.press(key::ENTER).await;
    let text = wait_text(&browser, &["Next run", "Reads of the last reconcile"]).await;
    assert!(
        text.contains("Pipeline/ci/storefront") && text.contains("Team/ci/storefront"),
        "{text}"
    );
    let missing = browser
        .evaluate("document.querySelectorAll('.graph path.missing').length")
        .await;
    assert_ne!(missing, 0, "edges to what it waits for");
    take_screenshot(&lab, &browser, "object").await;

    browser.press("t").await;
    wait_text(&browser, &["CPU time", "kubernetes.require-ready", "Request"]).await;
    browser.press(key::DOWN).await;
    wait_text(&browser, &["Arguments", "Result"]).await;
    take_screenshot(&lab, &browser, "recording").await;
    browser.press(key::ESCAPE).await;
    wait_text(&browser, &["Reads of the last reconcile"]).await;

    // Links of SVG have no method `click`.
    browser
        .evaluate("document.querySelector('.graph a').dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))")
        .await;
    wait_text(&browser, &["Instance", "Last recording"]).await;
    browser.press("3").await;
    let text = wait_text(&browser, &["concourse-pipeline", "(not used)", "1 Ready"]).await;
    assert!(text.contains("reconcile Pipeline.concourse-ci.org"), "{text}");

    lab.apply_yaml(&secret).await;
    browser.press("1").await;
    wait_text(&browser, &["All objects are Ready."]).await;
    let kinds = ["Instance", "Team", "Pipeline"].map(|kind| Gvk::new("concourse-ci.org", "v1alpha1", kind));
    let reconciles = |lab: &Lab| {
        lab.host()
            .stats()
            .object(&lab.key(&kinds[0], "main"))
            .expect("statistics")
            .reconciles
    };
    let before = reconciles(&lab);
    browser
        .evaluate(&format!(
            "location.hash = '#object/{}/{NAMESPACE}/main'",
            kinds[0]
        ))
        .await;
    wait_text(&browser, &["Reconcile", "Plugin"]).await;
    browser.press("r").await;
    lab.wait_until("it was reconciled once more", async || reconciles(&lab) > before)
        .await;

    for kind in kinds.iter().rev() {
        let api = lab.api(kind, NAMESPACE);
        for object in api.list(&Default::default()).await.expect("objects").items {
            lab.delete(kind, object.metadata.name.as_deref().expect("a name"))
                .await;
            lab.wait_gone(kind, object.metadata.name.as_deref().expect("a name"))
                .await;
        }
    }
    lab.api(&Gvk::new("", "v1", "Namespace"), "")
        .delete(NAMESPACE, &DeleteParams::default())
        .await
        .expect("deleted");
}

/// A host with many objects, which answers other paths as the one at a URL does.
async fn serve_many_objects(url: &str) -> String {
    let states: Vec<Value> = (0..OBJECT_COUNT)
        .map(|i| {
            json!({"kind": "Team.v1alpha1.concourse-ci.org", "namespace": format!("n-{:02}", i % 50), "name": format!("team-{i:05}"),
                "state": if i % 10 == 0 { "NotReady" } else { "Ready" }, "reason": "TeamNotFound",
                "message": "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>",
                "since": "2026-11-28T10:00:00Z", "waits_for": ["<b>bold</b>"], "created": "2026-11-28T10:00:00Z",
                "next": {"place": "delayed", "in_seconds": i, "why": "next poll"}, "plugin": "concourse-team", "reconciles": i,
                "failures": 0, "last_reconcile": "2026-11-28T10:00:00Z", "last_ms": 1.5})
        })
        .collect();
    let pass_on = async |State(url): State<String>, request: Request| -> Response {
        let target = format!("{url}{}", request.uri());
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let answer = client.get(target).send().await.expect("an answer");
        let (status, headers) = (answer.status(), answer.headers().clone());
        (status, headers, Body::from_stream(answer.bytes_stream())).into_response()
    };
    let routes = Router::new()
        .route("/states", get(async move || Json(states)))
        .fallback(pass_on)
        .with_state(url.to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    format!("http://{address}")
}

/// Milliseconds that a statement takes in the page, until the next frame is painted.
async fn measure(browser: &Browser, statement: &str) -> f64 {
    let statements = format!(
        "const began = performance.now(); {statement}; \
         requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)))"
    );
    browser.execute(&statements).await.as_f64().expect("a number")
}

#[scenario(node_only = "a browser, which the other tiers do not have")]
async fn console_of_ten_thousand_objects_draws_visible_rows_only_and_no_markup(mut lab: Lab) {
    lab.start_probe().await;
    let (_, url) = serve_admin(&lab).await;
    let url = serve_many_objects(&url).await;
    let (browser, _console) = open_console(&url, ColorScheme::Dark).await;
    browser.press("2").await;
    wait_text(&browser, &["team-00000", "Attention 1000", "Objects 10000"]).await;
    let ground = browser
        .evaluate("getComputedStyle(document.body).backgroundColor")
        .await;
    assert_eq!(ground, "rgb(20, 24, 28)", "dark");

    let count = "document.querySelectorAll('.body .row').length";
    assert!(browser.evaluate(count).await.as_u64().expect("a number") < 100);
    let scrolled = measure(&browser, "document.getElementById('main').scrollTop = 1e9").await;
    wait_text(&browser, &["team-09999"]).await;
    assert!(browser.evaluate(count).await.as_u64().expect("a number") < 100);
    let input = "const f = document.getElementById('filter'); f.value = 'n-07 01007'; f.dispatchEvent(new Event('input'))";
    let filtered = measure(&browser, input).await;
    assert_eq!(list_rows(&browser, 2).await, ["team-01007"]);
    println!("{OBJECT_COUNT} objects: scrolled in {scrolled:.0} ms, filtered in {filtered:.0} ms");
    assert!(
        scrolled < 2000.0 && filtered < 2000.0,
        "{scrolled} ms, {filtered} ms"
    );

    browser.press("1").await;
    let input = "const f = document.getElementById('filter'); f.value = 'n-00 00000'; f.dispatchEvent(new Event('input'))";
    measure(&browser, input).await;
    let text = wait_text(&browser, &["<img src=x"]).await;
    assert!(text.contains("<b>bold</b>"), "{text}");
    assert_eq!(browser.evaluate("document.title").await, "Ostler");
    assert_eq!(
        browser
            .evaluate("document.querySelectorAll('main img, main b, main script').length")
            .await,
        0
    );
    // The policy would refuse it, too.
    browser
        .evaluate("(() => { const s = document.createElement('script'); s.textContent = \"document.title = 'taken'\"; document.body.append(s) })()")
        .await;
    assert_eq!(browser.evaluate("document.title").await, "Ostler");

    let origin = browser.evaluate("location.origin").await;
    let origin = origin.as_str().expect("an origin");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    for path in ["/", "/states", "/console/"] {
        let answer = client
            .get(format!("{origin}{path}"))
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 404, "without the random path: {path}");
    }
}
