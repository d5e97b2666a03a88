//! Tests of the JenkinsSetting reconciler against a Jenkins simulator and a real git server.

mod world;

use devops_simulators::{
    FaultAction,
    git::GIT_PASSWORD,
    jenkins::{JENKINS_TOKEN, Jenkins},
};
use ostler_sdk::serde_json::{Value, json};
use ostler_sdk::{Condition, ConditionStatus, Next, Resolution, gvk};
use world::{DEFINITION, JenkinsWorld, SECRETS};

const FOLDER: &str = "<com.cloudbees.hudson.plugins.folder.Folder/>";
const FOREIGN_JOB: &str = "<flow-definition><description>by hand</description></flow-definition>";

fn condition(all: &[Condition], kind: &str) -> (ConditionStatus, String) {
    let found = all.iter().find(|c| c.type_ == kind).expect(kind);
    (found.status, found.reason.clone())
}

fn script(jenkins: &Jenkins, path: &str) -> String {
    let config = jenkins.config(path).expect(path);
    let (_, rest) = config.split_once("<script>").expect("a script");
    let script = rest.split_once("</script>").expect("a script").0;
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    entities.iter().fold(script.to_owned(), |text, (entity, plain)| {
        text.replace(entity, plain)
    })
}

#[test]
fn pipelines_of_all_environments_and_credentials_are_created() {
    let mut world = JenkinsWorld::new();
    let outcome = world.succeed();
    assert_eq!(outcome.next, Next::Poll(Some(300_000)));
    for (kind, reason) in [
        ("Ready", "Ready"),
        ("Authenticated", "Authenticated"),
        ("DefinitionValid", "Valid"),
    ] {
        assert_eq!(
            condition(&outcome.conditions, kind),
            (ConditionStatus::True, reason.into())
        );
    }
    let items = [
        "shop",
        "shop/alpha",
        "shop/alpha/build",
        "shop/production",
        "shop/production/build",
    ];
    assert_eq!(world.jenkins.items(), items);
    let text = script(&world.jenkins, "shop/alpha/build");
    let url = world.git.repository_url("app");
    let expected = format!(
        r"pipeline {{
  agent {{ label 'linux' }}
  options {{
    timeout(time: 60, unit: 'MINUTES')
    skipDefaultCheckout()
  }}
  environment {{
    ENVIRONMENT = 'alpha'
    GREETING = 'it\'s ${{here}}'
    REGISTRY = credentials('registry-login')
  }}
  stages {{
    stage('Checkout') {{
      steps {{
        checkout([$class: 'GitSCM', branches: [[name: 'main']], userRemoteConfigs: [[url: '{url}', credentialsId: 'ostler-git']]])
      }}
    }}
    stage('Test') {{
      steps {{
        sh 'make \'test\''
      }}
    }}
  }}
}}
"
    );
    assert_eq!(text, expected);
    let production = script(&world.jenkins, "shop/production/build");
    assert_eq!(
        production,
        expected.replace("'alpha'", "'production'"),
        "the same but for the environment"
    );
    let config = world.jenkins.config("shop/alpha/build").expect("a pipeline");
    assert!(
        config.contains("Builds &lt;it&gt; &amp; &apos;that&apos;"),
        "{config}"
    );
    assert!(
        config.contains("<name>DEPLOYMENT_ID</name>") && config.contains("<name>TAG</name>"),
        "{config}"
    );
    assert_eq!(
        world.jenkins.credentials("shop"),
        ["ostler-git", "registry-login"]
    );
    let stored = world
        .jenkins
        .credential("shop", "registry-login")
        .expect("credentials");
    assert!(
        stored.contains("<password>pass&lt;&amp;&gt;word-0042</password>"),
        "{stored}"
    );
    assert!(
        world
            .jenkins
            .credential("shop", "ostler-git")
            .expect("credentials")
            .contains(GIT_PASSWORD)
    );
    let upstream = gvk("ostler.dev", "v1alpha1", "Upstream").named("shop", "jenkins-ci");
    let applied = world.host.object(&upstream).expect("applied");
    assert_eq!(
        applied["spec"]["auth"]["basic"]["passwordSecretRef"],
        json!({ "name": "jenkins", "key": "k" })
    );
    let status = &world.setting["status"];
    assert_eq!(status["pipelines"].as_array().map(Vec::len), Some(2));
    assert_eq!(status["claimedServer"], world.jenkins.url());
}

