//! `ostler check`: what an installation needs, before and after it.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::{
    api::{
        admissionregistration::v1::{
            MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
            WebhookClientConfig,
        },
        apps::v1::Deployment,
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        coordination::v1::Lease,
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
    client::Body,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    HOST_NAME,
    chart::{Release, default_values, render_objects},
    rollout::{find_obstacle, list_pods},
};
use crate::{
    cli::{
        ask::OutputFormat,
        connection::root_cause,
        kubeconfig::KubeContext,
        object_api::list_served,
        table::{Shade, shade_text},
    },
    client::connection::connect,
    kube::well_known::condition_type,
    plugin::spec::PluginObject,
    policy::rbac::{ApiResource, HOST_NAMESPACE, LEASE_NAME},
};

/// Oldest minor version of Kubernetes 1 that the tests cover the features of.
const MIN_MINOR_VERSION: u32 = 29;
/// Time by which clocks may differ: tokens and certificates are valid from a moment on.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(10);
/// Version of the kinds of `ostler.dev` that this version serves.
const KIND_VERSION: &str = "v1alpha1";

/// Arguments of `ostler check`.
#[derive(Args)]
#[command(
    after_help = "Before an installation it says whether it can succeed, and after it what keeps the host and its plugins.\n\n\
                  Exit codes: 0 no check failed; 1 otherwise."
)]
pub struct Check {
    /// Namespace of the host.
    #[arg(short, long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    namespace: String,
    #[command(flatten)]
    context: KubeContext,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckResult {
    /// Nothing to do.
    Passed,
    /// It may be meant so.
    Warned,
    /// The installation fails, or the host does not work.
    Failed,
}

/// A checked fact.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Finding {
    result: CheckResult,
    /// The subject, such as `clock`.
    subject: &'static str,
    /// What was found, and the remedy.
    detail: String,
}

impl Finding {
    fn new(subject: &'static str, result: CheckResult, detail: impl Into<String>) -> Self {
        Self {
            result,
            subject,
            detail: detail.into(),
        }
    }
}

use CheckResult::{Failed, Passed, Warned};

impl Check {
    /// Runs the checks and prints them.
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.context.load().await?;
        let server = config.cluster_url.to_string();
        let client = connect(config)?;
        let mut findings = check_server(&client, &server).await?;
        let namespace = &self.namespace;
        // What the user may not see is no reason to leave out the rest.
        for (subject, found) in [
            ("rights", check_rights(&client, namespace).await),
            ("webhooks", check_webhooks(&client).await),
            ("kinds", check_kinds(&client).await),
            ("host", check_deployment(&client, namespace).await),
            ("leader", check_leader(&client, namespace).await),
            ("plugins", check_plugins(&client).await),
        ] {
            match found {
                Ok(found) => findings.extend(found),
                Err(e) => findings.push(Finding::new(subject, Warned, format!("not checked: {e:#}"))),
            }
        }
        match self.output {
            OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&findings)?),
            OutputFormat::Table => findings
                .iter()
                .for_each(|finding| println!("{}", format_finding(finding))),
        }
        let failed = findings.iter().filter(|finding| finding.result == Failed).count();
        if failed > 0 {
            bail!("{failed} of {} checks failed", findings.len());
        }
        Ok(())
    }
}

fn format_finding(finding: &Finding) -> String {
    let (mark, shade) = match finding.result {
        Passed => ("✔", Shade::Good),
        Warned => ("!", Shade::Waiting),
        Failed => ("✘", Shade::Bad),
    };
    format!(
        "{} {:<12} {}",
        shade_text(mark, shade),
        finding.subject,
        finding.detail
    )
}

/// Version and clock of the API server.
async fn check_server(client: &Client, server: &str) -> anyhow::Result<Vec<Finding>> {
    let request = http::Request::get("/version").body(Body::empty())?;
    let response = client.send(request).await;
    let response = response
        .map_err(|e| anyhow::anyhow!("the API server {server} can't be reached: {}", root_cause(&e)))?;
    let date = response
        .headers()
        .get(http::header::DATE)
        .and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
    let body = response
        .into_body()
        .collect_bytes()
        .await
        .context("the version of the API server")?;
    let version: Value = serde_json::from_slice(&body).context("the version of the API server")?;
    Ok(vec![
        describe_version(&version, server),
        describe_clock(date, SystemTime::now()),
    ])
}

