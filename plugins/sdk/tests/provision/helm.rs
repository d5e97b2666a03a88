//! Helm applications.

use ostler_sdk::{
    ObjectMeta, Resolution,
    mock::MockHost,
    prelude::*,
    provision::{HelmApplication, HelmDriver, read_argo_health, read_flux_health, step},
    serde_json::Value,
};

use super::call;

fn chart<'a>(owner: &'a ObjectMeta, driver: HelmDriver<'a>, repository: &'a str) -> HelmApplication<'a> {
    HelmApplication {
        owner,
        name: "cache",
        namespace: "argocd",
        target_namespace: "n",
        repository,
        chart: "redis",
        version: "1.2.3",
        values: json!({ "replicas": 2 }),
        driver,
    }
}

#[test]
fn chart_becomes_an_application_of_argo_cd() {
    let owner = ObjectMeta::default();
    let built = chart(
        &owner,
        HelmDriver::ArgoCd { project: "shop" },
        "oci://example.com/charts",
    )
    .build();
    assert_eq!(
        built,
        [json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Application",
            "metadata": { "name": "cache", "namespace": "argocd",
                "finalizers": ["resources-finalizer.argocd.argoproj.io"] },
            "spec": {
                "project": "shop",
                "source": { "repoURL": "example.com/charts", "chart": "redis", "targetRevision": "1.2.3",
                    "helm": { "releaseName": "cache", "valuesObject": { "replicas": 2 } } },
                "destination": { "server": "https://kubernetes.default.svc", "namespace": "n" },
                "syncPolicy": { "automated": { "prune": true, "selfHeal": true },
                    "syncOptions": ["CreateNamespace=true"] },
            },
        })]
    );
}

#[test]
fn chart_becomes_a_repository_and_a_release_of_flux() {
    let owner = ObjectMeta::default();
    let built = chart(&owner, HelmDriver::Flux, "oci://example.com/charts").build();
    let kinds: Vec<_> = built.iter().map(|object| &object["kind"]).collect();
    assert_eq!(kinds, ["HelmRepository", "HelmRelease"]);
    assert_eq!(
        built[0]["spec"],
        json!({ "url": "oci://example.com/charts", "interval": "1h", "type": "oci" })
    );
    let spec = &built[1]["spec"];
    assert_eq!(
        spec["chart"]["spec"]["sourceRef"],
        json!({ "kind": "HelmRepository", "name": "cache" })
    );
    assert_eq!(
        (&spec["targetNamespace"], &spec["releaseName"]),
        (&json!("n"), &json!("cache"))
    );
    assert_eq!(spec["values"], json!({ "replicas": 2 }));

    let mut plain = chart(&owner, HelmDriver::Flux, "https://example.com/charts");
    plain.values = json!({});
    let built = plain.build();
    assert_eq!(built[0]["spec"].get("type"), None);
    assert_eq!(built[1]["spec"].get("values"), None);
}

#[test]
fn application_of_argo_cd_is_ready_when_synced_and_healthy_for_its_spec() {
    let source = json!({ "repoURL": "r", "chart": "c", "targetRevision": "2", "helm": {} });
    let state = |status: Value| {
        let application = json!({ "spec": { "source": source }, "status": status });
        read_argo_health(&application).map_err(|failure| (failure.resolution, failure.reason))
    };
    let wait = |reason: &str| Err((Resolution::Wait, reason.to_owned()));
    let synced = |health: &str| json!({ "sync": { "status": "Synced" }, "health": { "status": health } });
    assert_eq!(state(Value::Null), wait("Provisioning"));
    assert_eq!(state(synced("Healthy")), Ok(()));
    assert_eq!(state(synced("Progressing")), wait("Provisioning"));
    assert_eq!(state(synced("Degraded")), wait("Degraded"));
    let mut of_spec = synced("Healthy");
    of_spec["sync"]["comparedTo"] = json!({ "source": source });
    assert_eq!(state(of_spec.clone()), Ok(()));
    of_spec["sync"]["comparedTo"]["source"]["targetRevision"] = "1".into();
    assert_eq!(state(of_spec), wait("Provisioning"));
    let mut failed = json!({ "sync": { "status": "OutOfSync" }, "operationState": { "phase": "Failed", "message": "no" } });
    assert_eq!(state(failed.clone()), wait("SyncFailed"));
    // Argo CD shows an Application with such a condition as Healthy.
    failed = synced("Healthy");
    failed["conditions"] = json!([{ "type": "ComparisonError", "message": "no such chart" }]);
    assert_eq!(state(failed.clone()), wait("ComparisonError"));
    failed["conditions"] = json!([{ "type": "InvalidSpecError", "message": "no such project" }]);
    assert_eq!(
        state(failed),
        Err((Resolution::Terminal, "InvalidSpecError".into()))
    );
}

#[test]
fn release_of_flux_is_ready_when_it_is_for_its_generation() {
    let state = |conditions: Value| {
        let release = json!({ "metadata": { "generation": 2 }, "status": { "conditions": conditions } });
        read_flux_health(&release).map_err(|failure| (failure.resolution, failure.reason))
    };
    let condition = |kind: &str, status: &str, reason: &str, generation: i64| json!({ "type": kind, "status": status, "reason": reason, "observedGeneration": generation });
    let wait = |reason: &str| Err((Resolution::Wait, reason.to_owned()));
    assert_eq!(state(Value::Null), wait("Provisioning"));
    assert_eq!(
        state(json!([condition("Ready", "True", "InstallSucceeded", 2)])),
        Ok(())
    );
    assert_eq!(
        state(json!([condition("Ready", "True", "InstallSucceeded", 1)])),
        wait("Provisioning")
    );
    assert_eq!(
        state(json!([condition("Ready", "Unknown", "Progressing", 2)])),
        wait("Provisioning")
    );
    let failed = condition("Ready", "False", "InstallFailed", 2);
    assert_eq!(state(json!([failed])), wait("InstallFailed"));
    let stalled = condition("Stalled", "True", "RetriesExceeded", 2);
    let expected = Err((Resolution::Terminal, "RetriesExceeded".into()));
    assert_eq!(state(json!([failed, stalled])), expected);
}

#[test]
fn release_of_flux_is_uninstalled_before_its_repository_goes() {
    let host = MockHost::new();
    let run = |provisions| {
        call(&host, |ctx, thing| {
            let tree = step(
                "Chart",
                chart(&thing.metadata, HelmDriver::Flux, "https://example.com"),
            );
            if provisions {
                tree.provision(ctx)
            } else {
                tree.deprovision(ctx)
            }
        })
    };
    let release = gvk("helm.toolkit.fluxcd.io", "v2", "HelmRelease").named("argocd", "cache");
    assert_eq!(run(true).expect_err("is not deployed").reason, "Provisioning");
    let mut live = host.object(&release).expect("applied");
    live["metadata"]["finalizers"] = json!(["finalizers.fluxcd.io"]);
    live["metadata"]["generation"] = 1.into();
    live["status"]["conditions"] = json!([{ "type": "Ready", "status": "True", "observedGeneration": 1 }]);
    host.put(live);
    run(true).expect("is deployed");
    host.forget();
    assert_eq!(
        run(false).expect_err("is being uninstalled").reason,
        "Deprovisioning"
    );
    assert_eq!(host.writes(), ["delete HelmRelease cache"]);
    host.remove(&release);
    run(false).expect("is gone");
    assert_eq!(
        host.writes(),
        ["delete HelmRelease cache", "delete HelmRepository cache"]
    );
}
