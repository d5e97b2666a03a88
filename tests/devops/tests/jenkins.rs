//! The Jenkins simulator answers as Jenkins does.

use devops_simulators::jenkins::{JENKINS_TOKEN, JENKINS_USER, Jenkins};
use reqwest::{Method, Response, redirect::Policy};
use serde_json::{Value, json};

const FOLDER: &str = "<com.cloudbees.hudson.plugins.folder.Folder/>";
const PIPELINE: &str = "<?xml version='1.1' encoding='UTF-8'?>\n<flow-definition><description>d</description>\
    <properties><hudson.model.ParametersDefinitionProperty><parameterDefinitions>\
    <hudson.model.StringParameterDefinition><name>ID</name><defaultValue>none</defaultValue>\
    </hudson.model.StringParameterDefinition></parameterDefinitions></hudson.model.ParametersDefinitionProperty>\
    </properties><definition><script>stage('Build') { } stage('Test') { }</script></definition></flow-definition>";
const CREDENTIAL: &str = "<org.jenkinsci.plugins.plaincredentials.impl.StringCredentialsImpl><scope>GLOBAL</scope>\
    <id>token</id><secret>hush</secret></org.jenkinsci.plugins.plaincredentials.impl.StringCredentialsImpl>";

struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    fn new(jenkins: &Jenkins) -> Self {
        // Fails when another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().redirect(Policy::none());
        Self {
            http: http.build().expect("a client"),
            url: jenkins.url().to_owned(),
        }
    }

    async fn send(&self, method: Method, path: &str, xml: Option<&str>) -> Response {
        let request = self.http.request(method, format!("{}{path}", self.url));
        let request = request.basic_auth(JENKINS_USER, Some(JENKINS_TOKEN));
        let request = match xml {
            Some(xml) => request
                .header("content-type", "application/xml")
                .body(xml.to_owned()),
            None => request,
        };
        request.send().await.expect("a response")
    }

    async fn status(&self, method: Method, path: &str, xml: Option<&str>) -> u16 {
        self.send(method, path, xml).await.status().as_u16()
    }

    async fn json(&self, path: &str) -> Value {
        let response = self.send(Method::GET, path, None).await;
        assert_eq!(response.status(), 200, "{path}");
        serde_json::from_str(&response.text().await.expect("a body")).expect("JSON")
    }
}

#[tokio::test]
async fn items_are_created_once_and_never_read_back_as_sent() {
    let jenkins = Jenkins::start().await;
    let client = Client::new(&jenkins);
    let create = "/createItem?name=app";
    assert_eq!(
        client.status(Method::POST, create, None).await,
        400,
        "no content type"
    );
    assert_eq!(client.status(Method::POST, create, Some("<broken")).await, 500);
    assert_eq!(client.status(Method::POST, create, Some("<unknown/>")).await, 500);
    assert_eq!(client.status(Method::POST, create, Some(FOLDER)).await, 200);
    let again = client.send(Method::POST, create, Some(FOLDER)).await;
    assert_eq!(
        (again.status().as_u16(), again.headers().contains_key("x-error")),
        (400, true)
    );
    let nested = "/job/app/createItem?name=alpha";
    assert_eq!(client.status(Method::POST, nested, Some(PIPELINE)).await, 200);
    assert_eq!(
        client
            .status(Method::POST, "/job/app/job/alpha/createItem?name=x", Some(FOLDER))
            .await,
        404
    );
    let config = "/job/app/job/alpha/config.xml";
    let read = client
        .send(Method::GET, config, None)
        .await
        .text()
        .await
        .expect("a body");
    assert!(
        read != PIPELINE && read.contains("plugin=") && read.contains("<description>d"),
        "{read}"
    );
    assert_eq!(
        client.status(Method::POST, config, Some(FOLDER)).await,
        500,
        "another class"
    );
    assert_eq!(
        client
            .status(Method::POST, config, Some(&PIPELINE.replace(">d<", ">e<")))
            .await,
        200
    );
    assert!(jenkins.config("app/alpha").expect("an item").contains(">e<"));
    let names = client.json("/job/app/api/json?tree=jobs[name]").await;
    assert_eq!(names["jobs"][0]["name"], "alpha");
    assert_eq!(client.status(Method::DELETE, "/job/app/", None).await, 204);
    assert_eq!(client.status(Method::DELETE, "/job/app/", None).await, 404);
    assert!(
        jenkins.items().is_empty(),
        "the folder's children are deleted with it"
    );
}

