//! The course of a pod, and the statuses that a kubelet reports on the way. Pure: what is sent is in the parent.

use serde_json::{Value, json};

/// Name of the container whose end is that of the pod's work. Others run on.
const MAIN_CONTAINER: &str = "process";

/// How far the containers of a pod get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Course {
    /// The scheduler has not seen the pod.
    Unseen,
    /// No node can take the pod, with the message of the scheduler.
    Unschedulable(String),
    /// The main container cannot start, with the kubelet's reason and message.
    Waiting(&'static str, String),
    /// The init container runs.
    Initializing,
    /// The init container has failed with this termination message.
    InitFailed(String),
    /// The containers run.
    Running,
    /// The main container has ended with this exit code and termination message.
    Ended(i64, String),
    /// The kernel has ended the main container for its use of memory.
    OomKilled,
    /// The kubelet has evicted the pod, with this message.
    Evicted(String),
}

impl Course {
    /// The stages up to this one, in the order in which a kubelet reports them.
    pub fn stages(&self) -> Vec<Self> {
        match self {
            Self::Unseen => Vec::new(),
            Self::Unschedulable(_) | Self::Waiting(..) | Self::Initializing => vec![self.clone()],
            Self::InitFailed(_) | Self::Running => vec![Self::Initializing, self.clone()],
            Self::Ended(..) | Self::OomKilled | Self::Evicted(_) => {
                vec![Self::Initializing, Self::Running, self.clone()]
            }
        }
    }

    /// Returns true if the pod has a node at this stage.
    pub fn is_bound(&self) -> bool {
        !matches!(self, Self::Unseen | Self::Unschedulable(_))
    }

    /// The status of a pod at this stage.
    pub fn status(&self, pod: &Value, now: &str) -> Value {
        let init = |state: Value| containers(&pod["spec"]["initContainers"], |_| state.clone());
        let main = |state: Value, others: Value| {
            containers(&pod["spec"]["containers"], |name| match name {
                MAIN_CONTAINER => state.clone(),
                _ => others.clone(),
            })
        };
        let ended = |exit_code: i64, reason: &str, message: &str| {
            json!({ "terminated": { "exitCode": exit_code, "reason": reason, "message": message,
                "startedAt": now, "finishedAt": now } })
        };
        let waiting =
            |reason: &str, message: &str| json!({ "waiting": { "reason": reason, "message": message } });
        let running = || json!({ "running": { "startedAt": now } });
        let initialized = || init(ended(0, "Completed", ""));
        let starting = || waiting("PodInitializing", "");
        match self {
            Self::Unseen => json!({}),
            Self::Unschedulable(message) => json!({ "phase": "Pending", "conditions": [
                { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
                    "lastProbeTime": null, "lastTransitionTime": now },
            ] }),
            Self::Waiting(reason, message) => json!({ "phase": "Pending",
                "initContainerStatuses": initialized(),
                "containerStatuses": main(waiting(reason, message), running()) }),
            Self::Initializing => json!({ "phase": "Pending", "startTime": now,
                "initContainerStatuses": init(running()), "containerStatuses": main(starting(), starting()) }),
            Self::InitFailed(message) => json!({ "phase": "Failed",
                "initContainerStatuses": init(ended(126, "Error", message)),
                "containerStatuses": main(starting(), starting()) }),
            Self::Running => {
                json!({ "phase": "Running", "podIP": pod_ip(pod), "podIPs": [{ "ip": pod_ip(pod) }],
                "initContainerStatuses": initialized(), "containerStatuses": main(running(), running()) })
            }
            Self::Ended(exit_code, message) => {
                let reason = if *exit_code == 0 { "Completed" } else { "Error" };
                let has_others = pod["spec"]["containers"]
                    .as_array()
                    .is_some_and(|all| all.len() > 1);
                let phase = match exit_code {
                    _ if has_others => "Running",
                    0 => "Succeeded",
                    _ => "Failed",
                };
                json!({ "phase": phase, "containerStatuses": main(ended(*exit_code, reason, message), running()) })
            }
            Self::OomKilled => {
                json!({ "phase": "Failed", "containerStatuses": main(ended(137, "OOMKilled", ""), running()) })
            }
            Self::Evicted(message) => json!({ "phase": "Failed", "reason": "Evicted", "message": message,
                "containerStatuses": main(ended(137, "Error", ""), ended(137, "Error", "")) }),
        }
    }
}

