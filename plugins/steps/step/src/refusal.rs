//! Refusals of a pod by the API server, by their text: quota and Pod Security have no code of their own.

use ostler_sdk::prelude::*;

/// The failure for an error of the creation of a pod. What an administrator can mend is tried again; it is no error of the
/// host, so that it waits instead of backing off.
pub fn classify_refusal(error: Error) -> Failure {
    let text = error.text();
    // The status of a quota is unknown until its controller has seen it.
    if text.contains("exceeded quota")
        || text.contains("status unknown for quota")
        || text.contains("must specify limits")
        || text.contains("must specify requests")
    {
        let message = format!(
            "The quota of the namespace refuses the pod: wait for other pods, raise the ResourceQuota, or change \
             spec.resources. {text}"
        );
        return Failure::wait("QuotaExceeded", message);
    }
    if text.contains("violates PodSecurity") {
        let message = format!(
            "Pod Security refuses the pod: remove what spec.securityContext adds, or change the label \
             pod-security.kubernetes.io/enforce of the namespace. {text}"
        );
        return Failure::wait("PodSecurityRefused", message);
    }
    Failure::from(error).reason("PodRefused")
}

#[cfg(test)]
mod tests {
    use ostler_sdk::Resolution;

    use super::*;

    #[test]
    fn refusal_has_its_reason_and_is_tried_again() {
        for (text, reason, resolution) in [
            (
                "pods \"a-1\" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=5, limited: pods=5",
                "QuotaExceeded",
                Resolution::Wait,
            ),
            (
                "pods \"a-1\" is forbidden: failed quota: compute: must specify limits.memory for: process",
                "QuotaExceeded",
                Resolution::Wait,
            ),
            (
                "pods \"a-1\" is forbidden: status unknown for quota: compute, resources: pods",
                "QuotaExceeded",
                Resolution::Wait,
            ),
            (
                "pods \"a-1\" is forbidden: violates PodSecurity \"restricted:latest\": privileged (container \"process\")",
                "PodSecurityRefused",
                Resolution::Wait,
            ),
            (
                "Pod \"a-1\" is invalid: spec.containers[0].image",
                "PodRefused",
                Resolution::Terminal,
            ),
        ] {
            let failure = classify_refusal(Error::Invalid(text.into()));
            assert_eq!(
                (&*failure.reason, failure.resolution),
                (reason, resolution),
                "{text}"
            );
            assert!(failure.message.contains(text));
        }
        let forbidden = classify_refusal(Error::Denied("pods is forbidden: exceeded quota: compute".into()));
        assert_eq!(forbidden.reason, "QuotaExceeded");
        let unavailable = classify_refusal(Error::Unavailable("connection refused".into()));
        assert_eq!(
            (&*unavailable.reason, unavailable.resolution),
            ("PodRefused", Resolution::Retry)
        );
    }
}
