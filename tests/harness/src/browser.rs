//! A real browser without a screen: Chromium, driven by the WebDriver protocol.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::wait_line;

/// Size of the window in pixels.
const WINDOW: &str = "--window-size=1400,900";

/// Colours that the pages of a browser prefer.
#[derive(Clone, Copy, Debug)]
pub enum ColorScheme {
    /// Dark text on a light ground.
    Light,
    /// Light text on a dark ground.
    Dark,
}

/// A browser, ended when dropped.
///
/// Specification: <https://www.w3.org/TR/webdriver2/>. Its six endpoints are called here: the crates for it bring a second `http`.
pub struct Browser {
    driver: Child,
    client: reqwest::Client,
    /// URL of the session.
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser.
    pub async fn start(colors: ColorScheme) -> Self {
        let root = PathBuf::from(std::env::var_os("OSTLER_TEST_BROWSER").expect(
            "OSTLER_TEST_BROWSER names no folder with a browser: run the test by `cargo xtask test node`, which fetches it",
        ));
        let profile = tempfile::tempdir().expect("a temporary directory");
        let (driver, port) = spawn_driver(&root, profile.path());
        let scheme = match colors {
            ColorScheme::Dark => 0,
            ColorScheme::Light => 1,
        };
        let options = json!({
            "binary": root.join("usr/lib/chromium/chromium"),
            "args": [
                "--headless=new",
                // The tests run as root, for which Chromium has no sandbox.
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-proxy-server",
                "--lang=en-GB",
                WINDOW,
                format!("--blink-settings=preferredColorScheme={scheme}"),
                format!("--user-data-dir={}", profile.path().join("data").display()),
            ],
        });
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let capabilities = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}});
        let url = format!("http://127.0.0.1:{port}/session");
        let created = call(client.post(&url), Some(capabilities)).await;
        let id = created["sessionId"].as_str().expect("a session");
        Self {
            driver,
            session: format!("{url}/{id}"),
            client,
            _profile: profile,
        }
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        call(self.client.post(format!("{}/{path}", self.session)), Some(body)).await
    }

    /// Opens a page.
    pub async fn open(&self, url: &str) {
        self.post("url", json!({ "url": url })).await;
    }

    /// Evaluates an expression in the page.
    pub async fn evaluate(&self, expression: &str) -> Value {
        let script = format!("return {expression};");
        self.post("execute/sync", json!({"script": script, "args": []}))
            .await
    }

    /// Runs statements in the page that call `done` with their result.
    pub async fn execute(&self, statements: &str) -> Value {
        let script = format!("const done = arguments[0]; {statements}");
        self.post("execute/async", json!({"script": script, "args": []}))
            .await
    }

    /// The text that the page shows.
    pub async fn text(&self) -> String {
        let text = self.evaluate("document.body.innerText").await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Presses keys one after another, wherever the focus is: characters, or those of [`key`].
    pub async fn press(&self, keys: &str) {
        let strokes = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key})));
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": strokes.collect::<Vec<_>>()});
        self.post("actions", json!({ "actions": [keyboard] })).await;
    }

    /// Writes a picture of the page (PNG).
    pub async fn write_screenshot(&self, path: &Path) {
        let picture = call(self.client.get(format!("{}/screenshot", self.session)), None).await;
        let picture = picture.as_str().expect("a picture in base64");
        let picture = BASE64_STANDARD.decode(picture).expect("base64");
        std::fs::write(path, picture).expect("written");
    }
}

/// Keys without a character of their own.
pub mod key {
    /// The key Enter.
    pub const ENTER: &str = "\u{e007}";
    /// The key Escape.
    pub const ESCAPE: &str = "\u{e00c}";
    /// The key with the arrow down.
    pub const DOWN: &str = "\u{e015}";
}

/// Sends a request. Returns the value of its answer.
async fn call(request: reqwest::RequestBuilder, body: Option<Value>) -> Value {
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    let answer = request.send().await.expect("an answer of the driver");
    let mut answer: Value = answer.json().await.expect("JSON");
    let error = &answer["value"]["error"];
    assert!(!error.is_string(), "{error}: {}", answer["value"]["message"]);
    answer["value"].take()
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its driver.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Starts the driver, and waits until it names the port that it listens on.
fn spawn_driver(root: &Path, folder: &Path) -> (Child, u16) {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    // The last one is that of a library, which looks for it where the package would be installed.
    let libraries = [
        format!("usr/lib/{triple}"),
        format!("lib/{triple}"),
        format!("usr/lib/{triple}/pulseaudio"),
    ];
    let libraries = libraries.map(|folder| root.join(folder).display().to_string());
    let fonts = folder.join("fonts.conf");
    // Packages that are installed are not extracted. Without any font, Chromium ends.
    let font_folders = [root.to_owned(), "/".into()]
        .map(|root| format!("<dir>{}</dir>", root.join("usr/share/fonts").display()));
    let cache = folder.join("fonts").display().to_string();
    let config = format!(
        "<fontconfig>{}<cachedir>{cache}</cachedir></fontconfig>",
        font_folders.concat()
    );
    std::fs::write(&fonts, config).expect("written");
    let mut driver = Command::new(root.join("usr/bin/chromedriver"))
        .arg("--port=0")
        .env("LD_LIBRARY_PATH", libraries.join(":"))
        .env("FONTCONFIG_FILE", fonts)
        .env("HOME", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver starts");
    let pipe = driver.stdout.take().expect("piped");
    let port = wait_line("chromedriver", pipe, |line| {
        let (_, port) = line.split_once("on port ")?;
        port.trim_end_matches('.').parse().ok().filter(|port| *port != 0)
    });
    (driver, port)
}
