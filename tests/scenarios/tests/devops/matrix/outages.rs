//! Deployments while Argo CD's controller, cert-manager or the DNS server is down, by the whole pack: what is promised is stated once,
//! and holds at each step.

use ostler::testing::key::{Gvk, ObjectRef};
use ostler_test_harness::{
    Lab, find_condition,
    gateway::{Gateway, ServerFault},
    scenario,
};
use serde_json::Value;

use crate::devops::{
    failures::{APPLICATION, LONG_TTL_SECONDS, delete, limit_phase, record},
    pack::{PackLab, ZONE, application},
    whole::start_with_dns_gateway,
};

/// Something that a deployment waits for is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// Argo CD's controller takes no operation, and deletes nothing.
    ArgoCd,
    /// Certificates stay as they are.
    CertManager,
    /// The DNS server, or a proxy in front of it, fails.
    Dns(ServerFault),
}

impl Outage {
    const ALL: [Self; 8] = [
        Self::ArgoCd,
        Self::CertManager,
        Self::Dns(ServerFault::Down),
        Self::Dns(ServerFault::CutsResponses),
        Self::Dns(ServerFault::Unauthorized),
        Self::Dns(ServerFault::ProxyNotFound),
        Self::Dns(ServerFault::BadGateway),
        Self::Dns(ServerFault::OtherPage),
    ];

    fn set(self, pack: &PackLab, dns: &Gateway, is_down: bool) {
        match self {
            Self::ArgoCd => pack.argo_cd.pause(APPLICATION, is_down),
            Self::CertManager => pack.cluster.set_cert_manager_down(is_down),
            Self::Dns(fault) => dns.set_fault(is_down.then_some(fault)),
        }
    }

    /// The phase that a deployment does not leave meanwhile, and the field with its limit.
    fn phase(self) -> (&'static str, &'static str) {
        match self {
            Self::ArgoCd => ("deploying", "syncSeconds"),
            _ => ("verifying", "verifySeconds"),
        }
    }

    /// A part of the message of what waits for it.
    fn name(self) -> &'static str {
        match self {
            Self::ArgoCd => "Argo CD",
            Self::CertManager => "Certificate",
            Self::Dns(_) => "DnsRecord",
        }
    }

    /// The deletion of what is live waits for it.
    fn keeps_deleted(self) -> bool {
        matches!(self, Self::Dns(_))
    }
}

async fn get(lab: &Lab, id: &str) -> Value {
    lab.get(&record(), id).await.unwrap_or_default()
}

async fn is_in_state(lab: &Lab, id: &str, state: &str) -> bool {
    get(lab, id).await["status"]["state"] == state
}

/// Waits for a condition, and has deployments and their record sets look at their servers meanwhile: a record set that was refused
/// would wait five minutes.
async fn wait_looking<F: Future<Output = bool>>(
    lab: &Lab,
    ids: &[&str],
    what: &str,
    holds: impl FnMut() -> F,
) {
    let record_set = Gvk::new("dns.ostler.dev", "v1alpha1", "PowerDnsRecordSet");
    let kinds = [record(), record_set];
    let keys = ids
        .iter()
        .flat_map(|id| kinds.iter().map(|kind| lab.key(kind, id)));
    let keys: Vec<ObjectRef> = keys.collect();
    lab.wait_polling(&keys, what, holds).await;
}

#[scenario(argocd)]
async fn deployment_outlasts_outages_of_argo_cd_cert_manager_and_dns(lab: Lab) {
    let mut pack = PackLab::start(lab, true).await;
    let (dns, gateway) = start_with_dns_gateway(&mut pack).await;
    pack.set_up_project().await;
    let lab = &pack.lab;
    let foreign = dns.record_sets(ZONE).await;
    let publish = async |id: &str| {
        let host = format!("{id}.{ZONE}");
        pack.publish_deployment_at(&host, id, LONG_TTL_SECONDS).await;
    };
    let mut all = Vec::new();
    for (number, outage) in Outage::ALL.into_iter().enumerate() {
        let [live, waiting, late] = ["live", "waiting", "late"].map(|step| format!("d-{step}-{number}"));
        publish(&live).await;
        wait_looking(lab, &[&live], &format!("{live} is live"), async || {
            is_in_state(lab, &live, "success").await
        })
        .await;

        outage.set(&pack, &gateway, true);
        let (phase, limit) = outage.phase();
        let ids: [&str; 2] = [&waiting, &late];
        for id in ids {
            publish(id).await;
        }
        wait_looking(lab, &ids, &format!("{ids:?} wait for {outage:?}"), async || {
            for id in ids {
                let found = get(lab, id).await;
                let message = find_condition(&found, "Ready")["message"].to_string();
                if found["status"]["phase"] != phase || !message.contains(outage.name()) {
                    return false;
                }
            }
            true
        })
        .await;

        // One is deleted, and one reaches its limit meanwhile.
        lab.delete(&record(), &live).await;
        limit_phase(lab, &late, limit).await;
        wait_looking(
            lab,
            &[&live, &late],
            &format!("{late} ends during {outage:?}"),
            async || {
                let late = get(lab, &late).await;
                let deleted = lab.get(&record(), &live).await;
                let is_told = late["status"]["state"] == "failed"
                    && late["status"]["heartbeat"]["finalConfirmed"] == true;
                let is_waiting = deleted.is_some_and(|deleted| {
                    let message = find_condition(&deleted, "Ready")["message"].to_string();
                    message.contains("PowerDNS")
                        || message.contains(&gateway.address().to_string())
                        || message.contains("check the URL")
                });
                is_told && is_waiting == outage.keeps_deleted()
            },
        )
        .await;

        outage.set(&pack, &gateway, false);
        wait_looking(
            lab,
            &[&waiting, &live],
            &format!("all is well after {outage:?}"),
            async || is_in_state(lab, &waiting, "success").await && lab.get(&record(), &live).await.is_none(),
        )
        .await;
        let found = get(lab, &waiting).await;
        for id in [&live, &waiting, &late] {
            assert_eq!(pack.count_builds(id), 1, "builds of {id}");
        }
        assert_eq!(pack.count_syncs(&found), 1, "syncs of {waiting}");
        assert!(pack.count_syncs(&get(lab, &late).await) <= 1, "syncs of {late}");
        all.extend([waiting, late]);
    }

    // The application goes with the last deployment that needs it, when Argo CD is back.
    Outage::ArgoCd.set(&pack, &gateway, true);
    let (last, others) = all.split_first().expect("deployments");
    for id in others {
        delete(lab, id).await;
    }
    lab.delete(&record(), last).await;
    wait_looking(
        lab,
        &[last],
        "the last deployment waits for Argo CD",
        async || {
            let message = find_condition(&get(lab, last).await, "Ready")["message"].to_string();
            message.contains("Argo CD") && message.contains(APPLICATION)
        },
    )
    .await;
    Outage::ArgoCd.set(&pack, &gateway, false);
    delete(lab, last).await;
    assert_eq!(lab.get(&application(), APPLICATION).await, None);
    assert_eq!(
        dns.record_sets(ZONE).await,
        foreign,
        "what others made is left alone"
    );
}