#[tokio::test]
async fn credentials_are_redacted_and_conflict() {
    let jenkins = Jenkins::start().await;
    jenkins.set_config("app", FOLDER);
    let client = Client::new(&jenkins);
    let store = "/job/app/credentials/store/folder/domain/_";
    let create = format!("{store}/createCredentials");
    assert_eq!(client.status(Method::POST, &create, Some(CREDENTIAL)).await, 200);
    assert_eq!(client.status(Method::POST, &create, Some(CREDENTIAL)).await, 409);
    let config = format!("{store}/credential/token/config.xml");
    let read = client
        .send(Method::GET, &config, None)
        .await
        .text()
        .await
        .expect("a body");
    assert!(
        read.contains("<secret-redacted/>") && !read.contains("hush"),
        "{read}"
    );
    let rotated = CREDENTIAL.replace("hush", "quiet");
    assert_eq!(client.status(Method::POST, &config, Some(&rotated)).await, 200);
    assert!(
        jenkins
            .credential("app", "token")
            .expect("stored")
            .contains("quiet")
    );
    assert_eq!(client.status(Method::DELETE, &config, None).await, 200);
    assert_eq!(client.status(Method::DELETE, &config, None).await, 404);
}

#[tokio::test]
async fn build_passes_queue_and_stages() {
    let jenkins = Jenkins::start().await;
    jenkins.set_config("app", PIPELINE);
    let client = Client::new(&jenkins);
    assert_eq!(
        client.status(Method::POST, "/job/app/build", None).await,
        400,
        "it has parameters"
    );
    let build = "/job/app/buildWithParameters?ID=7&UNDEFINED=x";
    let queued = client.send(Method::POST, build, None).await;
    assert_eq!(queued.status(), 201);
    let location = queued.headers()["location"].to_str().expect("text").to_owned();
    assert!(location.ends_with("/queue/item/1/"), "{location}");
    assert_eq!(
        client.status(Method::POST, build, None).await,
        303,
        "an equal request waits"
    );
    assert_eq!(
        client.json("/queue/item/1/api/json").await["executable"],
        Value::Null
    );
    let queue = "/queue/api/json?tree=items[id,actions[parameters[name,value]]]";
    assert_eq!(client.json(queue).await["items"][0]["id"], 1);
    jenkins.start_queued();
    assert_eq!(client.json(queue).await["items"], json!([]), "it has left");
    let left = client.json("/queue/item/1/api/json").await;
    assert_eq!(
        (&left["cancelled"], &left["executable"]["number"]),
        (&json!(false), &json!(1))
    );
    jenkins.expire_queue_items();
    assert_eq!(
        client.status(Method::GET, "/queue/item/1/api/json", None).await,
        404
    );
    let tree = "/job/app/api/json?tree=builds[number,queueId,actions[parameters[name,value]]]{0,20}";
    let builds = client.json(tree).await;
    let parameters = &builds["builds"][0]["actions"][1]["parameters"];
    assert_eq!(
        (&parameters[0]["value"], parameters.as_array().map(Vec::len)),
        (&json!("7"), Some(1))
    );
    let running = client.json("/job/app/1/api/json").await;
    assert_eq!(
        (&running["result"], &running["building"]),
        (&Value::Null, &json!(true))
    );
    assert_eq!(
        client.json("/job/app/1/wfapi/describe").await["stages"][0]["name"],
        "Build"
    );
    jenkins.finish_build("app", 1, "SUCCESS");
    assert_eq!(
        client.json("/job/app/lastSuccessfulBuild/api/json").await["result"],
        "SUCCESS"
    );
    let stages = client.json("/job/app/1/wfapi/describe").await;
    assert_eq!(
        (&stages["status"], &stages["stages"][1]["status"]),
        (&json!("SUCCESS"), &json!("SUCCESS"))
    );
}

#[tokio::test]
async fn builds_that_run_by_themselves_end_with_the_result() {
    let jenkins = Jenkins::start().await;
    jenkins.set_config("app", PIPELINE);
    jenkins.run_builds("FAILURE");
    let client = Client::new(&jenkins);
    client
        .send(Method::POST, "/job/app/buildWithParameters", None)
        .await;
    assert_eq!(
        client.json("/queue/item/1/api/json").await["executable"]["number"],
        1
    );
    let mut reads = 0;
    while client.json("/job/app/1/api/json").await["result"] != "FAILURE" {
        reads += 1;
        assert!(reads < 10, "the build does not end");
    }
    assert_eq!(
        jenkins.builds("app")[0].parameters,
        [("ID".to_owned(), "none".to_owned())]
    );
}

#[tokio::test]
async fn wrong_token_and_faults_are_answered() {
    use devops_simulators::FaultAction;
    let jenkins = Jenkins::start().await;
    let client = Client::new(&jenkins);
    jenkins
        .faults()
        .fail_next(1, "POST", "/createItem", FaultAction::DropAnswer);
    let request = client.http.post(format!("{}/createItem?name=app", client.url));
    let request = request.basic_auth(JENKINS_USER, Some(JENKINS_TOKEN));
    let lost = request
        .header("content-type", "text/xml")
        .body(FOLDER)
        .send()
        .await;
    assert!(
        lost.is_err() && jenkins.items() == ["app"],
        "executed, without a response"
    );
    jenkins.set_token("another");
    assert_eq!(client.status(Method::GET, "/api/json", None).await, 401);
    let seen = jenkins.requests();
    assert_eq!((seen[0].status, seen[1].status), (None, Some(401)));
}