#[test]
fn secrets_are_in_no_request_or_status_of_the_component() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    let sent = world.host.sent();
    let bodies = sent.iter().filter_map(|request| request.body.as_deref());
    let mut seen: Vec<String> = bodies
        .map(|body| String::from_utf8_lossy(body).into_owned())
        .collect();
    seen.push(world.setting.to_string());
    for (_, secret) in SECRETS.iter().chain([&("jenkins", JENKINS_TOKEN)]) {
        assert!(seen.iter().all(|text| !text.contains(secret)), "{secret}");
    }
}

#[test]
fn unchanged_commit_is_one_request_to_git_and_no_write() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    world.git.forget();
    world.jenkins.forget();
    world.succeed();
    let requests = world.git.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert!(requests[0].body.contains("command=ls-refs"), "{requests:?}");
    assert_eq!(world.jenkins_writes(), [""; 0]);
}

#[test]
fn new_commit_changes_and_deletes_pipelines() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    let changed = format!(
        "{}- name: nightly\n  stages: [{{name: A, steps: [b]}}]\n",
        DEFINITION.replace("make 'test'", "make all")
    );
    world.git.commit("app", "main", &[("ci/devops.yaml", &changed)]);
    world.jenkins.forget();
    world.succeed();
    assert!(script(&world.jenkins, "shop/alpha/build").contains("sh 'make all'"));
    assert!(world.jenkins.config("shop/production/nightly").is_some());
    assert_eq!(world.jenkins_writes().len(), 4, "{:?}", world.jenkins_writes());
    let nightly = "pipelines:\n- name: nightly\n  stages: [{name: A, steps: [b]}]\n";
    world.git.commit("app", "main", &[("ci/devops.yaml", nightly)]);
    world.succeed();
    let items = [
        "shop",
        "shop/alpha",
        "shop/alpha/nightly",
        "shop/production",
        "shop/production/nightly",
    ];
    assert_eq!(world.jenkins.items(), items);
}

#[test]
fn drift_in_jenkins_is_corrected_and_builds_are_kept() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    let path = "shop/alpha/build";
    let written = world.jenkins.config(path).expect("a pipeline");
    for drifted in [
        written.replace("<disabled>false", "<disabled>true"),
        written.replace("sh &apos;make", "sh &apos;rm -rf"),
        written.replace("<sandbox>true", "<sandbox>false"),
    ] {
        assert_ne!(drifted, written);
        world.jenkins.set_config(path, &drifted);
        world.succeed();
        assert_eq!(world.jenkins.config(path).as_ref(), Some(&written));
    }
    assert!(
        world
            .host
            .events()
            .iter()
            .all(|(reason, _)| reason == "DriftCorrected")
    );
    world.jenkins.delete_item("shop/production");
    world.succeed();
    assert!(
        world.jenkins.config("shop/production/build").is_some(),
        "created again"
    );
}

#[test]
fn foreign_items_stop_the_reconcile_before_the_first_write() {
    for (paths, foreign) in [
        (&[("shop", FOLDER)][..], "shop exists"),
        (&[("shop", FOREIGN_JOB)], "shop exists"),
    ] {
        let mut world = JenkinsWorld::new();
        for (path, config) in paths {
            world.jenkins.set_config(path, config);
        }
        let failure = world.fail("ItemExists");
        assert!(failure.message.contains(foreign), "{}", failure.message);
        assert_eq!(failure.resolution, Resolution::Retry);
        assert_eq!(world.jenkins_writes(), [""; 0]);
        assert_eq!(world.setting["status"]["claimedServer"], Value::Null);
        world.cleanup().expect("is cleaned up");
        assert_eq!(world.jenkins.items().len(), paths.len(), "still there");
    }
    for (path, config) in [("shop/alpha", FOLDER), ("shop/alpha/build", FOREIGN_JOB)] {
        let mut world = JenkinsWorld::new();
        world.succeed();
        world.jenkins.delete_item(path);
        world.jenkins.set_config(path, config);
        world.jenkins.forget();
        let failure = world.fail("ItemExists");
        assert!(failure.message.contains(path), "{}", failure.message);
        assert_eq!(world.jenkins_writes(), [""; 0]);
    }
}

#[test]
fn mark_of_another_setting_is_foreign() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    world.setting["metadata"]["uid"] = "u-2".into();
    world.fail("ItemExists");
    world.cleanup().expect("is cleaned up");
    assert_eq!(world.jenkins.items().len(), 5);
}