fn describe_version(version: &Value, server: &str) -> Finding {
    let git = version["gitVersion"].as_str().unwrap_or_default();
    let minor = version["minor"].as_str().unwrap_or_default();
    // Some distributions have `33+`.
    let minor = minor.trim_end_matches('+').parse::<u32>().ok();
    match minor {
        Some(minor) if minor < MIN_MINOR_VERSION => Finding::new(
            "API server",
            Failed,
            format!("Kubernetes {git} is older than 1.{MIN_MINOR_VERSION}: upgrade the cluster"),
        ),
        _ => Finding::new("API server", Passed, format!("Kubernetes {git} at {server}")),
    }
}

fn describe_clock(theirs: Option<SystemTime>, ours: SystemTime) -> Finding {
    let Some(theirs) = theirs else {
        return Finding::new("clock", Warned, "the API server tells no time");
    };
    let skew = ours.duration_since(theirs).unwrap_or_else(|e| e.duration());
    let detail = format!("{} s from that of the API server", skew.as_secs());
    match skew > MAX_CLOCK_SKEW {
        true => Finding::new(
            "clock",
            Failed,
            format!("{detail}: set the clock of this machine, or of the cluster"),
        ),
        false => Finding::new("clock", Passed, detail),
    }
}

/// The rights of the user to apply what an installation has.
async fn check_rights(client: &Client, namespace: &str) -> anyhow::Result<Vec<Finding>> {
    let release = Release {
        namespace,
        service: super::MANAGER,
    };
    let mut resources: BTreeMap<(String, String), Option<String>> = BTreeMap::new();
    for object in render_objects(&default_values()?, release)? {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let resource = ApiResource::guess(group, object["kind"].as_str().unwrap_or_default()).plural;
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        resources.insert((group.to_owned(), resource), namespace);
    }
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut denied = Vec::new();
    for ((group, resource), namespace) in resources {
        for verb in ["create", "patch"] {
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        group: Some(group.clone()),
                        resource: Some(resource.clone()),
                        namespace: namespace.clone(),
                        verb: Some(verb.to_owned()),
                        ..ResourceAttributes::default()
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let reviewed = reviews
                .create(&PostParams::default(), &review)
                .await
                .context("asking for your rights")?;
            if !reviewed.status.is_some_and(|status| status.allowed) {
                denied.push(format!("{verb} {resource}"));
            }
        }
    }
    Ok(vec![match denied.is_empty() {
        true => Finding::new("rights", Passed, "you may install a host"),
        false => Finding::new(
            "rights",
            Warned,
            format!(
                "you may not {}: an administrator has to install the host",
                denied.join(", ")
            ),
        ),
    }])
}

/// Webhooks whose service has no endpoints, and which refuse what they can't be asked about.
async fn check_webhooks(client: &Client) -> anyhow::Result<Vec<Finding>> {
    let validating = list_served::<ValidatingWebhookConfiguration>(client).await?;
    let validating = validating.into_iter().flat_map(|configuration| {
        let name = configuration.name_any();
        let hooks = configuration.webhooks.into_iter().flatten();
        hooks.map(move |hook| Webhook::new(&name, hook.failure_policy, hook.client_config, hook.rules))
    });
    let mutating = list_served::<MutatingWebhookConfiguration>(client).await?;
    let mutating = mutating.into_iter().flat_map(|configuration| {
        let name = configuration.name_any();
        let hooks = configuration.webhooks.into_iter().flatten();
        hooks.map(move |hook| Webhook::new(&name, hook.failure_policy, hook.client_config, hook.rules))
    });
    let webhooks: Vec<Webhook> = validating.chain(mutating).collect();
    let mut findings = Vec::new();
    for webhook in webhooks.iter().filter(|webhook| webhook.is_relevant) {
        let Some((namespace, service)) = &webhook.service else {
            continue;
        };
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
        let slices = slices.list(&of_service).await.context("listing EndpointSlices")?;
        let mut endpoints = slices.items.iter().flat_map(|slice| &slice.endpoints);
        let is_ready = endpoints.any(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
        });
        if !is_ready {
            findings.push(Finding::new(
                "webhook",
                Failed,
                format!(
                    "{} refuses changes, since its service {namespace}/{service} has no ready endpoints: mend the service, or delete \
                     the configuration",
                    webhook.configuration
                ),
            ));
        }
    }
    if findings.is_empty() {
        let detail = format!("{} webhooks, none in the way", webhooks.len());
        findings.push(Finding::new("webhooks", Passed, detail));
    }
    Ok(findings)
}