/// The statuses of a list of containers, each with the state of its name.
fn containers(list: &Value, state: impl Fn(&str) -> Value) -> Vec<Value> {
    let status = |container: &Value| {
        let state = state(container["name"].as_str().unwrap_or_default());
        let is_running = state["running"].is_object();
        // Kubelets report the resources since Kubernetes 1.33. Without them the API server refuses to resize the pod.
        json!({ "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
            "ready": is_running, "started": is_running, "state": state, "resources": container["resources"] })
    };
    list.as_array().into_iter().flatten().map(status).collect()
}

/// An address of the pod's own, made of its UID.
pub fn pod_ip(pod: &Value) -> String {
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    // FNV-1a, so that an address is the same in each run.
    let hash = uid.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let [_, a, b, c] = hash.to_be_bytes();
    format!("10.{a}.{b}.{c}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: &[&str]) -> Value {
        let named: Vec<_> = containers
            .iter()
            .map(|name| json!({ "name": name, "image": "i" }))
            .collect();
        json!({ "metadata": { "uid": "u-1" },
            "spec": { "initContainers": [{ "name": "install", "image": "s" }], "containers": named } })
    }

    fn state<'a>(status: &'a Value, list: &str, name: &str) -> &'a Value {
        let mut all = status[list].as_array().expect("statuses").iter();
        &all.find(|c| c["name"] == name).expect("the container")["state"]
    }

    #[test]
    fn course_passes_through_its_earlier_stages() {
        let ended = Course::Ended(0, String::new());
        assert_eq!(
            ended.stages(),
            [Course::Initializing, Course::Running, ended.clone()]
        );
        assert_eq!(Course::Unseen.stages(), []);
        assert!(ended.is_bound() && !Course::Unschedulable(String::new()).is_bound());
    }

    #[test]
    fn pod_with_a_streamer_runs_on_after_the_end_of_its_process() {
        let (alone, both) = (pod(&["process"]), pod(&["process", "streamer"]));
        for (pod, exit_code, phase) in [
            (&alone, 0, "Succeeded"),
            (&alone, 1, "Failed"),
            (&both, 0, "Running"),
            (&both, 1, "Running"),
        ] {
            let status = Course::Ended(exit_code, "m".into()).status(pod, "2026-01-01T00:00:00Z");
            assert_eq!(status["phase"], phase);
            let terminated = &state(&status, "containerStatuses", "process")["terminated"];
            assert_eq!(
                (&terminated["exitCode"], &terminated["message"]),
                (&json!(exit_code), &json!("m"))
            );
        }
        let status = Course::Ended(0, String::new()).status(&both, "2026-01-01T00:00:00Z");
        assert!(state(&status, "containerStatuses", "streamer")["running"].is_object());
    }

    #[test]
    fn init_container_ends_before_the_others_start() {
        let pod = pod(&["process"]);
        let status = |course: Course| course.status(&pod, "2026-01-01T00:00:00Z");
        let initializing = status(Course::Initializing);
        assert!(state(&initializing, "initContainerStatuses", "install")["running"].is_object());
        let waiting = &state(&initializing, "containerStatuses", "process")["waiting"];
        assert_eq!(waiting["reason"], "PodInitializing");
        let running = status(Course::Running);
        let terminated = &state(&running, "initContainerStatuses", "install")["terminated"];
        assert_eq!(terminated["exitCode"], 0);
        assert!(state(&running, "containerStatuses", "process")["running"].is_object());
    }

    #[test]
    fn addresses_are_valid_and_differ() {
        let address = |uid: &str| pod_ip(&json!({ "metadata": { "uid": uid } }));
        assert_ne!(address("a"), address("b"));
        address("a").parse::<std::net::Ipv4Addr>().expect("an address");
    }
}