#[test]
fn rotated_secret_is_written_once_and_foreign_credentials_stay() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    world.jenkins.forget();
    world.host.secret("registry", "k", "another digest");
    world.succeed();
    let update = "POST /job/shop/credentials/store/folder/domain/_/credential/registry-login/config.xml";
    assert_eq!(world.jenkins_writes(), [update]);
    world.succeed();
    assert_eq!(world.jenkins_writes().len(), 1, "once");

    let foreign = "<org.jenkinsci.plugins.plaincredentials.impl.StringCredentialsImpl><id>mine</id>\
        <secret>s</secret></org.jenkinsci.plugins.plaincredentials.impl.StringCredentialsImpl>";
    world.jenkins.set_credential("shop", "mine", foreign);
    world.setting["spec"]["credentials"] = json!([]);
    world.succeed();
    assert_eq!(world.jenkins.credentials("shop"), ["mine", "ostler-git"]);
    world.setting["spec"]["credentials"] =
        json!([{ "id": "mine", "kind": "SecretText", "secretRef": { "name": "registry", "key": "k" } }]);
    world.fail("CredentialExists");
    assert_eq!(world.jenkins.credential("shop", "mine").as_deref(), Some(foreign));
    world.cleanup().expect("is cleaned up");
    assert_eq!(
        world.jenkins.items(),
        ["shop"],
        "the folder has credentials of another user"
    );
    assert_eq!(world.jenkins.credentials("shop"), ["mine"]);
    assert_eq!(
        world.host.events().last().map(|(reason, _)| reason.as_str()),
        Some("FolderKept")
    );
}

#[test]
fn cleanup_deletes_everything_that_is_ours() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    assert_eq!(world.cleanup().expect("is cleaned up").next, Next::AwaitChange);
    assert!(world.jenkins.items().is_empty() && world.jenkins.credentials("shop").is_empty());
    world.cleanup().expect("again");

    let mut world = JenkinsWorld::new();
    world.succeed();
    world.jenkins.set_config("shop/alpha/by-hand", FOREIGN_JOB);
    world.cleanup().expect("is cleaned up");
    assert_eq!(
        world.jenkins.items(),
        ["shop", "shop/alpha", "shop/alpha/by-hand"]
    );
    assert_eq!(
        world.jenkins.config("shop/alpha/by-hand").as_deref(),
        Some(FOREIGN_JOB)
    );
}

#[test]
fn removed_environment_is_deleted_unless_others_use_it() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    world.setting["spec"]["environments"] = json!(["alpha"]);
    world.succeed();
    assert_eq!(world.jenkins.items(), ["shop", "shop/alpha", "shop/alpha/build"]);
    world.setting["spec"]["environments"] = json!(["beta"]);
    world.jenkins.set_config("shop/alpha/by-hand", FOREIGN_JOB);
    world.succeed();
    let items = [
        "shop",
        "shop/alpha",
        "shop/alpha/by-hand",
        "shop/beta",
        "shop/beta/build",
    ];
    assert_eq!(world.jenkins.items(), items);
}

#[test]
fn lost_responses_and_errors_leave_one_of_each() {
    for path in [
        "^/createItem",
        "^/job/shop/createItem",
        "^/job/shop/job/alpha/createItem",
        "createCredentials$",
    ] {
        for fault in [
            FaultAction::DropAnswer,
            FaultAction::Drop,
            FaultAction::Status(500, "<html>".into()),
        ] {
            let mut world = JenkinsWorld::new();
            world.jenkins.faults().fail_next(1, "POST", path, fault.clone());
            let failure = world.reconcile().expect_err("fails");
            let reasons = ["JenkinsUnreachable", "JenkinsFailed"];
            assert!(
                reasons.contains(&&*failure.reason),
                "{path} {fault:?}: {}",
                failure.reason
            );
            assert_eq!(
                condition(&failure.conditions, "Authenticated").0,
                ConditionStatus::Unknown
            );
            world.succeed();
            assert_eq!(world.jenkins.items().len(), 5, "{path} {fault:?}");
            // From any of these states the cleanup deletes everything.
            world.cleanup().expect("is cleaned up");
            assert!(world.jenkins.items().is_empty(), "{path} {fault:?}");
        }
    }
}

#[test]
fn cleanup_after_a_first_write_without_a_response_deletes_it() {
    let mut world = JenkinsWorld::new();
    world
        .jenkins
        .faults()
        .fail_next(1, "POST", "^/createItem", FaultAction::DropAnswer);
    world.fail("JenkinsUnreachable");
    assert_eq!(world.jenkins.items(), ["shop"]);
    world.cleanup().expect("is cleaned up");
    assert!(world.jenkins.items().is_empty());
}