/// A webhook of a configuration.
struct Webhook {
    configuration: String,
    /// Namespace and name; none for a URL, which is reached by the API server only.
    service: Option<(String, String)>,
    /// True if it refuses objects of an installation when it does not answer.
    is_relevant: bool,
}

impl Webhook {
    fn new(
        configuration: &str,
        failure_policy: Option<String>,
        client: WebhookClientConfig,
        rules: Option<Vec<RuleWithOperations>>,
    ) -> Self {
        let service = client.service.map(|service| (service.namespace, service.name));
        let fails = failure_policy.is_none_or(|policy| policy == "Fail");
        Self {
            configuration: configuration.to_owned(),
            service,
            is_relevant: fails && rules.iter().flatten().any(concerns_installation),
        }
    }
}

/// Returns true if a rule is about pods, or about objects of an installation.
fn concerns_installation(rule: &RuleWithOperations) -> bool {
    let groups = rule.api_groups.iter().flatten();
    let mut groups = groups.filter(|group| {
        ["", "*", "apps", "rbac.authorization.k8s.io", "ostler.dev"].contains(&group.as_str())
    });
    groups.next().is_some()
}

/// The kinds of `ostler.dev`.
async fn check_kinds(client: &Client) -> anyhow::Result<Vec<Finding>> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut missing = Vec::new();
    let mut found = 0;
    for kind in ["clusters", "plugins", "upstreams"] {
        let name = format!("{kind}.ostler.dev");
        let Some(definition) = definitions
            .get_opt(&name)
            .await
            .context("reading CustomResourceDefinitions")?
        else {
            continue;
        };
        found += 1;
        let versions = &definition.spec.versions;
        if !versions
            .iter()
            .any(|version| version.served && version.name == KIND_VERSION)
        {
            missing.push(name);
        }
    }
    let version = format!("version {KIND_VERSION} of the kinds of ostler.dev");
    Ok(vec![match (found, missing.is_empty()) {
        (0, _) => Finding::new(
            "kinds",
            Warned,
            format!("{version} is not installed: `ostler install` does it"),
        ),
        (3, true) => Finding::new("kinds", Passed, format!("{version} is served")),
        (_, false) => Finding::new(
            "kinds",
            Failed,
            format!(
                "{} do not serve {KIND_VERSION}: upgrade them by `ostler install`",
                missing.join(", ")
            ),
        ),
        _ => Finding::new("kinds", Failed, "some are missing: repeat `ostler install`"),
    }])
}

/// The pods of the host, and the image that they pull.
async fn check_deployment(client: &Client, namespace: &str) -> anyhow::Result<Vec<Finding>> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let Some(deployment) = deployments
        .get_opt(HOST_NAME)
        .await
        .context("reading the Deployment")?
    else {
        let detail = format!("no host is installed in {namespace}: `ostler install` does it");
        return Ok(vec![Finding::new("host", Warned, detail)]);
    };
    let pods = list_pods(client, namespace).await?;
    let status = deployment.status.unwrap_or_default();
    let wanted = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
    let available = status.available_replicas.unwrap_or_default();
    let counted = format!("{available} of {wanted} replicas are ready");
    Ok(vec![match find_obstacle(&status, &pods) {
        _ if available >= wanted => Finding::new("host", Passed, counted),
        Some(obstacle) => Finding::new("host", Failed, format!("{counted}; {obstacle}")),
        None => Finding::new("host", Failed, format!("{counted}: look into its log")),
    }])
}

/// The leader. A host that is not installed has none.
async fn check_leader(client: &Client, namespace: &str) -> anyhow::Result<Vec<Finding>> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = leases.get_opt(LEASE_NAME).await.context("reading the Lease")?;
    Ok(lease
        .map(|lease| describe_leader(&lease, Timestamp::now()))
        .into_iter()
        .collect())
}