#[test]
fn problems_of_the_definition_leave_jenkins_as_it_is() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    let items = world.jenkins.items();
    for (files, reason, valid) in [
        (
            &[("ci/devops.yaml", "pipelines: [{name: a/b}]")][..],
            "DefinitionInvalid",
            ConditionStatus::False,
        ),
        (
            &[("ci/devops.yaml", "{{{")],
            "DefinitionInvalid",
            ConditionStatus::False,
        ),
    ] {
        world.git.commit("app", "main", files);
        world.jenkins.forget();
        let failure = world.fail(reason);
        assert_eq!(condition(&failure.conditions, "DefinitionValid").0, valid);
        assert_eq!(world.jenkins_writes(), [""; 0]);
        assert_eq!(world.jenkins.items(), items);
    }
    world.setting["spec"]["git"]["path"] = "ci/other.yaml".into();
    let failure = world.fail("FileNotFound");
    assert_eq!(
        condition(&failure.conditions, "DefinitionValid").0,
        ConditionStatus::Unknown
    );
    world.setting["spec"]["git"]["path"] = "ci".into();
    world.fail("FileNotFound");
    world.setting["spec"]["git"]["path"] = "../etc/passwd".into();
    assert_eq!(world.fail("InvalidSpec").resolution, Resolution::Terminal);
    world.setting["spec"]["git"]["revision"] = "no-such-branch".into();
    world.fail("RevisionNotFound");
    world.git.set_password("rotated-elsewhere");
    world.fail("AuthenticationFailed");
    assert_eq!(world.jenkins.items(), items);
}

#[test]
fn tag_is_a_revision() {
    let mut world = JenkinsWorld::new();
    let commit = world
        .git
        .commit("app", "main", &[("ci/devops.yaml", "pipelines: []\n")]);
    world.git.tag("app", "v1", &commit);
    world.git.commit("app", "main", &[("ci/devops.yaml", DEFINITION)]);
    world.setting["spec"]["git"]["revision"] = "v1".into();
    world.succeed();
    assert_eq!(world.setting["status"]["commit"], commit);
    assert_eq!(world.jenkins.items(), ["shop", "shop/alpha", "shop/production"]);
}

#[test]
fn server_without_filters_is_named_with_the_remedy() {
    let mut world = JenkinsWorld::new();
    world.git.set_config("app", "uploadpack.allowFilter", "false");
    let failure = world.fail("FilterNotSupported");
    assert!(
        failure.message.contains("uploadpack.allowFilter"),
        "{}",
        failure.message
    );
}

#[test]
fn refused_token_is_not_authenticated() {
    let mut world = JenkinsWorld::new();
    world.jenkins.set_token("another");
    let failure = world.fail("AuthenticationFailed");
    assert_eq!(
        condition(&failure.conditions, "Authenticated").0,
        ConditionStatus::False
    );
}

#[test]
fn another_server_is_claimed_anew_and_the_former_is_left() {
    let mut world = JenkinsWorld::new();
    world.succeed();
    world.setting["spec"]["url"] = "https://other.example.com".into();
    world.cleanup().expect("is cleaned up");
    assert_eq!(world.jenkins.items().len(), 5, "it is on another server now");
    assert_eq!(
        world.host.events().last().map(|(reason, _)| reason.as_str()),
        Some("Orphaned")
    );
}

#[test]
fn invalid_specs_and_suspended_objects_send_nothing() {
    for (field, value, reason) in [
        ("url", json!("http://jenkins.example.com"), "InvalidSpec"),
        ("environments", json!(["a/b"]), "InvalidSpec"),
        ("environments", json!(["alpha", "Alpha"]), "InvalidSpec"),
        (
            "git",
            json!({ "credentialsRef": { "name": "none" } }),
            "GitCredentialsNotReady",
        ),
    ] {
        let mut world = JenkinsWorld::new();
        world.setting["spec"][field] = value;
        world.fail(reason);
        assert!(world.host.requests().is_empty(), "{field}");
    }
    let mut world = JenkinsWorld::new();
    world.setting["spec"]["suspend"] = true.into();
    let outcome = world
        .host
        .reconcile(&devops_jenkins::SettingsReconciler, &world.setting)
        .expect("is suspended");
    assert_eq!(condition(&outcome.conditions, "Ready").1, "Suspended");
    assert!(world.host.requests().is_empty() && world.host.writes().is_empty());
    for (credential, reason) in [
        (
            json!({ "id": "ostler-git", "username": "a", "secretRef": { "name": "git", "key": "k" } }),
            "InvalidSpec",
        ),
        (
            json!({ "id": "a", "secretRef": { "name": "git", "key": "k" } }),
            "InvalidSpec",
        ),
        (
            json!({ "id": "a", "kind": "SecretText", "secretRef": { "name": "none", "key": "k" } }),
            "SecretNotFound",
        ),
    ] {
        let mut world = JenkinsWorld::new();
        world.setting["spec"]["credentials"] = json!([credential]);
        world.fail(reason);
    }
}