fn describe_leader(lease: &Lease, now: Timestamp) -> Finding {
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.unwrap_or_default();
    if holder.is_empty() {
        return Finding::new("leader", Failed, "no host leads: look into the logs of its pods");
    }
    let age = spec
        .renew_time
        .map_or(i64::MAX, |renewed| now.as_second() - renewed.0.as_second());
    match age <= i64::from(spec.lease_duration_seconds.unwrap_or_default()) {
        true => Finding::new("leader", Passed, format!("{holder}, {} s ago", age.max(0))),
        false => Finding::new(
            "leader",
            Failed,
            format!("{holder} has not renewed its Lease for {age} s: is a host running?"),
        ),
    }
}

/// The Plugins: components that can't be pulled or verified, rights that are not granted, builds that trap.
async fn check_plugins(client: &Client) -> anyhow::Result<Vec<Finding>> {
    let plugins = list_served::<PluginObject>(client).await?;
    let mut findings = Vec::new();
    for plugin in &plugins {
        let status = plugin.status.clone().unwrap_or_default();
        let bad = status.conditions.iter().find(|condition| {
            let is_checked = [
                condition_type::LOADED,
                condition_type::GRANTED,
                condition_type::HEALTHY,
            ]
            .contains(&&*condition.kind);
            is_checked && condition.status == "False"
        });
        if let Some(condition) = bad {
            let detail = format!(
                "{}: {}: {}",
                plugin.name_any(),
                condition.reason,
                condition.message
            );
            findings.push(Finding::new("plugin", Failed, detail));
        } else if status.conditions.is_empty() {
            let detail = format!("{}: no host has dealt with it", plugin.name_any());
            findings.push(Finding::new("plugin", Failed, detail));
        }
    }
    if findings.is_empty() && !plugins.is_empty() {
        let detail = format!("{} plugins, all loaded and healthy", plugins.len());
        findings.push(Finding::new("plugins", Passed, detail));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_server_and_wrong_clock_fail_with_the_remedy() {
        let version = |minor: &str| {
            describe_version(
                &json!({"gitVersion": format!("v1.{minor}.1"), "minor": minor}),
                "https://a",
            )
        };
        assert_eq!(version("33+").result, Passed);
        let old = version("20");
        assert!(old.result == Failed && old.detail.contains("upgrade"), "{old:?}");
        let now = SystemTime::now();
        assert_eq!(describe_clock(Some(now), now).result, Passed);
        for theirs in [now + Duration::from_secs(60), now - Duration::from_secs(60)] {
            let skewed = describe_clock(Some(theirs), now);
            assert!(
                skewed.result == Failed && skewed.detail.starts_with("60 s"),
                "{skewed:?}"
            );
        }
        assert_eq!(describe_clock(None, now).result, Warned);
    }

    #[test]
    fn leader_that_renews_passes_and_others_fail() {
        let lease = |holder: &str, renewed: &str| -> Lease {
            serde_json::from_value(
                json!({"metadata": {"name": "ostler"}, "spec": {"holderIdentity": holder,
                "leaseDurationSeconds": 15, "renewTime": renewed}}),
            )
            .expect("a Lease")
        };
        let now: Timestamp = "2026-11-28T12:00:00Z".parse().expect("a time");
        let describe = |holder: &str, renewed: &str| describe_leader(&lease(holder, renewed), now);
        assert_eq!(describe("a", "2026-11-28T11:59:58.000000Z").result, Passed);
        let late = describe("a", "2026-11-28T11:59:00.000000Z");
        assert!(late.result == Failed && late.detail.contains("60 s"), "{late:?}");
        assert_eq!(describe("", "2026-11-28T11:59:58.000000Z").result, Failed);
    }

    #[test]
    fn webhook_that_fails_closed_on_pods_is_relevant() {
        let webhook = |policy: Option<&str>, group: &str| {
            let client = serde_json::from_value(json!({"service": {"namespace": "n", "name": "s"}}))
                .expect("a client");
            let rule = serde_json::from_value(
                json!({"apiGroups": [group], "resources": ["*"], "operations": ["*"]}),
            );
            Webhook::new(
                "w",
                policy.map(str::to_owned),
                client,
                Some(vec![rule.expect("a rule")]),
            )
        };
        assert!(webhook(Some("Fail"), "").is_relevant);
        assert!(webhook(None, "*").is_relevant);
        assert!(!webhook(Some("Ignore"), "").is_relevant);
        assert!(!webhook(Some("Fail"), "cert-manager.io").is_relevant);
    }
}
